"""Instants at which a schedule does not run: named calendars, each a row of rules.

A rule is a date (`2026-12-25`), a range of dates with both ends (`2026-12-24..2027-01-02`), or every minute that an
expression matches (`cron:* 0-6 * * *`), all in the zone of the schedule.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import date

from pipeline.core.cron import DAY_MS, Cron, parse_cron
from pipeline.core.errors import InvalidSchedule
from pipeline.core.zones import Zone

RULES_LIMIT = 1000
"""Rules of a schedule at most."""
_DATES = re.compile(r"(\d{4}-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))?", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Ranges of days since the epoch, [first, last], and windows by expressions."""

    zone: Zone
    days: tuple[tuple[int, int], ...]
    windows: tuple[Cron, ...]

    def excludes(self, at: int) -> bool:
        """Whether the instant falls on one of the dates or windows."""
        day, within = divmod(at + self.zone.segment(at).offset, DAY_MS)
        if any(first <= day <= last for first, last in self.days):
            return True
        minute = within // _MINUTE_MS * _MINUTE_MS
        on = date.fromordinal(day + _EPOCH)
        return any(
            (place := bisect_left(window.times, minute)) < len(window.times)
            and window.times[place] == minute
            and on.day in window.of_month(on.year, on.month)
            for window in self.windows
        )


def exclusion_of(calendars: tuple[tuple[str, tuple[str, ...]], ...], zone: Zone) -> Exclusion:
    """Compile calendars. InvalidSchedule('exclude') naming the calendar and the rule."""
    rules = [(name, rule) for name, rules in calendars for rule in rules]
    if len(rules) > RULES_LIMIT:
        raise InvalidSchedule("exclude", f"has {len(rules)} rules, at most {RULES_LIMIT} are kept")
    days, windows = [], []
    for name, rule in rules:
        if rule.startswith("cron:"):
            windows.append(_window(name, rule))
        else:
            days.append(_days(name, rule))
    return Exclusion(zone, tuple(days), tuple(windows))


def _window(name: str, rule: str) -> Cron:
    try:
        window = parse_cron(rule.removeprefix("cron:"), name)
    except InvalidSchedule as error:
        raise InvalidSchedule("exclude", f"{name}: {rule!r}: {error.problem}") from error
    if any(time % _MINUTE_MS for time in window.times):
        raise InvalidSchedule("exclude", f"{name}: {rule!r}: a window is made of whole minutes")
    return window


def _days(name: str, rule: str) -> tuple[int, int]:
    found = _DATES.fullmatch(rule)
    try:
        if found is None:
            raise ValueError("is no date, range of dates (2026-12-24..2027-01-02) or cron:EXPRESSION")
        first, last = (date.fromisoformat(text) for text in (found[1], found[2] or found[1]))
        if last < first:
            raise ValueError("ends before it begins")
    except ValueError as error:
        raise InvalidSchedule("exclude", f"{name}: {rule[:80]!r} {error}") from error
    return first.toordinal() - _EPOCH, last.toordinal() - _EPOCH
