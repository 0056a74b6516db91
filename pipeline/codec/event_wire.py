"""Made by tools/generate_codec.py from schemas/event.avsc: do not edit, run it again.

Of an Event framed in single-object encoding: `write`, and `read` (strict, to the last byte).
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_instant, read_int, read_length, read_map, write_int, write_long, write_map,
    write_string,
)
from pipeline.core.job import Event

FRAME = bytes.fromhex("c301b94ad57d5d884663")
FINGERPRINT = "6346885d7dd54ab9"

# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
_Event: Any = Event


class _EventDraft:
    __slots__ = _Event.__slots__


def read(data: bytes, pos: int) -> Event:
    job_id: str | None
    occurrence_id: str | None
    run: int | None
    command_id: str | None
    outcome: str | None
    reason: str | None
    detail: dict[str, str]
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    id = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    kind = data[pos:end].decode()
    pos = end
    at, pos = read_instant(data, pos)
    if data[pos:pos + 7] == b"\0\0\0\0\0\0\0":
        job_id = None
        occurrence_id = None
        run = None
        command_id = None
        outcome = None
        reason = None
        detail = {}
        pos += 7
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            job_id = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            job_id = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            occurrence_id = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            occurrence_id = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            run = None
        elif n == 2:
            n = data[pos]
            if n < 128:
                run = (n >> 1) ^ -(n & 1)
                pos += 1
            else:
                run, pos = read_int(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            command_id = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            command_id = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            outcome = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            outcome = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            reason = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            reason = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        if data[pos]:
            detail, pos = read_map(data, pos)
        else:
            detail = {}
            pos += 1
    if pos != len(data):
        raise Malformed("truncated" if pos > len(data) else "trailing bytes")
    value: Any = _EventDraft()
    value.id = id
    value.kind = kind
    value.at = at
    value.job_id = job_id
    value.occurrence_id = occurrence_id
    value.run = run
    value.command_id = command_id
    value.outcome = outcome
    value.reason = reason
    value.detail = detail
    value.__class__ = Event
    built: Event = value
    return built


def write(value: Event) -> bytes:
    return b"".join((
        FRAME,
        write_string(value.id, 'id'),
        write_string(value.kind, 'kind'),
        write_long(value.at, 'at'),
        NULL if value.job_id is None else SOME + write_string(value.job_id, 'job_id'),
        NULL if value.occurrence_id is None else SOME + write_string(value.occurrence_id, 'occurrence_id'),
        NULL if value.run is None else SOME + write_int(value.run, 'run'),
        NULL if value.command_id is None else SOME + write_string(value.command_id, 'command_id'),
        NULL if value.outcome is None else SOME + write_string(value.outcome, 'outcome'),
        NULL if value.reason is None else SOME + write_string(value.reason, 'reason'),
        write_map(value.detail, 'detail'),
    ))
