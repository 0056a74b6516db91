"""The times that an expression names on the wall clock, where every day has 24 hours.

Wall times are seconds since 1970-01-01 00:00 by the wall clock; `core.timing` turns them into instants. Nothing is
spelled out: the n-th time of a day and the number of times before one are both computed, so that a schedule of every
second costs no more than another, and thousands of schedules share what is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from functools import lru_cache

from pipeline.core.cron import Cron
from pipeline.core.exclusion import Exclusion

DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_NOTHING = Exclusion((), ())
_KEPT = 1024
"""Days and months that each expression keeps at most."""


class Times:
    """Times of a day, ascending: the same seconds in each of its minutes."""

    __slots__ = ("_minutes", "_seconds", "total")

    def __init__(self, minutes: tuple[int, ...], seconds: tuple[int, ...]) -> None:
        self._minutes, self._seconds = minutes, seconds
        self.total = len(minutes) * len(seconds)

    def before(self, second: int) -> int:
        """How many of them are before this second of the day."""
        minute, second = divmod(second, 60)
        at, each = bisect_left(self._minutes, minute), len(self._seconds)
        if at == len(self._minutes) or self._minutes[at] != minute:
            return at * each
        return at * each + bisect_left(self._seconds, second)

    def at(self, number: int) -> int:
        """The second of the day of the one with this number, from 0."""
        minute, second = divmod(number, len(self._seconds))
        return self._minutes[minute] * 60 + self._seconds[second]


@lru_cache(maxsize=4096)
def _times(minutes: int, seconds: tuple[int, ...]) -> Times:
    return Times(tuple(minute for minute in range(DAY // 60) if minutes >> minute & 1), seconds)


@lru_cache(maxsize=4096)
def _minutes(hours: tuple[int, ...], minutes: tuple[int, ...]) -> int:
    """Minutes of a day as bits: bit 0 is 00:00. Days of many windows are told apart by a few operations on these."""
    of_hour = sum(1 << minute for minute in minutes)
    return sum(of_hour << 60 * hour for hour in hours)


class Wall:
    """The wall times of an expression but for what is excluded."""

    def __init__(self, cron: Cron, exclusion: Exclusion = _NOTHING) -> None:
        self._cron, self._exclusion = cron, exclusion
        self._minutes = _minutes(cron.hours, cron.minutes)
        self._windows = tuple(_minutes(window.hours, window.minutes) for window in exclusion.windows)
        self._all = _times(self._minutes, cron.seconds)
        self._kept_days: dict[int, Times | None] = {}
        self._kept_months: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}

    def first(self, begin: int, end: int) -> int | None:
        """The first time in [begin, end)."""
        day, second = divmod(begin, DAY)
        times = self._of(day)
        if times is not None and (number := times.before(second)) < times.total:
            found = day * DAY + times.at(number)
            return found if found < end else None
        for following, times in self._days(day + 1, -(-end // DAY)):
            found = following * DAY + times.at(0)
            return found if found < end else None
        return None

    def last(self, begin: int, end: int) -> int | None:
        """The last time in [begin, end)."""
        day, second = divmod(end, DAY)
        times = self._of(day)
        if times is not None and (number := times.before(second)):
            found = day * DAY + times.at(number - 1)
            return found if found >= begin else None
        for earlier, times in self._days_back(begin // DAY, day):
            found = earlier * DAY + times.at(times.total - 1)
            return found if found >= begin else None
        return None

    def count(self, begin: int, end: int) -> int:
        """How many times lie in [begin, end), days alike being multiplied."""
        if begin >= end:
            return 0
        (first, low), (last, high) = divmod(begin, DAY), divmod(end, DAY)
        return self._whole(first, last) - self._before(first, low) + self._before(last, high)

    def excluded(self, at: int) -> bool:
        """Whether the minute of this time is excluded."""
        day, second = divmod(at, DAY)
        on = date.fromordinal(day + _EPOCH)
        first, bit = date(on.year, on.month, 1).toordinal(), 1 << on.day - 1
        closed = self._closed(self._month(on.year, on.month)[1], bit)
        return bool(self._exclusion.of_month(first, 31) & bit or closed >> second // 60 & 1)

    def minutes(self, day: int) -> int:
        """The minutes of a day that have times, as bits: bit 0 is 00:00."""
        on = date.fromordinal(day + _EPOCH)
        matching, windows = self._month(on.year, on.month)
        bit = 1 << on.day - 1
        return self._minutes & ~self._closed(windows, bit) if matching & bit else 0

    def _closed(self, windows: tuple[int, ...], bit: int) -> int:
        """The minutes, as bits, of the windows that are closed on this day of their month."""
        closed = 0
        for days, minutes in zip(windows, self._windows, strict=True):
            if days & bit:
                closed |= minutes
        return closed

    def _before(self, day: int, second: int) -> int:
        times = self._of(day) if second else None
        return 0 if times is None else times.before(second)

    def _whole(self, first: int, end: int) -> int:
        """How many times the days [first, end) have."""
        if self._exclusion.windows:
            return sum(times.total for _, times in self._days(first, end))
        return self._all.total * sum(days.bit_count() for _, days in self._months(first, end))

    def _of(self, day: int) -> Times | None:
        """The times of a day; None: it has none."""
        try:
            return self._kept_days[day]
        except KeyError:
            if len(self._kept_days) >= _KEPT:
                self._kept_days.clear()
            times = self._kept_days[day] = self._read_day(day)
            return times

    def _read_day(self, day: int) -> Times | None:
        minutes = self.minutes(day)
        if minutes == self._minutes:
            return self._all
        return _times(minutes, self._cron.seconds) if minutes else None

    def _month(self, year: int, month: int) -> tuple[int, tuple[int, ...]]:
        """Its days that match and are not excluded, and those of each window, as bits."""
        found = self._kept_months.get((year, month))
        if found is None:
            if len(self._kept_months) >= _KEPT:
                self._kept_months.clear()
            monday, length = monthrange(year, month)
            sunday = (monday + 1) % 7
            windows = tuple(w.days.of_month(month, sunday, length) for w in self._exclusion.windows)
            days = self._cron.days.of_month(month, sunday, length)
            days &= ~self._exclusion.of_month(date(year, month, 1).toordinal(), length)
            found = self._kept_months[year, month] = days, windows
        return found

    def _months(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Days [first, end) month by month: (the 1st, those of the days that match as bits)."""
        on = date.fromordinal(first + _EPOCH)
        year, month = on.year, on.month
        start = first - on.day + 1
        while start < end:
            length = monthrange(year, month)[1]
            days = self._month(year, month)[0]
            if start < first:
                days = days >> first - start << first - start
            if start + length > end:
                days &= (1 << end - start) - 1
            yield start, days
            start += length
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def _days(self, first: int, end: int) -> Iterator[tuple[int, Times]]:
        """The days of [first, end) that have times."""
        for start, days in self._months(first, end):
            while days:
                day = start + (days & -days).bit_length() - 1
                days &= days - 1
                if (times := self._of(day)) is not None:
                    yield day, times

    def _days_back(self, first: int, end: int) -> Iterator[tuple[int, Times]]:
        """The same, the latest first."""
        while end > first:
            month = end - date.fromordinal(end - 1 + _EPOCH).day
            for start, days in self._months(max(month, first), end):
                while days:
                    day = start + days.bit_length() - 1
                    days ^= 1 << day - start
                    if (times := self._of(day)) is not None:
                        yield day, times
            end = month
