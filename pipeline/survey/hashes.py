"""Occurrences by their hashes: eight bytes each, on disk, and a set of a fixed size."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

BELOW = 6
FLAGS = (1 << BELOW) - 1
"""Bits of a hash that a caller may use for something else."""
HELD = 65_536
"""Hashes of a group at most, about, and in memory at a time."""
_SIEVE_BITS = 20
_BYTES = array("q").itemsize


class Sieve:
    """A set of occurrences in a megabyte. It may hold too many, and never too few."""

    __slots__ = ("_any", "_marks")

    def __init__(self) -> None:
        self._marks = bytearray(1 << _SIEVE_BITS)
        self._any = False

    def __bool__(self) -> bool:
        return self._any

    def __contains__(self, occurrence: bytes) -> bool:
        return self.holds(hash(occurrence))

    def holds(self, hashed: int) -> bool:
        return self._marks[hashed >> BELOW & ((1 << _SIEVE_BITS) - 1)] != 0

    def add(self, hashed: int) -> None:
        self._marks[hashed >> BELOW & ((1 << _SIEVE_BITS) - 1)] = 1
        self._any = True


class Hashes:
    """Takes hashes of occurrences (`hash` of their bytes, which is another one in each process) and gives them back in
    groups: the same of any two `Hashes` of one size come in the same group, in the order they came in."""

    def __init__(self, expected: int) -> None:
        """`expected`: about how many will come."""
        self._groups = [array("q") for _ in range(max(1, -(-expected // HELD)))]
        self._held = 0
        self._chunks: list[list[tuple[int, int]]] = [[] for _ in self._groups]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by exit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, hashes: Sequence[int]) -> None:
        groups, count = self._groups, len(self._groups)
        if count == 1:
            groups[0].extend(hashes)
        else:
            for each in hashes:
                groups[(each >> BELOW) % count].append(each)
        self._held += len(hashes)
        if self._held >= HELD:
            self._flush()

    def _flush(self) -> None:
        self._file.seek(0, 2)
        for group, chunks in zip(self._groups, self._chunks, strict=True):
            if group:
                chunks.append((self._file.tell(), len(group)))
                self._file.write(group.tobytes())
                del group[:]
        self._held = 0

    def groups(self) -> Iterator[Sequence[int]]:
        """All of them, group by group."""
        self._flush()
        for chunks in self._chunks:
            group = array("q")
            for at, length in chunks:
                self._file.seek(at)
                group.frombytes(self._file.read(length * _BYTES))
            yield group
