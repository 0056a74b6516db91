"""Offers: what a worker that lost its partition would have committed, for the owner to commit (DESIGN §7, lease).

An offer is the records of an outcome in one body, cut into chunks: `f/<occurrence>/<run>/<token>/<chunk>` on the acks
partition of the run. It is complete with the chunk that says so, and counts only as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import Offered
from pipeline.ports import Headers, Put

CHUNK_BYTES = 1024 * 1024
CHUNKS_LIMIT = 64
"""Chunks of one offer at most: more than any outcome may be made of."""
_NONE = -1
_PUT = struct.Struct(">Hi")
_SIZE = struct.Struct(">i")
_COUNT = struct.Struct(">H")


class OfferId(NamedTuple):
    """The attempt that an offer comes from."""

    occurrence_id: str
    run: int
    token: int


def offer(id_: OfferId, worker: str, puts: Sequence[Put], topic: str, partition: int) -> list[Put]:
    """The chunks of an offer, in order."""
    body = pack(puts)
    pieces = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
    return [
        Put(topic, partition, keys.offered_key(*id_, number), codec.OFFERED.encode(chunk))
        for number, piece in enumerate(pieces)
        for chunk in (
            Offered(
                occurrence_id=id_.occurrence_id,
                run=id_.run,
                token=id_.token,
                worker=worker,
                chunk=number,
                last=number == len(pieces) - 1,
                body=piece,
            ),
        )
    ]


def read_chunk(key: bytes, value: bytes) -> Offered:
    """A chunk that is what its record key says. Undecodable."""
    chunk = codec.OFFERED.decode(value)
    if not 0 <= chunk.chunk < CHUNKS_LIMIT:
        raise Undecodable(f"chunk {chunk.chunk} of an offer")
    if key != keys.offered_key(chunk.occurrence_id, chunk.run, chunk.token, chunk.chunk):
        raise Undecodable(f"an offer under the key {key[:120]!r}")
    return chunk


class Offer:
    """Chunks of one offer as they are read. `since` = offset of the first one: whoever takes over reads from there."""

    __slots__ = ("_chunks", "_count", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self._chunks: dict[int, bytes] = {}
        self._count: int | None = None

    def add(self, chunk: Offered) -> None:
        self._chunks[chunk.chunk] = chunk.body
        if chunk.last:
            self._count = chunk.chunk + 1

    @property
    def complete(self) -> bool:
        return self._count is not None and all(number in self._chunks for number in range(self._count))

    @property
    def size(self) -> int:
        return sum(map(len, self._chunks.values()))

    def puts(self) -> list[Put]:
        """The records offered. Undecodable if nobody packed these bytes."""
        return unpack(b"".join(self._chunks[number] for number in range(self._count or 0)))


def pack(puts: Iterable[Put]) -> bytes:
    """Records as bytes: numbers big-endian; a size of -1 stands for null."""
    return b"".join(piece for put in puts for piece in _packed(put))


def _packed(put: Put) -> Iterator[bytes]:
    topic, headers = put.topic.encode(), put.headers or []
    yield _PUT.pack(len(topic), put.partition)
    yield topic
    yield from _sized(put.key)
    yield from _sized(put.value)
    yield _COUNT.pack(len(headers))
    for name, value in headers:
        yield from _sized(name.encode())
        yield from _sized(value)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_SIZE.pack(_NONE), b"") if data is None else (_SIZE.pack(len(data)), data)


def unpack(data: bytes) -> list[Put]:
    """The records of `pack`. Undecodable for anything else."""
    puts: list[Put] = []
    source = _Source(data)
    while not source.ended:
        size, partition = _PUT.unpack(source.take(_PUT.size))
        topic, key, value = source.text(size), source.sized(), source.sized()
        (count,) = _COUNT.unpack(source.take(_COUNT.size))
        headers: Headers = [(source.name(), source.sized() or b"") for _ in range(count)]
        puts.append(Put(topic, partition, key or b"", value, headers or None))
    return puts


class _Source:
    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def ended(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise Undecodable("an offer that ends in the middle of a record")
        piece, self._at = self._data[self._at : end], end
        return piece

    def sized(self) -> bytes | None:
        (size,) = _SIZE.unpack(self.take(_SIZE.size))
        return None if size == _NONE else self.take(size)

    def name(self) -> str:
        return self._decoded(self.sized() or b"")

    def text(self, size: int) -> str:
        return self._decoded(self.take(size))

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise Undecodable("an offer with a name that is no text") from None
