"""When a schedule is meant to run: the instants of its grid, by the written policy of docs/cron-rules.md.

A zone is a row of stretches with one offset each (`core.zones`). Within a stretch an instant is the wall time minus the
offset, so every question becomes one about days and times of day (`core.wall`), and only the seams need rules:

- the wall clock jumps forward: a fixed time that is missing runs once, at the first instant after; an interval not;
- it jumps back: a fixed time runs in the first pass only; an interval goes on through both;
- it jumps by more than three hours: the calendar was set right, nothing is made up and nothing left out.

Pure: no clock. Instants are epoch ms, ascending and never twice the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

from pipeline.core.cron import parse_cron, uses_id
from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.exclusion import Calendars, Exclusion, exclusion_of
from pipeline.core.times import aware, instant_of, parse_duration, parse_instant
from pipeline.core.wall import DAY, Wall
from pipeline.core.zones import FIRST, LAST, Stretch, Zone, zone_data_version, zone_of

__all__ = ["Timing", "TimingSpec", "preview", "timing_of", "zone_data_version"]

DST_GAPS, DST_OVERLAPS = ("run_after", "skip"), ("first", "both")
SEARCH = 50 * 366 * DAY
"""Seconds that are searched for an instant: 29 February on a given weekday can be 40 years away."""
LEAST_EVERY_MS, LONGEST_EVERY_MS = 1_000, SEARCH * 1000
EXCLUDED_LIMIT = 20_000
"""Instants of an interval that may be excluded in a row; a schedule with more will never run."""
_TRIED_FROM = 1_767_225_600_000
"""2026-01-01: what has no start is tried from here."""
_PREVIEW_LIMIT = 100_000
_MINUTE = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """The part of a schedule that says when. Exactly one of `cron`, `every_ms` and `after_ms` is set; `phase_ms` moves
    the grid of `every_ms`, which is anchored to the epoch. `exclude` = calendars by name, each a row of rules
    (`core.exclusion`). `start_at` is included, `end_at` is not. `schedule_id` chooses H fields and jitter.
    The `dst_` choices are about fixed times; intervals follow elapsed time."""

    schedule_id: str = ""
    cron: str | None = None
    every_ms: int | None = None
    phase_ms: int = 0
    after_ms: int | None = None
    tz: str = "UTC"
    dst_gap: str = "run_after"
    dst_overlap: str = "first"
    exclude: Calendars = ()
    start_at: int | None = None
    end_at: int | None = None
    jitter_ms: int = 0


# -- grids -----------------------------------------------------------------------------------------------------


class Grid(Protocol):
    """All instants of an expression, or of an interval; they have no start and no end."""

    def first(self, begin: int) -> int | None:
        """The first at or after `begin`; None: none within 50 years."""

    def last(self, begin: int, end: int) -> int | None:
        """The last in [begin, end)."""

    def count(self, begin: int, end: int) -> int:
        """How many lie in [begin, end)."""


class Cronned:
    """What an expression names on the wall clock of a zone."""

    def __init__(self, wall: Wall, zone: Zone, *, make_up: bool, both_passes: bool) -> None:
        self._wall, self._zone, self._make_up, self._both_passes = wall, zone, make_up, both_passes

    def first(self, begin: int) -> int | None:
        at = max(-(-begin // 1000), FIRST)
        limit = min(at + SEARCH, LAST)
        while at < limit:
            stretch = self._zone.stretch(at)
            if at <= stretch.start and self._made_up(stretch):
                return stretch.start * 1000
            found = self._wall.first(self._from(stretch, at), stretch.end + stretch.offset)
            if found is not None:
                return (found - stretch.offset) * 1000
            at = stretch.end
        return None

    def last(self, begin: int, end: int) -> int | None:
        low, high = self._seconds(begin, end)
        while high > low:
            stretch = self._zone.stretch(high - 1)
            begins = max(low, stretch.start)
            found = self._wall.last(self._from(stretch, begins), high + stretch.offset)
            if found is not None:
                return (found - stretch.offset) * 1000
            if begins == stretch.start and self._made_up(stretch):
                return begins * 1000
            high = begins
        return None

    def count(self, begin: int, end: int) -> int:
        at, until = self._seconds(begin, end)
        total = 0
        while at < until:
            stretch = self._zone.stretch(at)
            if at <= stretch.start and self._made_up(stretch):
                total, at = total + 1, at + 1  # what stands at this second is the same run
            total += self._wall.count(self._from(stretch, at), min(stretch.end, until) + stretch.offset)
            at = stretch.end
        return total

    def days(self, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Each day of the wall clock that has some of [begin, end): its midnight, its minutes as bits (bit 0 is 00:00),
        and which part [low, high) of it that is; a day on which the clock changes comes in two parts."""
        at = max(begin, FIRST * 1000)
        while at < min(end, LAST * 1000):
            stretch = self._zone.stretch(at // 1000)
            day = (at // 1000 + stretch.offset) // DAY
            midnight = (day * DAY - stretch.offset) * 1000
            high = min(midnight + DAY * 1000, stretch.end * 1000, end)
            yield midnight, self._wall.minutes(day), at, high
            at = high

    def _seconds(self, begin: int, end: int) -> tuple[int, int]:
        return max(-(-begin // 1000), FIRST), min(-(-end // 1000), LAST)

    def _from(self, stretch: Stretch, at: int) -> int:
        """The wall time from which `at` and what follows it in this stretch count."""
        wall = at + stretch.offset
        return wall if self._both_passes else max(wall, stretch.again_until)

    def _made_up(self, stretch: Stretch) -> bool:
        """Whether a time was missing right before this stretch and is run at its start. It is not if this minute is
        excluded."""
        now = stretch.start + stretch.offset
        return (
            self._make_up
            and stretch.missing_from < now
            and self._wall.first(stretch.missing_from, now) is not None
            and not self._wall.excluded(now)
        )


class Every:
    """A rhythm from the epoch and a phase on, but for the minutes that are not in `open_minutes`, where given."""

    def __init__(self, every: int, phase: int, open_minutes: Cronned | None) -> None:
        self._every, self._phase, self._open = every, phase % every, open_minutes

    def first(self, begin: int) -> int | None:
        at = self._next(begin)
        if self._open is None:
            return at
        limit = begin + SEARCH * 1000
        for _ in range(EXCLUDED_LIMIT):
            minute = self._open.first(at - at % _MINUTE)
            if minute is None or at > limit:
                return None
            if minute <= at:
                return at
            at = self._next(minute)
        return None

    def last(self, begin: int, end: int) -> int | None:
        at = self._next(end) - self._every
        while at >= begin:
            minute = at - at % _MINUTE
            found = minute if self._open is None else self._open.last(begin - _MINUTE, minute + 1)
            if found is None or found == minute:
                return None if found is None else at
            at = self._next(found + _MINUTE) - self._every
        return None

    def count(self, begin: int, end: int) -> int:
        if self._open is None:
            return self._between(begin, end)
        total = 0
        for midnight, minutes, low, high in self._open.days(begin, end):
            if high - low == DAY * 1000:
                total += _in_minutes(self._every, self._next(low) - low, minutes)
            else:
                runs = ((midnight + a * _MINUTE, midnight + b * _MINUTE) for a, b in _runs(minutes))
                total += sum(
                    self._between(max(a, low), min(b, high)) for a, b in runs if a < high and b > low
                )
        return total

    def _between(self, begin: int, end: int) -> int:
        return max(0, (self._next(end) - self._next(begin)) // self._every)

    def _next(self, begin: int) -> int:
        """The first instant of the rhythm at or after `begin`."""
        return -((self._phase - begin) // self._every) * self._every + self._phase


@lru_cache(maxsize=1 << 12)
def _runs(minutes: int) -> tuple[tuple[int, int], ...]:
    """The bits that are set as ranges [first, end)."""
    found: list[tuple[int, int]] = []
    at = 0
    while minutes:
        shut = (minutes & -minutes).bit_length() - 1
        minutes >>= shut
        length = (~minutes & minutes + 1).bit_length() - 1
        minutes >>= length
        found.append((at + shut, at + shut + length))
        at = found[-1][1]
    return tuple(found)


@lru_cache(maxsize=1 << 12)
def _in_minutes(every: int, first: int, minutes: int) -> int:
    """How many instants of a rhythm whose first of a day is `first` ms after midnight fall into these minutes of it."""
    before = (-(-(minute * _MINUTE - first) // every) for run in _runs(minutes) for minute in run)
    numbers = [max(0, number) for number in before]
    return sum(numbers[1::2]) - sum(numbers[::2])


# -- timing ----------------------------------------------------------------------------------------------------


class Timing:
    """A compiled `TimingSpec`; made by `timing_of`. One that counts from the end of its last run has no instants."""

    __slots__ = ("_grid", "_spec")

    def __init__(self, spec: TimingSpec, grid: Grid | None) -> None:
        self._spec, self._grid = spec, grid

    @property
    def words(self) -> str:
        """In plain words: `weekdays at 08:00 Berlin`."""
        from pipeline.core.words import words_of  # only whoever shows schedules pays for it

        return words_of(self._spec)

    def next_after(self, instant: int) -> int | None:
        """The first nominal instant strictly after `instant`; None if there is none within 50 years."""
        begin, spec = instant + 1, self._spec
        if spec.start_at is not None and begin < spec.start_at:
            begin = spec.start_at
        found = None if self._grid is None else self._grid.first(begin)
        return None if found is None or (spec.end_at is not None and found >= spec.end_at) else found

    def upcoming(self, after: int, n: int) -> list[int]:
        """The first `n` nominal instants after `after`, ascending; fewer if it ends."""
        found: list[int] = []
        while len(found) < n and (following := self.next_after(after)) is not None:
            after = following
            found.append(following)
        return found

    def count(self, after: int, until: int) -> int:
        """How many nominal instants lie in (after, until], days alike being multiplied."""
        begin, end = self._within(after, until)
        return self._grid.count(begin, end) if self._grid is not None and begin < end else 0

    def latest(self, after: int, until: int, n: int) -> list[int]:
        """The newest `n` of the nominal instants in (after, until], ascending."""
        begin, end = self._within(after, until)
        found: list[int] = []
        while self._grid is not None and len(found) < n and (last := self._grid.last(begin, end)) is not None:
            found.append(end := last)
        return found[::-1]

    def due_of(self, nominal: int) -> int:
        """`nominal` put off by less than the jitter: for one id always the same, and before the next instant and the
        end."""
        spec = self._spec
        if not spec.jitter_ms:
            return nominal
        following = self.next_after(nominal)
        bounds = (nominal + spec.jitter_ms, following, spec.end_at)
        room = max(1, min(bound for bound in bounds if bound is not None) - nominal)
        digest = hashlib.blake2b(f"{spec.schedule_id}\0{nominal}".encode(), digest_size=8).digest()
        return nominal + int.from_bytes(digest, "big") % room

    def _within(self, after: int, until: int) -> tuple[int, int]:
        """[begin, end) of what lies in (after, until] and in its own start and end."""
        start, end = self._spec.start_at, self._spec.end_at
        return (
            after + 1 if start is None else max(after + 1, start),
            until + 1 if end is None else min(until + 1, end),
        )


@lru_cache(maxsize=1 << 17)
def timing_of(spec: TimingSpec) -> Timing:
    """Compile a spec; what schedules have in common is compiled once. Raises InvalidSchedule naming the field, also of
    one that would never run."""
    spec = _every_of(spec)
    if sum(given is not None for given in (spec.cron, spec.every_ms, spec.after_ms)) != 1:
        raise InvalidSchedule("cron", "exactly one of cron, every and after is needed")
    _check_choice("dst_gap", spec.dst_gap, DST_GAPS)
    _check_choice("dst_overlap", spec.dst_overlap, DST_OVERLAPS)
    if spec.start_at is not None and spec.end_at is not None and spec.end_at <= spec.start_at:
        raise InvalidSchedule("end", "is not after start")
    if spec.jitter_ms < 0:
        raise InvalidSchedule("jitter", "is negative")
    for every, least in ((spec.every_ms, LEAST_EVERY_MS), (spec.after_ms, 1)):
        if every is not None and not least <= every <= LONGEST_EVERY_MS:
            raise InvalidSchedule("every", f"{every} ms is not within {least} ms and 50 years")
    timing = Timing(spec, _grid_of(_shared(spec)))
    _check_runs(spec, timing)
    return timing


def _every_of(spec: TimingSpec) -> TimingSpec:
    """`@every 90s` is an interval."""
    if (
        spec.cron is None
        or uses_id(spec.cron)
        or not (words := spec.cron.split())
        or words[0].lower() != "@every"
    ):
        return spec
    try:
        every = parse_duration("cron", "".join(words[1:]))
    except InvalidInput as error:
        raise InvalidSchedule("cron", f"@every: {error.problem}") from None
    if spec.every_ms is not None:
        raise InvalidSchedule("cron", "exactly one of cron, every and after is needed")
    return replace(spec, cron=None, every_ms=every)


def check_phase(spec: TimingSpec) -> None:
    """InvalidSchedule('phase') where there is no grid that it could shift. Asked of people alone: there may be records
    from before it was."""
    if spec.phase_ms and _every_of(spec).every_ms is None:
        raise InvalidSchedule("phase", "shifts the grid of an interval, and there is none")


def _check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidSchedule(field, f"{str(value)[:40]!r} is none of {' | '.join(choices)}")


def _shared(spec: TimingSpec) -> TimingSpec:
    """What many schedules have in common."""
    by_id = spec.cron is not None and uses_id(spec.cron)
    return replace(
        spec, schedule_id=spec.schedule_id if by_id else "", start_at=None, end_at=None, jitter_ms=0
    )


@lru_cache(maxsize=1 << 14)
def _grid_of(spec: TimingSpec) -> Grid | None:
    zone = zone_of(spec.tz)
    exclusion = exclusion_of(spec.exclude)
    if spec.after_ms is not None:
        return None
    if spec.every_ms is not None:
        return Every(spec.every_ms, spec.phase_ms, _open_minutes(exclusion, zone) if spec.exclude else None)
    assert spec.cron is not None
    cron = parse_cron(spec.cron, spec.schedule_id)
    return Cronned(
        Wall(cron, exclusion),
        zone,
        make_up=not cron.interval and spec.dst_gap == "run_after",
        both_passes=cron.interval or spec.dst_overlap == "both",
    )


def _open_minutes(exclusion: Exclusion, zone: Zone) -> Cronned:
    return Cronned(Wall(parse_cron("* * * * *"), exclusion), zone, make_up=False, both_passes=True)


def _check_runs(spec: TimingSpec, timing: Timing) -> None:
    if spec.after_ms is not None:
        return
    tried_from = _TRIED_FROM if spec.start_at is None else spec.start_at
    if spec.end_at is not None and spec.start_at is None:
        tried_from = min(tried_from, spec.end_at - SEARCH * 1000)
    first = timing.next_after(tried_from - 1)
    if first is None:
        within = " between its start and its end" if spec.end_at is not None else ""
        without = ", with what is excluded left out" if spec.exclude else ""
        raise InvalidSchedule("cron" if spec.cron else "every", f"would never run{within}{without}")
    if spec.jitter_ms:
        # Of a few in a row, since 9:00 and 10:00 of each day may well have more than an hour.
        some = timing.upcoming(first - 1, 16)
        longest = max((b - a for a, b in pairwise(some)), default=spec.jitter_ms)
        if spec.jitter_ms > longest:
            raise InvalidSchedule(
                "jitter", f"is longer than the time between two instants, {longest // 1000} s"
            )


# -- the public preview ----------------------------------------------------------------------------------------


def preview(
    expression: str, *, tz: str = "UTC", after: datetime, count: int = 1, **policy: Any
) -> list[datetime]:
    """The next `count` instants (fewer if it ends) of a cron expression or `@every 90s`, strictly after `after`, as
    aware datetimes in UTC: by the code that fires, so what is shown is what will run.

    `policy`: dst_gap, dst_overlap, exclude (calendars, name to rules), start and end (aware datetimes, or text), jitter
    and phase (durations), schedule_id, which chooses H fields and jitter. InvalidSchedule naming what is wrong with the
    schedule, InvalidInput of other names and of `after` and `count`.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _PREVIEW_LIMIT:
        raise InvalidInput("count", f"must be a number from 0 to {_PREVIEW_LIMIT}")
    after_ms = _floor(after)
    uses_id(expression)  # refuses what is no text
    spec = TimingSpec(cron=expression, tz=_text("tz", tz), **_policy(policy))
    timing = timing_of(spec)
    check_phase(spec)
    return [aware(timing.due_of(nominal)) for nominal in timing.upcoming(after_ms, count)]


def _floor(after: object) -> int:
    if not isinstance(after, datetime) or after.utcoffset() is None:
        raise InvalidInput("after", "must be an aware datetime, for example datetime.now(UTC)")
    try:
        passed = after.astimezone(UTC) - _EPOCH
    except OverflowError:
        raise InvalidInput("after", "is out of range") from None
    return passed // timedelta(milliseconds=1)


def _policy(given: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _POLICY:
            raise InvalidInput(name, f"is none of {', '.join(_POLICY)}")
        if value is not None:
            field, read = _POLICY[name]
            fields[field] = read(name, value)
    return fields


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSchedule(name, f"must be text, not {type(value).__name__}")
    return value


def _instant(name: str, value: object) -> int:
    return instant_of(name, value) if isinstance(value, datetime) else parse_instant(name, value)


def _calendars(name: str, value: object) -> Calendars:
    if not isinstance(value, Mapping):
        raise InvalidSchedule(name, "must be calendars by name, each a list of rules")
    return tuple(sorted((_text(name, calendar), _rules(name, rules)) for calendar, rules in value.items()))


def _rules(name: str, rules: object) -> tuple[str, ...]:
    if not isinstance(rules, list | tuple):
        raise InvalidSchedule(name, "each calendar must be a list of rules")
    return tuple(_text(name, rule) for rule in rules)


_POLICY: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "schedule_id": ("schedule_id", _text),
    "dst_gap": ("dst_gap", _text),
    "dst_overlap": ("dst_overlap", _text),
    "exclude": ("exclude", _calendars),
    "start": ("start_at", _instant),
    "end": ("end_at", _instant),
    "jitter": ("jitter_ms", parse_duration),
    "phase": ("phase_ms", parse_duration),
}
