"""When handlers began, kept where another process can read it meanwhile: about a microsecond a call, no system call."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from pipeline.core.errors import StoreUnreachable

VARIABLE = "BENCH_MARKS"
"""Of a process whose handlers keep marks: the directory. Not of the settings, which would tell of it as a typo."""
SUFFIX = ".marks"
LIMIT = 2_000_000
"""Marks of one process; the file is sparse, so what is not used costs nothing."""
_MARK = Struct("<qqq")


class Mark(NamedTuple):
    """One call of a handler: due and LogAppendTime of its work record (epoch ms by the store's clock), and when it
    began (epoch ns by this machine's)."""

    due: int
    emitted: int
    began: int

    def since_due(self, store_ahead: int) -> float:
        """ms, by the store's clock."""
        return self.began / 1e6 + store_ahead - self.due

    def since_emitted(self, store_ahead: int) -> float:
        return self.began / 1e6 + store_ahead - self.emitted


class Marks:
    """The marks of this process. Any of its threads may add."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        with path.open("wb+") as file:
            file.truncate(limit * _MARK.size)
            self._map = mmap.mmap(file.fileno(), 0)
        self._next = itertools.count()  # each thread gets a place of its own

    def add(self, due: int, emitted: int) -> None:
        """Now. struct.error if there are too many."""
        _MARK.pack_into(self._map, next(self._next) * _MARK.size, due, emitted, time.time_ns())


def of_environment(environment: Mapping[str, str] = os.environ) -> Marks | None:
    """None if nobody wants any from this process."""
    directory = environment.get(VARIABLE)
    return Marks(Path(directory) / f"{os.getpid()}{SUFFIX}") if directory else None


class MarkReader:
    """The marks of all processes that keep theirs in `directory`, as they come."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.marks: list[Mark] = []

    def count(self) -> int:
        """How many there are now. A process killed within `add` may leave a gap: what it added after that is not
        seen."""
        for path in self._directory.glob(f"*{SUFFIX}"):
            while found := _marks(path, self._read.get(path, 0)):
                self._read[path] = self._read.get(path, 0) + len(found)
                self.marks += found
        return len(self.marks)

    def wait(self, count: int, timeout_s: float, alive: Callable[[], None], pause_s: float = 0.1) -> None:
        """Until there are so many, looking once in `pause_s`. `alive` raises if whoever makes them has ended;
        StoreUnreachable if they do not come in time."""
        deadline = time.monotonic() + timeout_s
        while self.count() < count:
            alive()
            if time.monotonic() > deadline:
                raise StoreUnreachable(f"{len(self.marks)} of {count} handlers began in {timeout_s:.0f} s")
            time.sleep(pause_s)


def _marks(path: Path, start: int) -> list[Mark]:
    """From the one numbered `start` on; a thousand at most."""
    with path.open("rb") as file:
        file.seek(start * _MARK.size)
        data = file.read(1000 * _MARK.size)
    whole = itertools.starmap(Mark, _MARK.iter_unpack(data[: len(data) // _MARK.size * _MARK.size]))
    return list(itertools.takewhile(lambda mark: mark.began, whole))
