"""Wall times at which a schedule does not run: named calendars, each a row of rules.

A rule is a date (`2026-12-25`), a range of dates with both ends (`2026-12-24..2027-01-02`), or every minute that an
expression matches (`cron:* 0-6 * * *`), all by the wall clock of the schedule's zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import lru_cache

from pipeline.core.cron import Cron, parse_cron, uses_id
from pipeline.core.errors import InvalidSchedule

RULES_LIMIT, WINDOWS_LIMIT = 2_000, 200
"""Rules of a schedule, and those of them that are expressions: each is asked for each month that is looked at."""
_DATES = re.compile(r"(\d{4}-\d\d-\d\d)(?:\.\.(\d{4}-\d\d-\d\d))?", re.ASCII)
Calendars = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Ranges of days, [first, last] as `date.toordinal` counts them, and windows that expressions name."""

    days: tuple[tuple[int, int], ...]
    windows: tuple[Cron, ...]

    def of_month(self, first: int, length: int) -> int:
        """The days of a month that are dates of it, as bits; `first` = ordinal of its 1st."""
        found = 0
        for low, high in self.days:
            low, high = max(low - first, 0), min(high - first, length - 1)
            if low <= high:
                found |= (1 << high + 1) - (1 << low)
        return found


@lru_cache(maxsize=1024)
def exclusion_of(calendars: Calendars) -> Exclusion:
    """Compile calendars. InvalidSchedule('exclude') naming the calendar and the rule."""
    rules = [(name, rule) for name, rules in calendars for rule in rules]
    if len(rules) > RULES_LIMIT:
        raise InvalidSchedule("exclude", f"{len(rules)} rules are more than {RULES_LIMIT}")
    days, windows = [], []
    for name, rule in rules:
        try:
            if rule.startswith("cron:"):
                windows.append(_window(rule.removeprefix("cron:")))
            else:
                days.append(_days(rule))
        except (ValueError, InvalidSchedule) as error:
            problem = error.problem if isinstance(error, InvalidSchedule) else error
            raise InvalidSchedule("exclude", f"{name[:80]}: {rule[:80]!r}: {problem}") from None
    if len(windows) > WINDOWS_LIMIT:
        raise InvalidSchedule(
            "exclude", f"{len(windows)} rules with expressions are more than {WINDOWS_LIMIT}"
        )
    return Exclusion(tuple(days), tuple(windows))


def _window(text: str) -> Cron:
    if uses_id(text):
        raise ValueError("H is not for windows")
    window = parse_cron(text)
    if window.seconds != (0,):
        raise ValueError("a window is made of whole minutes: give five fields")
    return window


def _days(rule: str) -> tuple[int, int]:
    found = _DATES.fullmatch(rule)
    if found is None:
        raise ValueError("is no date, range of dates such as 2026-12-24..2027-01-02, or cron:EXPRESSION")
    first, last = (date.fromisoformat(text).toordinal() for text in (found[1], found[2] or found[1]))
    if last < first:
        raise ValueError("ends before it begins")
    return first, last
