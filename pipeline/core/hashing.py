"""The one hash of the system: it decides shards, homes and work partitions, so it may never change.

Murmur2 exactly as `org.apache.kafka.common.utils.Utils.murmur2` computes it, made positive as
`Utils.toPositive` does (vectors: schemas/vectors/hash.json), so that any Kafka client can compute a home.
"""

from __future__ import annotations

from struct import unpack_from

_SEED = 0x9747B28C
_M = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of `data`, made positive: 0 … 2**31 - 1."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in unpack_from(f"<{words}I", data):
        k = k * _M & _WORD
        # The products are cut to 32 bits after the xor: the same bits, one mask fewer.
        h = (h * _M ^ (k ^ k >> 24) * _M) & _WORD
    if length & 3:
        h = (h ^ int.from_bytes(data[words << 2 :], "little")) * _M & _WORD
    h = (h ^ h >> 13) * _M & _WORD
    return (h ^ h >> 15) & 0x7FFFFFFF


def text_hash(text: str) -> int:
    """`murmur2` over the UTF-8 bytes of `text`. UnicodeEncodeError if it has a lone surrogate."""
    return murmur2(text.encode())
