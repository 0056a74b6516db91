"""What a replay is about: one survey of its window, counted by outcome and handler, and the places of what is to run
again, kept in a file without a name, so that memory does not follow their number."""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, Self

from pipeline.survey import Filter, Ground, Part, State, Window, parts, survey_part

REPLAYABLE = frozenset({State.SUCCEEDED, State.FAILED, State.DEAD, State.CANCELLED, State.UNACKED})
"""States of which a replay may run occurrences; the others have a run ahead of them, or never had one."""
WAITING = frozenset({State.WAITING, State.RUNNING, State.RETRYING})
_DEAD = frozenset({State.DEAD, State.FAILED})
_BYTES = array("q").itemsize
PAGE = 10_000


class Spot(NamedTuple):
    """Where the run of one occurrence stands, and whether it ended dead."""

    offset: int
    dead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What is chosen of one work partition: `count` places from `start` in the file on, the last of them at offset
    `last`. `acks` = where its acks partition ended before they were looked at."""

    part: Part
    start: int
    count: int
    last: int
    acks: int


@dataclass(slots=True)
class Tally:
    """Occurrences of the window that fired, by state, and by handler and state."""

    states: Counter[str] = field(default_factory=Counter)
    handlers: dict[str, Counter[str]] = field(default_factory=dict)
    matched: int = 0
    """Those that are to be replayed."""

    def add(self, handler: str, state: State, wanted: bool) -> None:
        self.states[state.value] += 1
        self.handlers.setdefault(handler, Counter())[state.value] += 1
        self.matched += wanted

    @property
    def waiting(self) -> int:
        """Those that a worker will take without a replay."""
        return sum(self.states[state.value] for state in WAITING)

    def view(self) -> Mapping[str, object]:
        """As JSON shows it, the most frequent handlers first."""
        by_size = sorted(self.handlers.items(), key=lambda pair: (-pair[1].total(), pair[0]))
        return {"outcomes": dict(self.states), "handlers": {name: dict(counts) for name, counts in by_size}}


class Chosen:
    """The tally, and the places of what matched. Closed when it is left."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.stretches: list[Stretch] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by __exit__
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, part: Part, acks: int, spots: list[int]) -> None:
        """`spots` are those of a partition in ascending order, as `offset * 2 + dead`."""
        array("q", spots).tofile(self._file)
        last = spots[-1] >> 1 if spots else -1
        stretch = Stretch(part=part, start=self._size, count=len(spots), last=last, acks=acks)
        self.stretches.append(stretch)
        self._size += len(spots)

    def spots(self, stretch: Stretch, since: int = 0) -> Iterator[list[Spot]]:
        """Its places from this offset on in ascending order, page by page."""
        for first in range(0, stretch.count, PAGE):
            page = array("q")
            self._file.seek((stretch.start + first) * _BYTES)
            page.fromfile(self._file, min(PAGE, stretch.count - first))
            spots = [Spot(each >> 1, bool(each & 1)) for each in page]
            if spots[-1].offset >= since:
                yield [spot for spot in spots if spot.offset >= since]


def choose(
    ground: Ground, window: Window, wanted: Filter, tell: Callable[[int, int], None] = lambda done, of: None
) -> Chosen:
    """Survey the window. `tell(partitions read, of all)`. StoreUnreachable, NotFound."""
    chosen = Chosen()
    every = parts(ground, wanted)
    whatever_outcome = replace(wanted, outcomes=frozenset())
    for number, part in enumerate(every):
        tell(number, len(every))
        acks = ground.scan.span(ground.names.acks(part.queue), part.partition).end
        spots = []
        for seen in survey_part(ground, part, window, whatever_outcome):
            take = seen.state in REPLAYABLE and wanted.wants(seen.state)
            chosen.tally.add(seen.handler, seen.state, take)
            if take:
                spots.append(seen.offset << 1 | (seen.state in _DEAD))
        spots.sort()
        chosen.add(part, acks, spots)
    tell(len(every), len(every))
    return chosen
