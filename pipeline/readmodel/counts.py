"""Numbers that are kept while folding: how many jobs there are of each kind, when they are due, and what happened
within the last two hours."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.rows import ACTIVITY, STATUSES, TOTALS, after, hour_key, minute_key
from pipeline.readmodel.shelves import Shelves

KEPT_MINUTES = 120
FIGURES = len(STATUSES) + 1
"""Of a bucket: jobs by status, in the order of `STATUSES`, and how many of them were late."""
_BUCKET = Struct(f">{FIGURES}I")
_NOTHING = bytes(_BUCKET.size)
_STEPS = 8
"""Lateness is told to an eighth of an octave, 9 %."""


class Totals:
    """How many jobs there are, and how many rows of what grows without end. Written whole with every batch."""

    def __init__(self, rows: RocksRows) -> None:
        value = rows.get(TOTALS)
        told = {} if value is None else json.loads(value)
        self.shelves = Shelves(told.get("shelves", {}))
        self.waiting = Counter(dict(told.get("waiting", ())))
        """By the number of a queue: runs that stand on its work topic and that nobody has started."""
        self.ended: int = told.get("ended", 0)
        self.letters: int = told.get("letters", 0)
        self.events: tuple[int, int] = tuple(told.get("events", (0, 0)))
        """Numbers of the first event that is kept, and of the next one."""

    def packed(self) -> bytes:
        told = {
            "shelves": self.shelves.told(),
            "waiting": [*self.waiting.items()],
            "ended": self.ended,
            "letters": self.letters,
            "events": self.events,
        }
        return json.dumps(told, separators=(",", ":")).encode()


class Buckets:
    """Changes to the counts by due time."""

    def __init__(self, rows: RocksRows) -> None:
        self._rows = rows
        self._changes: dict[int, list[int]] = {}

    def add(self, minute: int, status: int, number: int, late: int) -> None:
        change = self._changes.get(minute)
        if change is None:
            change = self._changes[minute] = [0] * FIGURES
        change[status - 1] += number
        change[-1] += late

    def take_rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows that follow from the changes, which are forgotten."""
        changes, self._changes = self._changes, {}
        hours: dict[bytes, list[int]] = {}
        minutes: dict[bytes, list[int]] = {}
        for minute, change in changes.items():
            if any(change):
                minutes[minute_key(minute)] = change
                hour = hours.setdefault(hour_key(minute), [0] * FIGURES)
                hours[hour_key(minute)] = [a + b for a, b in zip(hour, change, strict=True)]
        both = {**minutes, **hours}
        for (key, change), value in zip(both.items(), self._rows.get_all([*both]), strict=True):
            before = _BUCKET.unpack(value or _NOTHING)
            figures = [max(0, a + b) for a, b in zip(before, change, strict=True)]
            yield key, _BUCKET.pack(*figures) if any(figures) else None


def figures_of(value: bytes) -> tuple[int, ...]:
    """Of a bucket's row."""
    return _BUCKET.unpack(value)


# -- what happened ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Activity:
    """What happened within one minute of the store's time. `late`: how many runs were late by which step of
    lateness; `handlers`: (succeeded, failed, dead) by number; `queues`: (started, ended) by number."""

    fired: int = 0
    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    late: Counter[int] = field(default_factory=Counter)
    handlers: dict[int, list[int]] = field(default_factory=dict)
    queues: dict[int, list[int]] = field(default_factory=dict)

    def packed(self) -> bytes:
        told = [
            self.fired, self.succeeded, self.failed, self.dead, [*self.late.items()],
            [*self.handlers.items()], [*self.queues.items()],
        ]  # fmt: skip
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def read(cls, value: bytes) -> Activity:
        fired, succeeded, failed, dead, late, handlers, queues = json.loads(value)
        return cls(fired, succeeded, failed, dead, Counter(dict(late)), dict(handlers), dict(queues))


class Recent:
    """The minutes of the last two hours before the newest that was heard of."""

    def __init__(self, rows: RocksRows) -> None:
        found = rows.scan(ACTIVITY, after(ACTIVITY))
        self.minutes = {int.from_bytes(key[1:], "big"): Activity.read(value) for key, value in found}
        self._newest = max(self.minutes, default=0)
        self._touched: set[int] = set()

    def at(self, at_ms: int) -> Activity | None:
        """The minute of an instant, to be changed; None: it is long past."""
        minute = at_ms // 60_000
        if minute > self._newest:
            self._newest = minute
        elif minute <= self._newest - KEPT_MINUTES:
            return None
        self._touched.add(minute)
        found = self.minutes.get(minute)
        if found is None:
            found = self.minutes[minute] = Activity()
        return found

    def take_rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        oldest = self._newest - KEPT_MINUTES
        for minute in [minute for minute in self.minutes if minute <= oldest]:
            # Replaced, not changed, so that whoever reads meanwhile goes on with what was.
            self.minutes = {n: each for n, each in self.minutes.items() if n > oldest}
            self._touched.discard(minute)
            yield _activity_key(minute), None
        for minute in self._touched:
            yield _activity_key(minute), self.minutes[minute].packed()
        self._touched = set()


def _activity_key(minute: int) -> bytes:
    return ACTIVITY + minute.to_bytes(4, "big")


def step_of(lateness_ms: int) -> int:
    """The step of lateness that some ms are: 0 for none."""
    return 0 if lateness_ms < 1 else 1 + int(math.log2(lateness_ms) * _STEPS)


def percentile(late: Mapping[int, int], share: float) -> int | None:
    """ms of lateness that so many are not over, to 9 %; None if there is none."""
    wanted = sum(late.values()) * share
    seen = 0
    for step in sorted(late):
        seen += late[step]
        if seen >= wanted:
            return 0 if step == 0 else round(2 ** ((step - 0.5) / _STEPS))
    return None


def merged(activities: Iterable[Activity]) -> Activity:
    """All that happened within several."""
    total = Activity()
    for each in activities:
        total.fired += each.fired
        total.succeeded += each.succeeded
        total.failed += each.failed
        total.dead += each.dead
        total.late.update(each.late.copy())
        for mine, its in ((total.handlers, each.handlers), (total.queues, each.queues)):
            for number, counts in [*its.items()]:
                known = mine.get(number, [0] * len(counts))
                mine[number] = [a + b for a, b in zip(known, counts, strict=True)]
    return total
