"""The plainest of runs, read as fast as may be: run 1 of an anonymous job without a serial group (DESIGN §3).

Nearly all that a dispatcher folds is one of these. Its bytes begin with what the record key says already, so all
that is left to read is two instants and two names. Anything else is None here, and read by `peek_run`.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.codec.registry import FRAME
from pipeline.codec.run_wire import FRAME as CURRENT
from pipeline.codec.run_wire import OLDER
from pipeline.codec.wire import Malformed, read_bytes, read_instant
from pipeline.core.names import legal

ID_LENGTH = 27
_ID = bytes([ID_LENGTH << 1])
_FRAMES = frozenset((CURRENT, *OLDER))
"""All versions begin alike."""
_AT = FRAME + 2 * (len(_ID) + ID_LENGTH)
_RUN_AT = _AT + 6
"""Where the run stands, if the due time takes six bytes."""
_RUN_1 = 2
"""The number 1 as Avro writes it."""
_RUN_2 = b"\x04"
_NO_SERIAL, _NULL = 0, b"\0"
_INSTANT = 6
"""Bytes of epoch milliseconds from 1987 to 2039."""
_HIGH_BITS, _TWO_INSTANTS = 0x8080_8080_8080_8080_8080_8080, 0x0080_8080_8080_0080_8080_8080
"""Bits that say of each byte of two instants whether another one follows, and how they are set then."""
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


def plain_again(value: bytes, due_at: bytes, headers: bytes) -> tuple[bytes, str, bytes] | None:
    """Of a plain run that has a payload and nothing else: its job, its queue, and the same run as run 2 with another
    due time and with `headers`, both as Avro writes them. None if these are not the bytes of one.

    Whatever is replayed passes here, so nothing is read that only has to be copied."""
    id_, before = value[_AT - ID_LENGTH : _AT], value[_AT:_RUN_AT]
    twice = _ID + id_
    if value[:_AT] != CURRENT + twice + twice or len(id_) != ID_LENGTH:
        return None
    try:
        if value[_RUN_AT] != _RUN_1:
            return None
        created = _RUN_AT + 2 + (value[_RUN_AT + 1] >> 1)
        created += 1 + (value[created] >> 1)
        names = _names.get(value[_RUN_AT + 1 : created]) or _learn(value[_RUN_AT + 1 : created])
        nominal = created + _INSTANT + 1
        payload = nominal + _INSTANT + len(twice) + len(_NOTHING)
        if value[nominal - 1 : payload] != _NULL + before + twice + _NOTHING:
            return None
        instants = before + value[created : nominal - 1]
        if names is None or int.from_bytes(instants, "little") & _HIGH_BITS != _TWO_INSTANTS:
            return None
        if not instants[_INSTANT - 1] or not instants[-1]:
            return None  # over-long
    except IndexError:
        return None
    if not _ends(value, payload):
        return None
    head, body = value[_RUN_AT + 1 : nominal], value[payload:]
    again = b"".join((value[:_AT], due_at, _RUN_2, head, before, twice, _NOTHING[:-1], headers, body))
    return id_, names[0], again


def _ends(value: bytes, payload: int) -> bool:
    """Whether the payload that stands there is followed by no history and no last success, and by nothing else."""
    try:
        _, end = read_bytes(value, payload)
    except (IndexError, Malformed):
        return False
    return value[end:] == _NO_MORE


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
