"""Avro's binary encoding, strict: how each type is read and written (Avro 1.12, "Binary Encoding").

`pipeline.codec.compiler` makes readers and writers of whole records from these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pipeline.core.errors import InvalidInput

Read = Callable[[bytes, int], tuple[Any, int]]
"""(data, where to start) -> (value, where it ended). Raises Malformed, IndexError (truncated), ValueError."""
Write = Callable[[Any], bytes]

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class Malformed(ValueError):
    """The bytes break a rule of the encoding; the codec names the type and makes it an Undecodable."""


# -- reading ------------------------------------------------------------------------------------------------
# A slice past the end is silently short, but leaves `at` past the end too: the next read is an IndexError,
# and whoever reads last compares `at` with the length.


def read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 127, 7
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise Malformed("integer of more than ten bytes")
    if byte == 0:
        raise Malformed("over-long integer")
    value |= byte << shift
    if value >> 64:
        raise Malformed("integer of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def read_int(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_long(data, at)
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise Malformed("int of more than 32 bits")
    return value, at


def read_length(data: bytes, at: int) -> tuple[int, int]:
    length, at = read_long(data, at)
    if length < 0:
        raise Malformed("negative length")
    return length, at


def read_string(data: bytes, at: int) -> tuple[str, int]:
    length, at = read_length(data, at)
    return data[at : at + length].decode(), at + length


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_length(data, at)
    return data[at : at + length], at + length


def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Malformed("boolean that is neither 0 nor 1")
    return data[at] == 1, at + 1


def array_reader(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        items: list[Any] = []
        while data[at]:
            count, at, end = _read_block(data, at)
            for _ in range(count):
                value, at = item(data, at)
                items.append(value)
            _check_block(at, end)
        return tuple(items), at + 1

    return read


def map_reader(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        entries: dict[str, Any] = {}
        while data[at]:
            count, at, end = _read_block(data, at)
            for _ in range(count):
                key, at = read_string(data, at)
                if key in entries:
                    raise Malformed(f"map key {key!r:.40} twice")
                entries[key], at = item(data, at)
            _check_block(at, end)
        return entries, at + 1

    return read


def _read_block(data: bytes, at: int) -> tuple[int, int, int | None]:
    """(number of items, where they start, where they must end if the writer said so)."""
    count, at = read_long(data, at)
    if count >= 0:
        return count, at, None
    size, at = read_long(data, at)
    return -count, at, at + size


def _check_block(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise Malformed("block of another size than it says")


# -- writing ------------------------------------------------------------------------------------------------

_SHORT = [bytes((n,)) for n in range(128)]


def _varint(zigzag: int) -> bytes:
    if zigzag < 128:
        return _SHORT[zigzag]
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def write_long(value: int, field: str) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag >> 64:
        raise InvalidInput(field, f"{value} does not fit 64 bits")
    return _varint(zigzag)


def write_int(value: int, field: str) -> bytes:
    zigzag = (value << 1) ^ (value >> 31)
    if zigzag >> 32:
        raise InvalidInput(field, f"{value} does not fit 32 bits")
    return _varint(zigzag)


def write_bytes(value: bytes) -> bytes:
    n = len(value) << 1
    return (_SHORT[n] if n < 128 else _varint(n)) + value


def write_string(value: str) -> bytes:
    data = value.encode()
    n = len(data) << 1
    return (_SHORT[n] if n < 128 else _varint(n)) + data


def write_boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def write_array(items: Collection[Any], write: Write) -> bytes:
    if not items:
        return b"\0"
    return b"".join((_varint(len(items) << 1), *map(write, items), b"\0"))


def write_map(entries: Mapping[str, Any], write: Write) -> bytes:
    if not entries:
        return b"\0"
    items = (write_string(key) + write(value) for key, value in entries.items())
    return b"".join((_varint(len(entries) << 1), *items, b"\0"))
