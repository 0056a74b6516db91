"""When a schedule is meant to run: the instants of its grid, by the written policy of `docs/cron-rules.md`.

A zone is a row of segments with one offset each (`core.zones`). Within a segment an instant is the wall time minus the
offset, so every question becomes one about days and times of day (`core.cron`), and only the seams need rules:

- the wall clock jumps forward: a fixed time that is missing runs once, at the first instant after; an interval not;
- it jumps back: a fixed time runs in the first pass only; an interval goes on through both;
- it jumps by more than three hours: the calendar was set right, nothing is made up and nothing left out.

Pure: no clock. Instants are epoch ms, UTC, ascending and never twice the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Protocol

from pipeline.core.cron import DAY_MS, Cron, parse_cron
from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.exclusion import Exclusion, exclusion_of
from pipeline.core.times import aware, instant_of, parse_duration
from pipeline.core.wall import Wall
from pipeline.core.words import words_of
from pipeline.core.zones import Segment, Zone, zone_of

SEARCH_MS = 50 * 366 * DAY_MS
"""How far ahead an instant is looked for: 29 February on a given weekday can be 40 years away."""
LAST_INSTANT = 253_370_764_799_999
"""The end of the year 9998: dates end soon after."""
LONGEST_JUMP_MS = 3 * 3_600_000
LEAST_EVERY_MS = 1000
EXCLUDED_LIMIT = 100_000
"""Excluded instants passed over in one search; beyond, a schedule counts as excluded for ever."""
DST_GAPS, DST_OVERLAPS = ("run_after", "skip"), ("first", "both")
_ANCHOR = 1_767_225_600_000
"""2026-01-01: where a schedule without a start is tried."""
_PREVIEW_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """The part of a schedule that says when. Exactly one of `cron`, `every_ms` and `after_ms` is set; `phase_ms` moves
    the grid of `every_ms`, which is anchored to the epoch. `exclude` = calendars by name, each a row of rules
    (`core.exclusion`). `start_at` is included, `end_at` is not. `schedule_id` chooses H fields and jitter."""

    schedule_id: str = ""
    cron: str | None = None
    every_ms: int | None = None
    phase_ms: int = 0
    after_ms: int | None = None
    tz: str = "UTC"
    dst_gap: str = "run_after"
    dst_overlap: str = "first"
    exclude: tuple[tuple[str, tuple[str, ...]], ...] = ()
    start_at: int | None = None
    end_at: int | None = None
    jitter_ms: int = 0


class Timing:
    """A compiled `TimingSpec`; made by `timing_of`."""

    __slots__ = ("_exclusion", "_grid", "_spec", "words")

    def __init__(self, spec: TimingSpec, grid: Grid | None, exclusion: Exclusion | None, words: str) -> None:
        self._spec, self._grid, self._exclusion = spec, grid, exclusion
        self.words = words

    def next_after(self, instant: int) -> int | None:
        """The first nominal instant strictly after `instant`; None if there is none within 50 years."""
        return next(self._walk(instant), None)

    def upcoming(self, after: int, n: int) -> list[int]:
        return list(islice(self._walk(after), n))

    def count(self, after: int, until: int) -> int:
        """How many nominal instants lie in (after, until]. Days alike are multiplied, unless something is excluded."""
        after, until = self._within(after, min(until, LAST_INSTANT))
        if after >= until:
            return 0
        if self._exclusion is None:
            return self.grid.count(after, until)
        return sum(not self._exclusion.excludes(at) for at in self.grid.backwards(after, until))

    def latest(self, after: int, until: int, n: int) -> list[int]:
        """The newest `n` of the nominal instants in (after, until], ascending."""
        after, until = self._within(after, min(until, LAST_INSTANT))
        found = self.grid.backwards(after, until) if after < until else iter(())
        if self._exclusion is not None:
            excluded = self._exclusion.excludes
            found = (at for at in found if not excluded(at))
        return list(islice(found, n))[::-1]

    def due_of(self, nominal: int) -> int:
        """`nominal` put off by a jitter that is always the same, and before the next nominal instant."""
        room = self._spec.jitter_ms
        if not room:
            return nominal
        following = None if self._grid is None else self.next_after(nominal)
        if following is not None:
            room = min(room, following - nominal)
        digest = hashlib.sha256(f"{self._spec.schedule_id}/{nominal}".encode()).digest()
        return nominal + int.from_bytes(digest[:8], "big") % room

    @property
    def grid(self) -> Grid:
        """What the instants are taken from. AssertionError of a schedule that counts from the end of its last run."""
        assert self._grid is not None, "what counts from the last finish has no grid"
        return self._grid

    def _within(self, after: int, until: int) -> tuple[int, int]:
        start, end = self._spec.start_at, self._spec.end_at
        return (
            after if start is None else max(after, start - 1),
            until if end is None else min(until, end - 1),
        )

    def _walk(self, after: int) -> Iterator[int]:
        after, last = self._within(after, LAST_INSTANT)
        last = min(last, after + SEARCH_MS)
        passed = 0
        while after < last and (found := self.grid.next_after(after, last)) is not None:
            after = found
            if self._exclusion is None or not self._exclusion.excludes(found):
                passed = 0
                yield found
            elif (passed := passed + 1) > EXCLUDED_LIMIT:
                return


class Grid(Protocol):
    """All instants of a cron expression in a zone, or of an interval, before start, end and exclusions."""

    def next_after(self, after: int, last: int) -> int | None:
        """The first instant in (after, last]."""
        ...

    def count(self, after: int, until: int) -> int:
        """How many instants lie in (after, until]."""
        ...

    def backwards(self, after: int, until: int) -> Iterator[int]:
        """The instants in (after, until], newest first."""
        ...


class EveryGrid:
    def __init__(self, every: int, phase: int) -> None:
        self._every, self._phase = every, phase % every

    def next_after(self, after: int, last: int) -> int | None:
        found = self._last(after) + self._every
        return found if found <= last else None

    def count(self, after: int, until: int) -> int:
        return (self._last(until) - self._last(after)) // self._every

    def backwards(self, after: int, until: int) -> Iterator[int]:
        return iter(range(self._last(until), after, -self._every))

    def _last(self, at: int) -> int:
        """The last instant at or before `at`."""
        return (at - self._phase) // self._every * self._every + self._phase


class CronGrid:
    def __init__(self, cron: Cron, zone: Zone, *, run_after_gap: bool, first_pass_only: bool) -> None:
        self._wall, self._zone = Wall(cron), zone
        fixed = not cron.interval
        self._run_after_gap, self._first_pass_only = fixed and run_after_gap, fixed and first_pass_only

    def next_after(self, after: int, last: int) -> int | None:
        segment = self._zone.segment(after + 1)
        while True:
            made_up = self._made_up(segment)
            if made_up is not None and made_up > after:
                return made_up if made_up <= last else None
            begin = self._begin(segment)
            found = self._wall.first(max(after + 1 + segment.offset, begin), last + segment.offset)
            if found is None and segment.end > last:
                return None
            if found is not None and found < segment.end + segment.offset:
                return found - segment.offset
            # Nothing else in this segment. Far ahead there is nothing before what was found here, give or take a jump.
            far = last if found is None else found - segment.offset - 2 * DAY_MS
            segment = self._zone.segment(max(segment.end, min(far, last)))
            after = max(after, segment.start - 1)

    def count(self, after: int, until: int) -> int:
        return sum(
            self._wall.count(max(after + 1 + s.offset, self._begin(s)), min(until + 1, s.end) + s.offset)
            + (made_up is not None and after < made_up <= until)
            for s in self._zone.segments(after + 1, until)
            for made_up in (self._made_up(s),)
        )

    def backwards(self, after: int, until: int) -> Iterator[int]:
        for segment in reversed(self._zone.segments(after + 1, until)):
            low = max(after + 1 + segment.offset, self._begin(segment))
            high = min(until + 1, segment.end) + segment.offset
            for found in self._wall.backwards(low, high):
                yield found - segment.offset
            made_up = self._made_up(segment)
            if made_up is not None and after < made_up <= until:
                yield made_up

    def _begin(self, segment: Segment) -> int:
        """The wall time from which the segment counts: after the part that was passed before, for fixed times."""
        repeated = segment.before - segment.offset
        begin = segment.start + segment.offset
        if self._first_pass_only and 0 < repeated <= LONGEST_JUMP_MS:
            return max(begin, segment.since + segment.before)
        return begin

    def _made_up(self, segment: Segment) -> int | None:
        """The first instant after a gap, if a fixed time was missing in it and none stands there anyway."""
        missing = segment.offset - segment.before
        if not self._run_after_gap or not 0 < missing <= LONGEST_JUMP_MS or segment.since < segment.start:
            return None
        begin, end = segment.start + segment.before, segment.start + segment.offset
        if not self._wall.count(begin, end) or self._wall.count(end, end + 1):
            return None
        return segment.start


# -- compiling -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 17)
def timing_of(spec: TimingSpec) -> Timing:
    """Compile a spec. Raises InvalidSchedule naming the field, also of one that would never run."""
    kinds = [name for name in ("cron", "every_ms", "after_ms") if getattr(spec, name) is not None]
    if len(kinds) != 1:
        raise InvalidSchedule("cron", "exactly one of cron, every and after is needed")
    _choice("dst_gap", spec.dst_gap, DST_GAPS)
    _choice("dst_overlap", spec.dst_overlap, DST_OVERLAPS)
    zone = zone_of(spec.tz)
    if spec.start_at is not None and spec.end_at is not None and spec.end_at <= spec.start_at:
        raise InvalidSchedule("end", "is not after start")
    if spec.jitter_ms < 0:
        raise InvalidSchedule("jitter", "is negative")
    exclusion = exclusion_of(spec.exclude, zone) if spec.exclude else None
    grid = _grid(spec, zone)
    timing = Timing(spec, grid, exclusion, words_of(spec.cron, spec.every_ms, spec.after_ms, spec.tz))
    if grid is not None:
        _try(spec, timing)
    return timing


def _grid(spec: TimingSpec, zone: Zone) -> Grid | None:
    if spec.after_ms is not None:
        if spec.after_ms < 0:
            raise InvalidSchedule("every", "is negative")
        return None
    every = spec.every_ms if spec.cron is None else every_of(spec.cron)
    if every is not None:
        if every < LEAST_EVERY_MS:
            raise InvalidSchedule("every", f"is shorter than {LEAST_EVERY_MS} ms")
        return EveryGrid(every, spec.phase_ms)
    assert spec.cron is not None
    cron = parse_cron(spec.cron, spec.schedule_id)
    gap, overlap = spec.dst_gap == "run_after", spec.dst_overlap == "first"
    return CronGrid(cron, zone, run_after_gap=gap, first_pass_only=overlap)


def every_of(text: str) -> int | None:
    """The milliseconds of `@every 90s`; None of any other expression. InvalidSchedule('cron')."""
    if not isinstance(text, str) or not text.strip().lower().startswith("@every"):
        return None
    try:
        return parse_duration("cron", text.strip()[len("@every") :].strip())
    except InvalidInput as error:
        raise InvalidSchedule("cron", error.problem) from error


def _try(spec: TimingSpec, timing: Timing) -> None:
    start = _ANCHOR if spec.start_at is None else spec.start_at - 1
    if spec.end_at is not None and spec.start_at is None:
        start = min(start, spec.end_at - SEARCH_MS)
    first = timing.upcoming(start, 2)
    if not first:
        raise InvalidSchedule(
            "cron", "would never run" + (" (what it names is excluded)" if spec.exclude else "")
        )
    if len(first) > 1 and spec.jitter_ms >= first[1] - first[0]:
        raise InvalidSchedule("jitter", "is not shorter than the time between two occurrences")


def _choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSchedule(field, f"is none of {', '.join(choices)}")


# -- the public preview ----------------------------------------------------------------------------------------


def preview(
    expression: str,
    *,
    tz: str = "UTC",
    after: datetime,
    count: int = 1,
    schedule_id: str = "",
    dst_gap: str = "run_after",
    dst_overlap: str = "first",
    exclude: dict[str, list[str]] | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
) -> list[datetime]:
    """The next `count` instants (fewer if the schedule ends) of a cron expression or `@every 90s`, strictly after
    `after`, as aware datetimes in UTC: by the code that fires, so what is shown is what will run.

    Raises InvalidSchedule naming the field; InvalidInput('after') unless `after` is an aware datetime.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _PREVIEW_LIMIT:
        raise InvalidInput("count", f"must be 0 to {_PREVIEW_LIMIT}")
    timing = timing_of(
        TimingSpec(
            schedule_id=schedule_id,
            cron=expression,
            tz=tz,
            dst_gap=dst_gap,
            dst_overlap=dst_overlap,
            exclude=tuple(sorted((name, tuple(rules)) for name, rules in (exclude or {}).items())),
            start_at=None if start is None else instant_of("start", start),
            end_at=None if end is None else instant_of("end", end),
        )
    )
    return [aware(at) for at in timing.upcoming(_floor(after), count)]


def _floor(after: datetime) -> int:
    if not isinstance(after, datetime) or after.tzinfo is None:
        raise InvalidInput("after", "must be an aware datetime")
    try:
        passed = after.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        raise InvalidInput("after", "is out of range") from None
    return (passed.days * 86_400 + passed.seconds) * 1000 + passed.microseconds // 1000
