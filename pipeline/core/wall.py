"""The times that a cron expression names on the wall clock, where every day has 24 hours.

Wall times are ms since 1970-01-01 00:00 by the wall clock. `core.timing` turns them into instants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import date

from pipeline.core.cron import DAY_MS, Cron

_EPOCH = date(1970, 1, 1).toordinal()


class Wall:
    """The wall times of an expression."""

    __slots__ = ("_cron", "_times")

    def __init__(self, cron: Cron) -> None:
        self._cron, self._times = cron, cron.times

    def first(self, begin: int, last: int) -> int | None:
        """The first time in [begin, last]."""
        day, within = divmod(begin, DAY_MS)
        at = bisect_left(self._times, within)
        if at < len(self._times) and self._matches(day):
            found = day * DAY_MS + self._times[at]
        else:
            following = next(self._days(day + 1, last // DAY_MS + 1), None)
            if following is None:
                return None
            found = following * DAY_MS + self._times[0]
        return found if found <= last else None

    def count(self, begin: int, end: int) -> int:
        """How many times lie in [begin, end): those of whole days are multiplied."""
        if begin >= end:
            return 0
        (first, from_), (last, until) = divmod(begin, DAY_MS), divmod(end, DAY_MS)
        whole = sum(1 for _ in self._days(first, last)) * len(self._times)
        before = bisect_left(self._times, from_) if self._matches(first) else 0
        after = bisect_left(self._times, until) if until and self._matches(last) else 0
        return whole - before + after

    def backwards(self, begin: int, end: int) -> Iterator[int]:
        """The times in [begin, end), newest first."""
        for day in self._days_back(begin // DAY_MS, (end - 1) // DAY_MS):
            midnight = day * DAY_MS
            for time in reversed(self._times[: bisect_left(self._times, end - midnight)]):
                if midnight + time < begin:
                    return
                yield midnight + time

    def _matches(self, day: int) -> bool:
        on = _date(day)
        return on.day in self._cron.of_month(on.year, on.month)

    def _days(self, first: int, end: int) -> Iterator[int]:
        """Matching days in [first, end), in days since the epoch, ascending."""
        year, month = (on := _date(first)).year, on.month
        while True:
            start = date(year, month, 1).toordinal() - _EPOCH
            if start >= end:
                return
            for number in self._cron.of_month(year, month):
                day = start + number - 1
                if day >= end:
                    return
                if day >= first:
                    yield day
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def _days_back(self, first: int, last: int) -> Iterator[int]:
        """Matching days in [first, last], descending."""
        year, month = (on := _date(last)).year, on.month
        while True:
            start = date(year, month, 1).toordinal() - _EPOCH
            for number in reversed(self._cron.of_month(year, month)):
                day = start + number - 1
                if day < first:
                    return
                if day <= last:
                    yield day
            if start <= first:
                return
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)


def _date(day: int) -> date:
    return date.fromordinal(day + _EPOCH)
