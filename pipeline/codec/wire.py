"""Avro's binary encoding, strict: how each type that a Run needs is read and written (Avro 1.12, "Binary Encoding").

`pipeline/codec/run_wire.py` is made of these. A reader takes (data, where to start) and gives (value, where it
ended); it takes only the bytes that a writer makes of the value. It raises Malformed, UnicodeDecodeError, or
IndexError on bytes that end too soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import TypeVar

from pipeline.core.errors import InvalidInput

T = TypeVar("T")

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class Malformed(ValueError):
    """The bytes break a rule of the encoding; the codec names the type and makes it an Undecodable."""


# -- reading ------------------------------------------------------------------------------------------------
# A slice past the end is silently short, but leaves `at` past the end too: the next read is an IndexError,
# and whoever reads last compares `at` with the length.

_three_pairs = Struct("<HHH").unpack_from
_LOW = list(range(1 << 14))
_FOURTEEN = [_LOW[pair & 0x7F | pair >> 1 & 0x3F80] for pair in range(1 << 16)]
"""By two bytes of a variable-length integer, little-endian: the 14 bits in them."""


def read_instant(data: bytes, at: int) -> tuple[int, int]:
    """`read_long`, quick for what is six bytes long: epoch milliseconds from 1987 to 2039."""
    try:
        a, b, c = _three_pairs(data, at)
    except StructError:
        return read_long(data, at)
    if a & 0x8081 == 0x8080 and b & 0x8080 == 0x8080 and c & 0x8080 == 0x80 and c > 0xFF:
        return (_FOURTEEN[a] | _FOURTEEN[b] << 14 | _FOURTEEN[c] << 28) >> 1, at + 6
    return read_long(data, at)


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
        raise Malformed(f"{value} does not fit 32 bits")
    return value, at


def read_length(data: bytes, at: int) -> tuple[int, int]:
    length, at = read_long(data, at)
    if length < 0:
        raise Malformed("negative length")
    return length, at


def read_string(data: bytes, at: int) -> tuple[str, int]:
    low = data[at]
    if low & 129:  # 64 bytes and more, or no length at all
        length, at = read_length(data, at)
        end = at + length
    else:
        at += 1
        end = at + (low >> 1)
    return data[at:end].decode(), end


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    low = data[at]
    if low & 129 == 128 and 0 < (high := data[at + 1]) < 128:  # 64 to 8,191 bytes: most payloads
        at += 2
        end = at + (low >> 1 & 63 | high << 6)
    else:
        length, at = read_length(data, at)
        end = at + length
    return data[at:end], end


def read_map(data: bytes, at: int) -> tuple[dict[str, str], int]:
    """A map of strings in one block, as writers write it. What it takes is bounded by its bytes, not its count."""
    return _read_entries(data, at, read_string)


def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Malformed("boolean that is neither 0 nor 1")
    return data[at] == 1, at + 1


def read_longs(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    return read_array(data, at, read_long)


def read_numbers(data: bytes, at: int) -> tuple[dict[str, int], int]:
    """A map of longs in one block."""
    return _read_entries(data, at, read_long)


def read_lists(data: bytes, at: int) -> tuple[dict[str, tuple[str, ...]], int]:
    """A map of arrays of strings in one block."""
    return _read_entries(data, at, _read_strings)


def _read_strings(data: bytes, at: int) -> tuple[tuple[str, ...], int]:
    return read_array(data, at, read_string)


def _read_entries(
    data: bytes, at: int, read: Callable[[bytes, int], tuple[T, int]]
) -> tuple[dict[str, T], int]:
    count, at = read_length(data, at)
    entries: dict[str, T] = {}
    if count == 0:
        return entries, at
    for _ in range(count):
        key, at = read_string(data, at)
        if key in entries:
            raise Malformed(f"map key {key!r:.40} twice")
        entries[key], at = read(data, at)
    if data[at]:
        raise Malformed("map of several blocks")
    return entries, at + 1


def read_array(
    data: bytes, at: int, read: Callable[[bytes, int], tuple[T, int]]
) -> tuple[tuple[T, ...], int]:
    """An array in one block, of items that `read` reads; each takes at least a byte, so its count proves nothing."""
    count, at = read_length(data, at)
    items: list[T] = []
    if count == 0:
        return (), at
    for _ in range(count):
        item, at = read(data, at)
        items.append(item)
    if data[at]:
        raise Malformed("array of several blocks")
    return tuple(items), at + 1


# -- writing ------------------------------------------------------------------------------------------------

_SHORT = [bytes((n,)) for n in range(128)]
_six = Struct("6B").pack
_SIX_FROM, _SIX_TO = 1 << 35, 1 << 42
NULL = _SHORT[0]
SOME = _SHORT[2]
"""Before the value of ["null", X]."""
EMPTY = _SHORT[0]
"""A map or an array of nothing."""


def _varint(zigzag: int) -> bytes:
    if zigzag < 128:
        return _SHORT[zigzag]
    if zigzag < 1 << 14:
        return bytes((zigzag & 127 | 128, zigzag >> 7))
    if _SIX_FROM <= zigzag < _SIX_TO:
        return _six(
            zigzag & 127 | 128,
            zigzag >> 7 & 127 | 128,
            zigzag >> 14 & 127 | 128,
            zigzag >> 21 & 127 | 128,
            zigzag >> 28 & 127 | 128,
            zigzag >> 35,
        )
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_MORE = [bytes((n | 128,)) for n in range(128)]
_ABOVE: dict[int, bytes] = {}
_ABOVE_LIMIT = 4096
_HIGHEST = LONG_MAX >> 13


def write_instant(ms: int) -> bytes:
    """`write_long` of what is at least 2**13 and no more than LONG_MAX, quick for many numbers of which the bits
    above the lowest 13 are the same: epoch milliseconds, offsets, tokens."""
    # Two small tables, not one of 8,192: what misses the processor's cache costs more than it saves.
    return _MORE[ms << 1 & 127] + _MORE[ms >> 6 & 127] + (_ABOVE.get(ms >> 13) or _above(ms >> 13))


def _above(high: int) -> bytes:
    """What stands behind the lowest 14 bits; remembered, for they stand for eight seconds."""
    if len(_ABOVE) >= _ABOVE_LIMIT:
        _ABOVE.clear()
    written = _ABOVE[high] = _varint(high)
    return written


def write_long(value: int, field: str) -> bytes:
    high = value >> 13
    above = _ABOVE.get(high) or (_above(high) if 0 < high <= _HIGHEST else None)
    if above is not None:
        return _MORE[value << 1 & 127] + _MORE[value >> 6 & 127] + above
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag >> 64:
        raise InvalidInput(field, f"{value} does not fit 64 bits")
    return _varint(zigzag)


def write_int(value: int, field: str) -> bytes:
    zigzag = (value << 1) ^ (value >> 31)
    if zigzag >> 32:
        raise InvalidInput(field, f"{value} does not fit 32 bits")
    return _varint(zigzag)


_SIZES = [_varint(length << 1) for length in range(1024)]


def write_bytes(value: bytes) -> bytes:
    n = len(value)
    return (_SIZES[n] if n < 1024 else _varint(n << 1)) + value


def write_string(value: str, field: str = "text") -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field, f"{value!r:.80} is not valid Unicode") from None
    n = len(data)
    return (_SIZES[n] if n < 1024 else _varint(n << 1)) + data


def write_map(entries: Mapping[str, str], field: str = "map") -> bytes:
    if not entries:
        return EMPTY
    items = (write_string(key, field) + write_string(value, field) for key, value in entries.items())
    return b"".join((_varint(len(entries) << 1), *items, EMPTY))


def write_array(items: Sequence[T], write: Callable[[T], bytes]) -> bytes:
    return b"".join((_varint(len(items) << 1), *map(write, items), EMPTY)) if items else EMPTY


def write_boolean(value: bool) -> bytes:
    return _SHORT[value]


def write_longs(values: Sequence[int], field: str) -> bytes:
    return write_array(values, lambda value: write_long(value, field))


def write_numbers(entries: Mapping[str, int], field: str) -> bytes:
    if not entries:
        return EMPTY
    items = (write_string(key, field) + write_long(value, field) for key, value in entries.items())
    return b"".join((_varint(len(entries) << 1), *items, EMPTY))


def write_lists(entries: Mapping[str, Sequence[str]], field: str) -> bytes:
    if not entries:
        return EMPTY
    items = (
        write_string(key, field) + write_array(values, lambda value: write_string(value, field))
        for key, values in entries.items()
    )
    return b"".join((_varint(len(entries) << 1), *items, EMPTY))
