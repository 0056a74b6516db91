"""The plainest of runs, read as fast as may be: run 1 of an anonymous job without a serial group (DESIGN §3).

Nearly all that a dispatcher folds is one of these. Its bytes begin with what the record key says already, so all
that is left to read is two instants and two names. Anything else is None here, and read by `peek_run`.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.codec.registry import FRAME
from pipeline.codec.run_wire import FRAME as CURRENT
from pipeline.codec.run_wire import OLDER
from pipeline.codec.wire import Malformed, read_instant, read_length
from pipeline.core.names import legal

ID_LENGTH = 27
_ID = bytes([ID_LENGTH << 1])
_FRAMES = frozenset((CURRENT, *OLDER))
"""All versions begin alike."""
_AT = FRAME + 2 * (len(_ID) + ID_LENGTH)
_RUN_1 = 2
"""The number 1 as Avro writes it."""
_RUN_2 = b"\x04"
_NO_SERIAL = 0
_INSTANT = 6
"""Bytes of epoch milliseconds from 1987 to 2039."""
_NOTHING = bytes(7)
"""No schedule, no key, no failures, no limits, no labels, no headers."""
_NO_MORE = bytes(2)
NAMES = 10_000
_names: dict[bytes, tuple[str, str]] = {}
"""Queue and handler by the bytes in which they stand: the same few come over and over."""


class PlainRun(NamedTuple):
    """What is not in the record key of a plain run already. Both names are legal ones."""

    due_at: int
    created_at: int
    queue: str
    handler: str


def peek_plain(id_: bytes, value: bytes) -> PlainRun | None:
    """The head of the plain run of job `id_`; None if these are not the bytes of one."""
    if value[:FRAME] not in _FRAMES or len(id_) != ID_LENGTH or value[FRAME:_AT] != _ID + id_ + _ID + id_:
        return None
    try:
        due_at, at = read_instant(value, _AT)
        if value[at] != _RUN_1:
            return None
        begin = at + 1
        at = begin + 1 + (value[begin] >> 1)
        at += 1 + (value[at] >> 1)
        names = _names.get(value[begin:at]) or _learn(value[begin:at])
        created_at, at = read_instant(value, at)
        if names is None or value[at] != _NO_SERIAL:
            return None
    except (IndexError, Malformed):
        return None
    return tuple.__new__(PlainRun, (due_at, created_at, *names))


def plain_again(value: bytes, due_at: bytes, headers: bytes) -> tuple[bytes, PlainRun, bytes] | None:
    """Of a plain run that has a payload and nothing else: its job, its head, and the same run as run 2 with another
    due time and with `headers`, both as Avro writes them. None if these are not the bytes of one."""
    id_ = value[_AT - ID_LENGTH : _AT]
    plain = peek_plain(id_, value) if value.startswith(CURRENT) else None
    if plain is None:
        return None
    nominal = _AT + 2 * _INSTANT + 4 + len(plain.queue) + len(plain.handler)
    rest = nominal + _INSTANT + len(_ID) + ID_LENGTH
    payload = rest + len(_NOTHING)
    before = value[_AT : _AT + _INSTANT]
    if value[nominal:payload] != before + _ID + id_ + _NOTHING or not _ends(value, payload):
        return None
    begin = _AT + _INSTANT + 1
    parts = (
        value[:_AT], due_at, _RUN_2, value[begin:nominal], before, _ID, id_, _NOTHING[:-1], headers, value[payload:]
    )  # fmt: skip
    return id_, plain, b"".join(parts)


def _ends(value: bytes, payload: int) -> bool:
    """Whether the payload that stands there is followed by no history and no last success, and by nothing else."""
    try:
        length, at = read_length(value, payload)
    except (IndexError, Malformed):
        return False
    return value[at + length :] == _NO_MORE


def _learn(data: bytes) -> tuple[str, str] | None:
    """The names in two strings of less than 64 bytes each; None if they are not, or not legal names."""
    if data[0] & 129:
        return None
    cut = 1 + (data[0] >> 1)
    if cut >= len(data) or data[cut] & 129:
        return None
    try:
        queue, handler = data[1:cut].decode(), data[cut + 1 :].decode()
    except UnicodeDecodeError:
        return None
    if len(data) != cut + 1 + (data[cut] >> 1) or not (legal(queue) and legal(handler)):
        return None
    if len(_names) < NAMES:
        _names[data] = queue, handler
    return queue, handler
