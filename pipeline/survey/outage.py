"""What was missed: a survey counted by bucket of due time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.errors import InvalidInput
from pipeline.survey.seen import Seen, State
from pipeline.survey.window import Window

ON_TIME_MS = 1_000
"""What has been emitted so soon after its due time fired on time."""
MOST_BUCKETS = 10_000
SHOWN_BUCKETS = 60
WIDTHS_MS = tuple(minutes * 60_000 for minutes in (1, 5, 15, 30, 60, 180, 360, 720, 1440, 10_080))
"""Widths that are chosen from when none is asked for."""
_FIRST_BITS = 7


class Delays:
    """Emit delays in ms, by which a share of them is bounded within 2 %: a few hundred numbers, however many come."""

    __slots__ = ("_counts", "count", "longest")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.longest = 0
        self.count = 0

    def add(self, ms: int) -> None:
        shift = max(0, ms.bit_length() - _FIRST_BITS)
        self._counts[((ms >> shift) + 1 << shift) - 1] += 1
        self.longest = max(self.longest, ms)
        self.count += 1

    def merge(self, other: Delays) -> None:
        self._counts.update(other._counts)
        self.longest = max(self.longest, other.longest)
        self.count += other.count

    def within(self, percent: int) -> int:
        """The ms within which so many per cent of them were emitted; 0 if there are none."""
        needed, seen = -(-self.count * percent // 100), 0
        for bound in sorted(self._counts):
            seen += self._counts[bound]
            if seen >= needed:
                return min(bound, self.longest)
        return 0


@dataclass(slots=True)
class Tally:
    """Occurrences of one bucket, or of all."""

    states: Counter[State] = field(default_factory=Counter)
    on_time: int = 0
    late: Delays = field(default_factory=Delays)
    skips: Counter[str] = field(default_factory=Counter)

    def add(self, seen: Seen) -> None:
        self.states[seen.state] += seen.times
        if seen.fired_at is not None:
            delay = seen.fired_at - seen.due_at
            if delay <= ON_TIME_MS:
                self.on_time += 1
            else:
                self.late.add(delay)
        elif seen.state is State.SKIPPED:
            self.skips[seen.reason] += seen.times

    def merge(self, other: Tally) -> None:
        self.states.update(other.states)
        self.on_time += other.on_time
        self.late.merge(other.late)
        self.skips.update(other.skips)

    @property
    def due(self) -> int:
        return self.states.total()

    @property
    def failed(self) -> int:
        """DESIGN §9: dead ones too."""
        return self.states[State.FAILED] + self.states[State.DEAD]


class Line(NamedTuple):
    """A bucket that begins at `at`, epoch ms."""

    at: int
    tally: Tally


def width_of(window: Window, asked_ms: int | None, bucket_ms: int) -> int:
    """The width of a bucket in ms: the one asked for, else the narrowest of some handy ones (`bucket_ms` first) that
    gives no more than can be taken in. InvalidInput('--by') for one that gives too many."""
    length = window.to_ms - window.from_ms
    if asked_ms is None:
        widths = (bucket_ms, *(width for width in WIDTHS_MS if width > bucket_ms))
        return next((width for width in widths if length <= width * SHOWN_BUCKETS), WIDTHS_MS[-1])
    if asked_ms <= 0:
        raise InvalidInput("--by", "must be more than zero")
    if length > asked_ms * MOST_BUCKETS:
        raise InvalidInput("--by", f"gives more than {MOST_BUCKETS} buckets: ask for wider ones")
    return asked_ms


def count(seens: Iterable[Seen], window: Window, width_ms: int) -> tuple[list[Line], Tally]:
    """A line for each bucket of the window, the first one cut short if it begins before it; and all together."""
    tallies = {at: Tally() for at in starts(window, width_ms)}
    for seen in seens:
        tallies[seen.due_at // width_ms * width_ms].add(seen)
    total = Tally()
    for tally in tallies.values():
        total.merge(tally)
    return [Line(max(at, window.from_ms), tally) for at, tally in tallies.items()], total


def starts(window: Window, width_ms: int) -> Iterator[int]:
    """Where the buckets of the window begin: at multiples of their width since the epoch."""
    yield from range(window.from_ms // width_ms * width_ms, window.to_ms, width_ms)
