"""The rows of a read model: their keys, and the head that every row of a job begins with.

R <occurrence>                               a job: head and body
P <occurrence>                               its payload, if it is not long
I <status> <shelf> <due> <occurrence>        its place in the lists
J <kind> <status> <number> <due> <occurrence>    of one on the shared shelf, by its handler and by its queue
K <key> 0 <occurrence>                       of a keyed job
C <schedule> 0 <due> <occurrence>            of an occurrence of a schedule
E <ended> <occurrence>                       of one that has ended: the first of them are forgotten first
Y <queue> <partition> <offset>               a run that has not ended, where it stands on its work topic
B <keyed id>                                 which incarnation of a keyed job is the last
G, g, U, X, u <schedule>                     a schedule: its state, what it has waiting, what it was, its skips, what
                                             was decided among more than it notes
M <minute>, H <hour>                         how many jobs are due then, by status
A <minute>                                   what happened then
V <number>                                   an event
D <at> <place>, d <occurrence>, q <occurrence>   a dead letter, the latest of a job, the last requeue of one
Z <replay> <occurrence>, z <occurrence>      one that a replay has emitted; all replays that have emitted it
W <key>                                      a record of `meta`
N <kind> <number>                            a word: handlers, queues and workers are numbered
O <topic> 0 <partition>, T, F                positions, totals, format and identity
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pipeline.core.ids import is_of_grid
from pipeline.core.job import JobStatus, Run

JOB, PAYLOAD, LISTED, SHARING, KEYED, OCCURRENCE = b"R", b"P", b"I", b"J", b"K", b"C"
ENDED, BASE, OPEN = b"E", b"B", b"Y"
SCHEDULE, WAITING, GONE, SKIPS, UNTOLD = b"G", b"g", b"U", b"X", b"u"
MINUTE, HOUR, ACTIVITY, EVENT = b"M", b"H", b"A", b"V"
LETTER, LATEST, REQUEUED, META, WORD, POSITION = b"D", b"d", b"q", b"W", b"N", b"O"
REPLAYED, REPLAYS = b"Z", b"z"
TOTALS, FORMAT = b"T", b"F"

STATUSES = tuple(JobStatus)
CODES = {status: code for code, status in enumerate(STATUSES, 1)}
"""0: nothing is known but an ack."""
QUEUED, RUNNING = CODES[JobStatus.QUEUED], CODES[JobStatus.RUNNING]
LATE = 1
"""Flag: its first run was appended late."""
LATE_MS = 5_000
SHARED = 255
"""The last shelf: that of all who have none of their own."""
_HEAD = Struct(">BBHHqqB")
HEAD_SIZE = _HEAD.size
_DUE = Struct(">Q")
_PLACE = Struct(">HIQ")
_FAR = (1 << 64) - 1
_LAST_MINUTE = (1 << 32) - 1


class Head(NamedTuple):
    """What a list needs to choose by. `form` says how the body is written; `handler`, `queue` are numbers of words,
    `ended_at` is 0 while it has not ended."""

    form: int
    status: int
    handler: int
    queue: int
    due_at: int
    ended_at: int
    flags: int

    def packed(self) -> bytes:
        return _HEAD.pack(*self)


def head_of(row: bytes) -> Head:
    return tuple.__new__(Head, _HEAD.unpack_from(row))


class Standing(NamedTuple):
    """Where a run stands on the work topic of its queue, and since when (LogAppendTime, epoch ms)."""

    partition: int
    offset: int
    since: int


def within(due_at: int) -> int:
    """An instant as a key can have it."""
    return min(max(due_at, 0), _FAR)


def lateness_of(at: int, due_at: int, created_at: int) -> int:
    """ms from when a run could have been there at the earliest until it was: a job that is made for a time in the past
    is not late by all the years since."""
    return at - max(due_at, created_at)


def possible_from(run: Run) -> int:
    """The `created_at` for that: of an occurrence of a grid it is when it fired, and the schedule was there before."""
    return 0 if is_of_grid(run.occurrence_id) else run.created_at


def listed_key(head: Head, shelf: int, id_: bytes) -> bytes:
    return b"I%c%c" % (head.status, shelf) + _DUE.pack(within(head.due_at)) + id_


def listed_range(status: int, shelf: int) -> bytes:
    """How the places on a shelf begin, in front of the due time."""
    return b"I%c%c" % (status, shelf)


def shared_key(head: Head, kind: bytes, number: int, id_: bytes) -> bytes:
    """`number`: of its handler or queue, which `kind` says."""
    return shared_range(kind, head.status, number) + _DUE.pack(within(head.due_at)) + id_


def shared_range(kind: bytes, status: int, number: int) -> bytes:
    return b"J%b%c" % (kind, status) + number.to_bytes(2, "big")


def due_bytes(due_at: int) -> bytes:
    return _DUE.pack(within(due_at))


def ended_key(head: Head, id_: bytes) -> bytes:
    return ENDED + _DUE.pack(within(head.ended_at)) + id_


def open_key(queue: int, partition: int, offset: int) -> bytes:
    """Of the run that stands there; `queue` is the number of a word."""
    return OPEN + _PLACE.pack(queue, partition, within(offset))


def open_row(since: int, id_: bytes) -> bytes:
    """What stands under `open_key`."""
    return _DUE.pack(within(since)) + id_


def read_open(key: bytes, value: bytes) -> tuple[int, int, bytes]:
    """Offset, since when, and the occurrence."""
    return int.from_bytes(key[-8:], "big"), int.from_bytes(value[:8], "big"), value[8:]


def keyed_key(key: str, id_: bytes) -> bytes:
    return KEYED + key.encode("utf-8", "surrogatepass") + b"\0" + id_


def occurrence_key(schedule: str, due_at: int, id_: bytes) -> bytes:
    return OCCURRENCE + schedule.encode() + b"\0" + _DUE.pack(within(due_at)) + id_


def minute_of(due_at: int) -> int:
    return min(within(due_at) // 60_000, _LAST_MINUTE)


def minute_key(minute: int) -> bytes:
    return MINUTE + minute.to_bytes(4, "big")


def hour_key(minute: int) -> bytes:
    return HOUR + (minute // 60).to_bytes(4, "big")


def position_key(topic: str, partition: int) -> bytes:
    return POSITION + topic.encode() + b"\0" + partition.to_bytes(4, "big")


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes((prefix[-1] + 1,))
