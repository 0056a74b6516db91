"""Made by tools/generate_codec.py from schemas/highest.avsc: do not edit, run it again.

Of a Highest framed in single-object encoding: `write`, and `read` (strict, to the last byte).
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any

from pipeline.codec.wire import (
    Malformed, read_int, read_length, write_int, write_string,
)
from pipeline.core.job import Highest

FRAME = bytes.fromhex("c30123e61d5f3a893464")
FINGERPRINT = "6434893a5f1de623"

# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
_Highest: Any = Highest


class _HighestDraft:
    __slots__ = _Highest.__slots__


def read(data: bytes, pos: int) -> Highest:
    n = data[pos]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        run, pos = read_int(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    queue = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n < 128:
        work_partition = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        work_partition, pos = read_int(data, pos)
    if pos != len(data):
        raise Malformed("truncated" if pos > len(data) else "trailing bytes")
    value: Any = _HighestDraft()
    value.run = run
    value.queue = queue
    value.work_partition = work_partition
    value.__class__ = Highest
    built: Highest = value
    return built


def write(value: Highest) -> bytes:
    return b"".join((
        FRAME,
        write_int(value.run, 'run'),
        write_string(value.queue, 'queue'),
        write_int(value.work_partition, 'work_partition'),
    ))
