"""The one hash of the system: it decides shards, homes and work partitions, so it may never change.

Murmur2 exactly as `org.apache.kafka.common.utils.Utils.murmur2` computes it, made positive as
`Utils.toPositive` does (vectors: schemas/vectors/hash.json), so that any Kafka client can compute a home.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, unpack_from

SEED = 0x9747B28C
M = 0x5BD1E995
WORD = 0xFFFFFFFF
POSITIVE = 0x7FFFFFFF

_ID_LENGTH = 27
_ID_START = 8
_id_rest = Struct(f"<{_ID_START}x4I3B").unpack


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, made positive: 0 … 2**31 - 1."""
    length = len(data)
    if length == _ID_LENGTH:
        return _of_id(data)
    words = length >> 2
    h = _begun(length, data[: words << 2])
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * M & WORD
    h = (h ^ h >> 13) * M & WORD
    return (h ^ h >> 15) & POSITIVE


def _begun(length: int, data: bytes) -> int:
    """The state after `data`, whole words that begin something of `length` bytes."""
    h = SEED ^ length
    for k in unpack_from(f"<{len(data) >> 2}I", data):
        k = k * M & WORD
        # The products are cut to 32 bits after the xor: the same bits, one mask fewer.
        h = (h * M ^ (k ^ k >> 24) * M) & WORD
    return h


@lru_cache(maxsize=4096)
def id_begun(start: bytes) -> int:
    """The state after the first 8 bytes of an id of 27: the same for all that are due within half a minute."""
    return _begun(_ID_LENGTH, start)


def _of_id(data: bytes) -> int:
    """Of an id of 27 bytes, unrolled: whoever creates, files or routes a job pays for this."""
    a, b, c, d, e, f, g = _id_rest(data)
    h: int
    a = a * M & WORD
    h = (id_begun(data[:_ID_START]) * M ^ (a ^ a >> 24) * M) & WORD
    b = b * M & WORD
    h = (h * M ^ (b ^ b >> 24) * M) & WORD
    c = c * M & WORD
    h = (h * M ^ (c ^ c >> 24) * M) & WORD
    d = d * M & WORD
    h = (h * M ^ (d ^ d >> 24) * M) & WORD
    h = (h ^ (e | f << 8 | g << 16)) * M & WORD
    h = (h ^ h >> 13) * M & WORD
    return (h ^ h >> 15) & POSITIVE


def text_hash(text: str) -> int:
    """`murmur2` over the UTF-8 bytes of `text`. UnicodeEncodeError if it has a lone surrogate."""
    return murmur2(text.encode())
