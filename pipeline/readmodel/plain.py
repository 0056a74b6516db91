"""The plainest of jobs, whose rows are changed as bytes: without a key, schedule, labels or serial group, run once, and
attempted once if at all. Nearly all that is folded is about one of these.

Whatever is not plain, or does not fit, is None here and goes the long way, by `tale`; a test plays both ways and
compares the rows.

    WAITING   head, when it was made, where it stands on its home partition
    PLAIN     head, the same, where its runs go, its run, its attempt; the result, if there is one
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pipeline import codec
from pipeline.codec.run_wire import FRAME
from pipeline.codec.wire import Malformed, read_bytes, read_instant
from pipeline.core.handler import RESULT_LIMIT
from pipeline.core.job import Ack, AckState, JobStatus, Run
from pipeline.follower.job import Story, status_of
from pipeline.follower.trail import BEFORE_TOMBSTONE_MS, Place, Trail
from pipeline.follower.values import place_of
from pipeline.ports import Record
from pipeline.readmodel.rows import CODES, HEAD_SIZE, LATE, LATE_MS, Head, Standing, lateness_of
from pipeline.readmodel.words import HANDLER, OTHER, QUEUE, WORKER, Words
from pipeline.view import headers_of

JSON, WAITING, PLAIN = 1, 2, 3
"""Forms of a row's body."""
ID_LENGTH = 27
_ID = b"\x36"
_AT = len(FRAME) + 2 * (1 + ID_LENGTH)
_INSTANT = 6
_RUN_1 = 2
_NOTHING = bytes(7)
"""No schedule, key, failures, limits, labels, headers."""
_NO_MORE = bytes(2)
"""No history, no last success."""
MOST_NAMES = 10_000
_WAITING = Struct(">BBHHqqBqq")
_PLAIN = Struct(">BBHHqqBqqqhhBqqBBHQqqqB")
_STANDING = Struct(">hBqq")
_STANDS_AT = HEAD_SIZE + 3 * 8 + 2
"""Of `here`, `fired`, `sent_at`, `sent_offset` in a PLAIN row."""
NOWHERE = -1
_STATES = tuple(AckState)
STATE_CODES = {state: code for code, state in enumerate(_STATES, 1)}
_TERMINAL = frozenset(code for state, code in STATE_CODES.items() if state.terminal)
_PENDING = CODES[JobStatus.PENDING]
_QUEUED = CODES[JobStatus.QUEUED]
_SOME = {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.SKIPPED}
_LAST_ATTEMPT, LAST_PARTITION = 255, 32_767


class Body(NamedTuple):
    """What follows the head of a PLAIN row. `since`, `work`: the place that its tombstone named, NOWHERE before it;
    `here`: the partition where its run and acks were read; `fired`: whether its record has been tombstoned as fired;
    `state` 0: no attempt; `started_at` NOWHERE: not told. Its `queue` is that of the head."""

    created_at: int
    home_offset: int
    since: int = 0
    work: int = NOWHERE
    here: int = NOWHERE
    fired: int = 0
    sent_at: int = NOWHERE
    sent_offset: int = NOWHERE
    state: int = 0
    attempt: int = 0
    worker: int = 0
    token: int = 0
    at: int = 0
    started_at: int = NOWHERE
    work_offset: int = 0
    result: bytes | None = None


def _by_state() -> dict[int, int]:
    """What a fired job is, by the state of its one attempt: by the follower's rules."""
    found = {0: _QUEUED}
    for state, code in STATE_CODES.items():
        ack = Ack(
            job_id="", occurrence_id="", run=1, attempt=1, token=1, worker="", handler="", state=state, at=0,
            work_offset=0,
        )  # fmt: skip
        found[code] = CODES[status_of(Story(Trail("j", end="fired", highest=1, known=True), {}, [ack]))]
    return found


_STATUS_BY_STATE = _by_state()
_ENDED = frozenset(CODES[status] for status in _SOME)


class Plain(NamedTuple):
    """What is read of a plain run: instants, numbers of words, payload."""

    due_at: int
    created_at: int
    handler: int
    queue: int
    payload: bytes


class Names:
    """Numbers of handler and queue by the bytes in which the two stand: the same few come over and over."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._known: dict[bytes, tuple[int, int]] = {}

    def numbers(self, stored: bytes, id_: bytes, value: bytes) -> tuple[int, int] | None:
        found = self._known.get(stored)
        if found is not None:
            return found
        plain = codec.peek_plain(id_, value)
        if plain is None:
            return None
        handler, queue = self._words.number(HANDLER, plain.handler), self._words.number(QUEUE, plain.queue)
        if OTHER in (handler, queue):
            return None
        if len(self._known) < MOST_NAMES:
            self._known[stored] = handler, queue
        return handler, queue


def read_run(id_: bytes, value: bytes, names: Names) -> Plain | None:
    """The plain run 1 of the job `id_`; None if these are not the bytes of one."""
    own = _ID + id_
    if len(id_) != ID_LENGTH or not value.startswith(FRAME + own + own):
        return None
    try:
        due_at, at = read_instant(value, _AT)
        if at != _AT + _INSTANT or value[at] != _RUN_1:
            return None
        begin = at + 1
        at = begin + 1 + (value[begin] >> 1)
        end = at + 1 + (value[at] >> 1)
        numbers = names.numbers(value[begin:end], id_, value)
        created_at, at = read_instant(value, end)
        rest = at + 1 + _INSTANT + 1 + ID_LENGTH + len(_NOTHING)
        if numbers is None or value[at:rest] != b"\0" + value[_AT : _AT + _INSTANT] + own + _NOTHING:
            return None
        payload, at = read_bytes(value, rest)
    except (IndexError, Malformed):
        return None
    if value[at:] != _NO_MORE:
        return None
    return tuple.__new__(Plain, (due_at, created_at, *numbers, payload))


def made(run: Plain, offset: int) -> bytes:
    """The row of a job that was created there."""
    return _WAITING.pack(WAITING, _PENDING, run.handler, run.queue, run.due_at, 0, 0, run.created_at, offset)


def read(row: bytes) -> tuple[Head, Body] | None:
    """The parts of a row; None if it is not one of these."""
    form = row[0]
    if form == WAITING:
        *head, created_at, home_offset = _WAITING.unpack(row)
        return Head(*head), Body(created_at, home_offset)
    if form != PLAIN:
        return None
    told = _PLAIN.unpack_from(row)
    result = row[_PLAIN.size :] if told[-1] else None
    return tuple.__new__(Head, told[:7]), tuple.__new__(Body, (*told[7:-1], result))


def standing(row: bytes) -> Standing | None:
    """Where the run of a PLAIN row was read; None: it was not read yet."""
    here, _, sent_at, sent_offset = _STANDING.unpack_from(row, _STANDS_AT)
    return None if sent_at == NOWHERE else Standing(here, sent_offset, sent_at)


def written(head: Head, body: Body, at: int) -> bytes:
    """The row, with the status that follows; `at`: when the record was appended that it follows from."""
    _, _, handler, queue, due_at, ended_at, _ = head
    status = _STATUS_BY_STATE[body.state] if body.fired else _PENDING
    if status not in _ENDED:
        ended_at = 0
    elif not ended_at:
        ended_at = max(at, 1)
    sent = body.sent_at != NOWHERE
    late = LATE if sent and lateness_of(body.sent_at, due_at, body.created_at) > LATE_MS else 0
    result = body.result
    fixed = _PLAIN.pack(
        PLAIN, status, handler, queue, due_at, ended_at, late, *body[:-1], 0 if result is None else 1
    )
    return fixed if result is None else fixed + result


# -- changes ------------------------------------------------------------------------------------------------


class Places:
    """Numbers of queue and partition by the bytes of a `work` header."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._known: dict[bytes, tuple[int, int]] = {}

    def place(self, stored: bytes) -> tuple[int, int] | None:
        found = self._known.get(stored)
        if found is None:
            place = place_of(stored.decode("utf-8", "replace"))
            if place is None or place[1] > LAST_PARTITION:
                return None
            found = self._words.number(QUEUE, place[0]), place[1]
            if found[0] == OTHER:
                return None
            if len(self._known) < MOST_NAMES:
                self._known[stored] = found
        return found


def fired(row: bytes, record: Record, places: Places) -> bytes | None:
    """After the tombstone with which its owner has fired it."""
    parts = read(row)
    if parts is None or parts[1].fired:
        return None
    headers = headers_of(record)
    if len(headers) != 4 or headers[0] != ("end", b"fired") or headers[2] != ("run", b"1"):
        return None
    name, stored = headers[3]
    place = places.place(stored) if name == "work" and stored is not None else None
    head, body = parts
    if (
        place is None
        or headers[1][0] != "base"
        or place[0] != head.queue
        or body.here not in (NOWHERE, place[1])
    ):
        return None
    at = record.timestamp()[1]
    return written(head, body._replace(since=at - BEFORE_TOMBSTONE_MS, work=place[1], fired=1), at)


def _is_here(head: Head, body: Body, queue: int, partition: int) -> bool:
    return (
        head.queue == queue
        and partition <= LAST_PARTITION
        and body.work in (NOWHERE, partition)
        and body.here in (NOWHERE, partition)
    )


def sent(row: bytes, run: Plain, queue: int, record: Record) -> bytes | None:
    """After its run was read on its work topic."""
    parts = read(row)
    if parts is None:
        return None
    head, body = parts
    partition = record.partition() or 0
    same = (run.due_at, run.created_at, run.handler, run.queue) == (
        head.due_at, body.created_at, head.handler, head.queue,
    )  # fmt: skip
    if not same or body.sent_at != NOWHERE or not _is_here(head, body, queue, partition):
        return None
    at = record.timestamp()[1]
    return written(head, body._replace(here=partition, sent_at=at, sent_offset=record.offset() or 0), at)


def attempted(row: bytes, ack: Ack, queue: int, record: Record, words: Words) -> bytes | None:
    """After what an attempt came to. None also if that was known."""
    parts = read(row)
    if parts is None or not is_plain_ack(ack):
        return None
    head, body = parts
    partition = record.partition() or 0
    state, worker = STATE_CODES[ack.state], words.number(WORKER, ack.worker)
    if not _is_here(head, body, queue, partition) or worker == OTHER:
        return None
    if words.known(HANDLER, ack.handler) != head.handler:
        return None
    if body.state and (body.token != ack.token or (body.state in _TERMINAL and state not in _TERMINAL)):
        return None
    started = NOWHERE if ack.started_at is None else ack.started_at
    attempt = body._replace(
        here=partition, state=state, attempt=ack.attempt, worker=worker, token=ack.token, at=ack.at,
        started_at=started, work_offset=ack.work_offset, result=ack.result,
    )  # fmt: skip
    return None if attempt == body else written(head, attempt, record.timestamp()[1])


def is_plain_ack(ack: Ack) -> bool:
    return (
        ack.run == 1
        and 0 <= ack.attempt <= _LAST_ATTEMPT
        and ack.token >= 0
        and ack.error is None
        and ack.log_tail is None
        and ack.retry_at is None
        and ack.started_at != NOWHERE
        and ack.job_id == ack.occurrence_id
        and (ack.result is None or len(ack.result) <= RESULT_LIMIT)
    )


# -- the long way -------------------------------------------------------------------------------------------


def run_of(id_: str, head: Head, body: Body, words: Words) -> Run:
    """Its run 1, without payload."""
    return Run(
        job_id=id_, occurrence_id=id_, run=1, due_at=head.due_at, nominal_at=head.due_at,
        handler=words.word(HANDLER, head.handler) or "", queue=words.word(QUEUE, head.queue) or "",
        created_at=body.created_at, idempotency_key=id_, payload=b"",
    )  # fmt: skip


def ack_of(id_: str, head: Head, body: Body, words: Words) -> Ack | None:
    """Its one attempt."""
    if not body.state:
        return None
    return Ack(
        job_id=id_, occurrence_id=id_, run=1, attempt=body.attempt, token=body.token,
        worker=words.word(WORKER, body.worker) or "", handler=words.word(HANDLER, head.handler) or "",
        state=_STATES[body.state - 1], at=body.at, work_offset=body.work_offset,
        started_at=None if body.started_at == NOWHERE else body.started_at, result=body.result,
    )  # fmt: skip


def place_told(head: Head, body: Body, words: Words) -> Place | None:
    if body.work == NOWHERE:
        return None
    return Place(words.word(QUEUE, head.queue) or "", body.work, body.since)
