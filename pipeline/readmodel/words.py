"""Handlers, queues and workers by numbers: the same few stand in every row."""

from __future__ import annotations

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.rows import WORD, after

HANDLER, QUEUE, WORKER = b"h", b"q", b"w"
MOST = 60_000
"""Words of a kind that get a number: whoever may append can make up any."""
OTHER = 65_535
"""The number of those that have none."""


class Words:
    """Numbers are given by the thread that folds; any thread reads."""

    def __init__(self, rows: RocksRows) -> None:
        self._numbers: dict[tuple[bytes, str], int] = {}
        self._words: dict[tuple[bytes, int], str] = {}
        self._counts = {HANDLER: 0, QUEUE: 0, WORKER: 0}
        self._new: dict[bytes, bytes | None] = {}
        for key, value in rows.scan(WORD, after(WORD)):
            self._learn(key[1:2], int.from_bytes(key[2:], "big"), value.decode("utf-8", "surrogateescape"))

    def _learn(self, kind: bytes, number: int, word: str) -> None:
        self._numbers[kind, word], self._words[kind, number] = number, word
        self._counts[kind] = max(self._counts[kind], number + 1)

    def number(self, kind: bytes, word: str) -> int:
        """Its number; a new one if it has none yet."""
        found = self._numbers.get((kind, word))
        if found is not None:
            return found
        number = self._counts[kind]
        if number >= MOST:
            return OTHER
        self._learn(kind, number, word)
        self._new[WORD + kind + number.to_bytes(2, "big")] = word.encode("utf-8", "surrogateescape")
        return number

    def known(self, kind: bytes, word: str) -> int | None:
        """Its number; None if nothing has it, or one of those without a number."""
        return self._numbers.get((kind, word))

    def word(self, kind: bytes, number: int) -> str | None:
        """None: one of those that have no number."""
        return self._words.get((kind, number))

    def wanted(self, kind: bytes, word: str) -> int | None:
        """The number that rows of it have: OTHER, if it may be among those without a number; None: there are none."""
        number = self._numbers.get((kind, word))
        return OTHER if number is None and self._counts[kind] >= MOST else number

    def take_new(self) -> dict[bytes, bytes | None]:
        """The rows of those that are new since the last time."""
        new, self._new = self._new, {}
        return new
