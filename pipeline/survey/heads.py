"""What a survey needs of a run: read from the bytes of a work record without what it does not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pipeline import codec
from pipeline.codec.run_wire import FRAME
from pipeline.codec.wire import Malformed, read_instant, read_length, write_instant
from pipeline.core.errors import Undecodable
from pipeline.core.job import Run

Head = tuple[str, str, str | None, str | None, Mapping[str, str]]
"""Handler, queue, schedule id, key, labels: a plain tuple, which spills."""
NOBODYS: Head = "", "", None, None, {}
"""Of what nobody can read."""
NAMES = 10_000
UNKNOWN = -1
"""For the nominal time of a run that somebody asked for by hand: it is meant for the moment at which it was asked for,
and says nothing of when its occurrence was due."""
_ID_LENGTH = 27
_ID = b"\x36"
_FRAMED = FRAME + _ID
_DUE_AT, _RUN_AT, _NAMES_AT = 66, 72, 73
"""Where due time, run and names stand behind frame and ids, if the due time takes six bytes."""
_RUN_1, _FIRST = 2, b"\x02"
_SIX = 1 << 34, 1 << 41
"""Instants that take six bytes, epoch ms."""
_ALL_BITS, _FIVE_BITS, _MOST = 0x8080_8080_8080, 0x0080_8080_8080, 1 << 48
_SHORT = 64
"""Ids shorter than this have a length of one byte."""
_NOTHING = bytes(7)
"""No schedule, key, failures, limits, labels, headers."""
_REST = 1 + 6 + 1 + _ID_LENGTH + len(_NOTHING)
"""Serial, nominal time, idempotency key and these."""
_heads: dict[bytes, Head] = {}
"""Of plain runs, by the bytes of their two names: the same few come over and over."""


class Sight(NamedTuple):
    """What is read of a run. Times are epoch ms; `nominal_at` may be UNKNOWN."""

    job_id: bytes
    run: int
    due_at: int
    nominal_at: int
    payload_bytes: int
    head: Head


def read_run(key: bytes, value: bytes) -> Sight | None:
    """Of the work record with this key and value; None if it is no run of that occurrence."""
    plain = plain_run(key, value)
    if plain is not None:
        return plain
    try:
        run = codec.RUN.decode(value)
    except Undecodable:
        return None
    if run.occurrence_id.encode() != key:
        return None
    if len(_heads) < NAMES:
        _learn(run)
    return sight_of(run)


def due_order(at_ms: int) -> int:
    """A number that grows with this instant, and compares with what `read_due` says: the bytes of an instant as Avro
    has it, read as one number, are in the order of time as long as there are six of them (1970 to 2039)."""
    if not _SIX[0] <= at_ms < _SIX[1]:
        return 0 if at_ms < _SIX[0] else _MOST
    return int.from_bytes(write_instant(at_ms), "little")


def read_due(key: bytes, value: bytes) -> int | None:
    """The `due_order` of a first run of the occurrence `key`, if it is a job of its own, as nearly all are: two ids and
    two numbers are looked at. None: it may be anything else."""
    size = len(key)
    if size == _ID_LENGTH:
        begin = _FRAMED + key + _ID + key
    elif size < _SHORT:
        begin = FRAME + b"%c%b%c%b" % (size << 1, key, size << 1, key)
    else:
        return None
    at = len(begin)
    due = int.from_bytes(value[at : at + 6], "little")
    whole = value.startswith(begin) and value[at + 6 : at + 7] == _FIRST
    return due if whole and due & _ALL_BITS == _FIVE_BITS else None


def sight_of(run: Run) -> Sight:
    head = run.handler, run.queue, run.schedule_id, run.key, dict(run.labels)
    nominal_at = UNKNOWN if _asked_for(run) else run.nominal_at
    return Sight(run.job_id.encode(), run.run, run.due_at, nominal_at, len(run.payload), head)


def _asked_for(run: Run) -> bool:
    """Whether it is a requeue of a job, or follows from one: made anew from a command (`commands.again`), it was
    created when it was meant. So was the further run of a job that was created for at once; its first run tells."""
    return run.run > 1 and run.schedule_id is None and run.nominal_at == run.created_at


def plain_run(key: bytes, value: bytes) -> Sight | None:
    """Of run 1 of an anonymous job that has nothing special, as nearly all are: its key says what its bytes are, and
    all that is left to read is an instant and a length. None: it may be anything else."""
    id_ = _ID + key
    if not value.startswith(_FRAMED + key + id_) or len(key) != _ID_LENGTH:
        return None
    try:
        handler_at = _NAMES_AT + 1 + (value[_NAMES_AT] >> 1)
        created_at = handler_at + 1 + (value[handler_at] >> 1)
        head = _heads.get(value[_NAMES_AT:created_at])
        if head is None or value[_RUN_AT] != _RUN_1:
            return None
        at = created_at + 6
        if value[at : at + _REST] != b"\0" + value[_DUE_AT:_RUN_AT] + id_ + _NOTHING:
            return None
        due_at, end = read_instant(value, _DUE_AT)
        if end != _RUN_AT:
            return None
        size = value[at + _REST]
        size = size >> 1 if size < 128 else read_length(value, at + _REST)[0]
    except (IndexError, Malformed):
        return None
    return tuple.__new__(Sight, (key, 1, due_at, due_at, size, head))


def _learn(run: Run) -> None:
    """Its names, so that the next one like it need not be decoded."""
    queue, handler = run.queue.encode(), run.handler.encode()
    if len(queue) < 64 and len(handler) < 64:
        names = b"%c%b%c%b" % (len(queue) << 1, queue, len(handler) << 1, handler)
        _heads[names] = run.handler, run.queue, None, None, {}
