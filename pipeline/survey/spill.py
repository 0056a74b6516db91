"""Rows grouped by occurrence in little memory: an external hash partition, as databases join what does not fit."""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self
from zlib import crc32

ROWS = 50_000
"""Rows in memory at a time, some 400 bytes each."""

Row = tuple[Any, ...]
"""Plain tuples of plain values, the occurrence (or record key) as bytes first."""


class Spill:
    """Takes rows and gives them back in groups: all rows of one occurrence come together, in the order they came in.

    While they are few they stay in memory. Else they go, chunk by chunk, to a file that has no name and that nobody
    else can open; marshal is safe there, since it only ever reads what this process has written.
    """

    def __init__(self, expected: int) -> None:
        """`expected`: the most rows that may come."""
        self._groups: list[list[Row]] = [[] for _ in range(max(1, -(-expected // ROWS)))]
        self._held = 0
        self._chunks: list[list[tuple[int, int]]] = [[] for _ in self._groups]
        self._file = tempfile.TemporaryFile() if len(self._groups) > 1 else None  # noqa: SIM115 -- closed by exit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, rows: Sequence[Row]) -> None:
        groups = self._groups
        if self._file is None:
            groups[0] += rows
            return
        count = len(groups)
        for row in rows:
            groups[crc32(row[0]) % count].append(row)
        self._held += len(rows)
        if self._held >= ROWS:
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        for group, chunks in zip(self._groups, self._chunks, strict=True):
            if group:
                data = marshal.dumps(group)
                chunks.append((self._file.tell(), len(data)))
                self._file.write(data)
                group.clear()
        self._held = 0

    def groups(self) -> Iterator[list[Row]]:
        """All rows, group by group; nothing may be added any more."""
        if self._file is None:
            yield self._groups.pop()
            return
        self._flush()
        for chunks in self._chunks:
            yield [row for place in chunks for row in self._chunk(*place)]

    def _chunk(self, at: int, length: int) -> list[Row]:
        assert self._file is not None
        self._file.seek(at)
        rows: list[Row] = marshal.loads(self._file.read(length))  # noqa: S302 -- our own bytes, see above
        return rows
