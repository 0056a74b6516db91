"""Record keys: who may write what, and what a compaction keeps (DESIGN §3, §4).

One fact has one spelling: numbers are decimal without sign or leading zero, uuids are lower case. Occurrence
ids hold `:` and `.` but no `/`, a job's key may hold anything, so numbers are split off from the right.
"""

from __future__ import annotations

import re
import uuid
from enum import Enum
from typing import NamedTuple, TypeVar

from pipeline.core.errors import Undecodable
from pipeline.core.ids import parse_id
from pipeline.core.names import NAME

LAYOUT_KEY = b"layout"
"""On meta: the layout."""
ERA_KEY = b"era"
"""On meta: the era, one for the installation."""
HOLD_KEY = b"hold"
"""On meta: that the dispatch is held, and by which restore."""

QUEUE = b"q/"
"""On meta: how the keys of what is said of queues begin."""

ANONYMOUS = (b"j/", b"a/")
"""How the record keys of an anonymous job begin: as its creator put it, and after a change."""
JOB, KEYED, COMMAND, RETRY, STOPPED, SCHEDULE, HIGHEST = b"j/", b"k/", b"c/", b"r/", b"x/", b"s/", b"h/"
"""How the other record keys begin, where a look at the start is all that is needed."""

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LIMIT = 1 << 63
_Kind = TypeVar("_Kind", bound=Enum)
_JOB_KEY_LENGTH = 29


class JobsKind(Enum):
    """What a record on the jobs topic is, by the first letter of its key."""

    JOB = "j"
    CHANGED = "a"
    KEYED = "k"
    SCHEDULE = "s"
    COMMAND = "c"
    RETRY = "r"
    DONE = "d"
    HIGHEST = "h"
    STOPPED = "x"
    TAKEOVER = "o"


class AcksKind(Enum):
    """What a record on an acks topic is, by the first letter of its key."""

    STARTED = "s"
    OFFERED = "f"
    TERMINAL = "t"
    TAKEOVER = "o"
    STOPPED = "x"


class JobsKey(NamedTuple):
    """A parsed key of the jobs topic. `id` is the job id, job key, schedule id, command uuid or occurrence id
    after the letter (empty for TAKEOVER); `run` is set for RETRY and DONE, `partition` for TAKEOVER."""

    kind: JobsKind
    id: str = ""
    run: int = 0
    partition: int = -1


class AcksKey(NamedTuple):
    """A parsed key of an acks topic. `run` is set for STARTED, OFFERED and TERMINAL; `token` for STARTED and
    OFFERED; `attempt` for TERMINAL; `chunk` for OFFERED; `partition` for TAKEOVER."""

    kind: AcksKind
    occurrence_id: str = ""
    run: int = 0
    token: int = 0
    attempt: int = 0
    chunk: int = -1
    partition: int = -1


# -- jobs ---------------------------------------------------------------------------------------------------


def job_key(job_id: str) -> bytes:
    """A new anonymous job."""
    return b"j/" + job_id.encode()


def changed_key(job_id: str) -> bytes:
    """An anonymous job after a change."""
    return b"a/" + job_id.encode()


def keyed_key(key: str) -> bytes:
    """The state of a keyed job, under the user's key itself."""
    return b"k/" + key.encode()


def schedule_key(schedule_id: str) -> bytes:
    """A schedule."""
    return b"s/" + schedule_id.encode()


def command_key(command: uuid.UUID | str) -> bytes:
    """A command."""
    return b"c/" + str(command).encode()


def retry_key(occurrence_id: str, after_run: int) -> bytes:
    """The next run wanted after `after_run`, which ended without an end of the job."""
    return f"r/{occurrence_id}/{after_run}".encode()


def done_key(occurrence_id: str, run: int) -> bytes:
    """The fact that `run` ended the job."""
    return f"d/{occurrence_id}/{run}".encode()


def highest_key(occurrence_id: str) -> bytes:
    """The highest run emitted."""
    return b"h/" + occurrence_id.encode()


# -- jobs and acks ------------------------------------------------------------------------------------------


def holder_key(job_id: bytes) -> bytes:
    """In the index only: under which key a keyed job stands, since its id holds no more than a hash of it."""
    return b"i/" + job_id


def source_key(source: str) -> bytes:
    """In the index only: the schedules of an app, which else would have to be looked for among all."""
    return b"m/" + source.encode()


def stopped_key(occurrence_id: str) -> bytes:
    """No further run may start (acks) or be emitted (jobs)."""
    return b"x/" + occurrence_id.encode()


def takeover_key(partition: int) -> bytes:
    """The takeover record of a partition."""
    return b"o/%d" % partition


# -- acks ---------------------------------------------------------------------------------------------------


def started_key(occurrence_id: str, run: int, token: int) -> bytes:
    """An attempt was started, or released."""
    return f"s/{occurrence_id}/{run}/{token}".encode()


def offered_key(occurrence_id: str, run: int, token: int, chunk: int) -> bytes:
    """A chunk of what a worker without the partition would have committed."""
    return f"f/{occurrence_id}/{run}/{token}/{chunk}".encode()


def terminal_key(occurrence_id: str, run: int, attempt: int) -> bytes:
    """The outcome of an attempt."""
    return f"t/{occurrence_id}/{run}/{attempt}".encode()


# -- meta and dead ------------------------------------------------------------------------------------------


def guard_key(group: str, partition: int) -> bytes:
    """On meta: the highest generation of a group that owned the partition."""
    return f"g/{group}/{partition}".encode()


def queue_key(queue: str) -> bytes:
    """On meta: whether the queue is paused, and what it was purged of."""
    return QUEUE + queue.encode()


def restored_key(era: int) -> bytes:
    """On meta: that this era began with a restore."""
    return b"restored/%d" % era


def place_key(topic: str, partition: int, offset: int) -> bytes:
    """On dead: a record known only by its place."""
    return f"{topic}/{partition}/{offset}".encode()


# -- parsing ------------------------------------------------------------------------------------------------


def parse_jobs_key(key: bytes) -> JobsKey:
    """The parsed key; Undecodable if it is none of the forms above.

    Of `j/` and `a/`, the hot path, only the length and ASCII are checked here: `Layout.home` decodes the
    id itself next and refuses what is left.
    """
    head = key[:2]
    if head in (b"j/", b"a/"):
        if len(key) != _JOB_KEY_LENGTH or not key.isascii():
            raise _no_key(key)
        return JobsKey(JobsKind.JOB if head == b"j/" else JobsKind.CHANGED, key[2:].decode())
    kind, rest = _split(key, JobsKind)
    match kind:
        case JobsKind.RETRY | JobsKind.DONE:
            occurrence_id, (run,) = _numbers(key, rest, 1)
            return JobsKey(kind, _occurrence(occurrence_id), run=_positive(key, run))
        case JobsKind.HIGHEST | JobsKind.STOPPED:
            return JobsKey(kind, _occurrence(rest))
        case JobsKind.TAKEOVER:
            return JobsKey(kind, partition=_number(key, rest))
        case _:
            return JobsKey(kind, _plain(key, kind, rest))


def parse_acks_key(key: bytes) -> AcksKey:
    """The parsed key; Undecodable if it is none of the forms above."""
    kind, rest = _split(key, AcksKind)
    if kind is AcksKind.TAKEOVER:
        return AcksKey(kind, partition=_number(key, rest))
    if kind is AcksKind.STOPPED:
        return AcksKey(kind, _occurrence(rest))
    occurrence_id, numbers = _numbers(key, rest, 3 if kind is AcksKind.OFFERED else 2)
    occurrence_id = _occurrence(occurrence_id)
    run, second = (_positive(key, number) for number in numbers[:2])
    if kind is AcksKind.TERMINAL:
        return AcksKey(kind, occurrence_id, run, attempt=second)
    if kind is AcksKind.STARTED:
        return AcksKey(kind, occurrence_id, run, second)
    return AcksKey(kind, occurrence_id, run, second, chunk=numbers[2])


def _split(key: bytes, kinds: type[_Kind]) -> tuple[_Kind, str]:
    try:
        text = key.decode()
        kind = kinds(text[:1])
    except ValueError:
        raise _no_key(key) from None
    if text[1:2] != "/" or len(text) == 2:
        raise _no_key(key)
    return kind, text[2:]


def _plain(key: bytes, kind: JobsKind, text: str) -> str:
    legal = {JobsKind.COMMAND: _UUID, JobsKind.SCHEDULE: NAME}.get(kind)
    if "\0" in text if legal is None else not legal.fullmatch(text):
        raise _no_key(key)
    return text


def _numbers(key: bytes, text: str, count: int) -> tuple[str, list[int]]:
    first, *rest = text.rsplit("/", count)
    if len(rest) != count:
        raise _no_key(key)
    return first, [_number(key, number) for number in rest]


def _number(key: bytes, text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) >= _LIMIT:
        raise _no_key(key)
    return int(text)


def _positive(key: bytes, number: int) -> int:
    if number < 1:
        raise _no_key(key)
    return number


def _occurrence(text: str) -> str:
    parse_id(text)
    return text


def _no_key(key: bytes) -> Undecodable:
    return Undecodable(f"{key[:120]!r} is no record key")
