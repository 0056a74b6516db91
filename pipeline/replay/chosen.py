"""What a replay is about: one survey of its window, counted by outcome and handler, and the places of what is to run
again, kept in a file without a name, so that memory does not follow their number.

Of the jobs that had one key after the other only the latest is run again: a key has one job at a time, and what the
earlier ones were to do has been asked for anew since.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import NamedTuple, Self

from pipeline.ports import Span
from pipeline.survey import Filter, Ground, Part, State, Window, parts, survey_part
from pipeline.survey.reading import SLACK_MS
from pipeline.survey.spill import Row, Spill

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
    key_taken: int = 0
    """Those that would be, if their key had not had another job since."""

    def add(self, handler: str, state: State) -> None:
        self.states[state.value] += 1
        self.handlers.setdefault(handler, Counter())[state.value] += 1

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
    with ExitStack() as stack:
        chosen = stack.enter_context(Chosen())
        every = parts(ground, wanted)
        for number, part in enumerate(every):
            tell(number, len(every))
            acks = ground.scan.span(ground.names.acks(part.queue), part.partition).end
            spots = sorted(_spots(ground, part, window, wanted, chosen.tally))
            chosen.tally.matched += len(spots)
            chosen.add(part, acks, spots)
        tell(len(every), len(every))
        stack.pop_all()
        return chosen


def _spots(ground: Ground, part: Part, window: Window, wanted: Filter, tally: Tally) -> Iterator[int]:
    """What is to be run again of one work partition, as `Chosen.add` takes it; all of it is told to the tally."""
    whatever_outcome = replace(wanted, outcomes=frozenset())
    span = ground.scan.span(ground.names.work(part.queue), part.partition, window.from_ms - SLACK_MS)
    with Spill(2 * (span.end - span.start)) as keyed:
        any_keyed = False
        for seen in survey_part(ground, part, window, whatever_outcome):
            tally.add(seen.handler, seen.state)
            if seen.state not in REPLAYABLE or not wanted.wants(seen.state):
                continue
            spot = seen.offset << 1 | (seen.state in _DEAD)
            if (row := _incarnation(seen.occurrence_id.encode(), spot)) is None:
                yield spot
            else:
                any_keyed = True
                keyed.add([row])
        if any_keyed:
            for rows in _incarnations(ground, part, span):
                keyed.add(rows)
            for group in keyed.groups():
                yield from _latest(group, tally)


_NO_SPOT, _DIGITS = -1, 19


def _incarnation(occurrence: bytes, spot: int) -> Row | None:
    """(job id, incarnation, spot) of an occurrence of a job with a key; None: it has none."""
    job_id, _, number = occurrence.partition(b".")
    if not job_id.startswith(b"k") or not number.isdigit() or len(number) > _DIGITS:
        return None
    return job_id, int(number), spot


def _incarnations(ground: Ground, part: Part, span: Span) -> Iterator[list[Row]]:
    """Whatever fired under a key since the window began, by the keys of the records alone: what came after the window
    counts too."""
    for batch in ground.scan.batches(ground.names.work(part.queue), part.partition, span.start, span.end):
        rows = (_incarnation(record.key() or b"", _NO_SPOT) for record in batch)
        yield [row for row in rows if row is not None]


def _latest(rows: Sequence[Row], tally: Tally) -> Iterator[int]:
    """The spots of those that are the latest of their jobs."""
    latest: dict[bytes, int] = {}
    for job_id, number, _ in rows:
        latest[job_id] = max(number, latest.get(job_id, 0))
    for job_id, number, spot in rows:
        if spot == _NO_SPOT:
            continue
        if number == latest[job_id]:
            yield spot
        else:
            tally.key_taken += 1
