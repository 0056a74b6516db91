"""The time rules a third time, for what `minute_walk` leaves out: seconds, L, W and #, the named choices, exclusions,
start and end. Every real second or minute of a window is walked; no code of `pipeline.core` is in it.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

JUMP = 3 * 3600
EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
BOUNDS = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
Wall = datetime


class Expression:
    """Five or six fields of numbers; `rhythm`: it follows elapsed time."""

    def __init__(self, text: str) -> None:
        texts = text.split()
        times = texts[:-3]
        self.seconds = len(texts) == 6
        self.rhythm = any(field.startswith("*") for field in times)
        texts = texts if self.seconds else ["0", *texts]
        self._times = [_numbers(field, *bounds) for field, bounds in zip(texts[:3], BOUNDS, strict=False)]
        self._day, self._month, self._weekday = texts[3:]
        self._days: dict[date, bool] = {}

    def match(self, wall: Wall) -> bool:
        second, minute, hour = self._times
        at = wall.second in second and wall.minute in minute and wall.hour in hour
        return at and self._on(wall.date())

    def _on(self, day: date) -> bool:
        if day not in self._days:
            of_month, of_week = _of_month(self._day, day), _of_week(self._weekday, day)
            restricted = self._day[0] not in "*?" and self._weekday[0] not in "*?"
            on = (of_month or of_week) if restricted else (of_month and of_week)
            self._days[day] = on and day.month in _numbers(self._month, 1, 12)
        return self._days[day]


def _numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        body, _, step = item.partition("/")
        first, _, last = body.partition("-")
        if body in ("*", "?"):
            row = list(range(low, high + 1))
        elif last:
            begin, end = int(first), int(last)
            row = list(range(begin, end + 1)) or [*range(begin, high + 1), *range(low, end + 1)]
        else:
            row = list(range(int(first), high + 1)) if step else [int(first)]
        found |= {number % 7 if high == 6 else number for number in row[:: int(step or 1)]}
    return found


def _of_month(text: str, day: date) -> bool:
    length = monthrange(day.year, day.month)[1]
    if text in ("L", "LW"):
        return day.day == (length if text == "L" else _near(length, day, length))
    if match := re.fullmatch(r"(\d+)-L", text):
        return day.day >= int(match[1])
    if match := re.fullmatch(r"(\d+)W", text):
        return int(match[1]) <= length and day.day == _near(int(match[1]), day, length)
    return day.day in _numbers(text, 1, 31)


def _near(wanted: int, day: date, length: int) -> int:
    """Of its month the weekday nearest to `wanted`: looked for further and further away."""
    for away in (0, -1, 1, -2, 2):
        if 1 <= wanted + away <= length and day.replace(day=wanted + away).isoweekday() < 6:
            return wanted + away
    raise AssertionError("no two days away from a weekday")


def _of_week(text: str, day: date) -> bool:
    if match := re.fullmatch(r"(\d)#(\d)", text):
        return day.isoweekday() % 7 == int(match[1]) % 7 and (day.day - 1) // 7 + 1 == int(match[2])
    if match := re.fullmatch(r"L(\d)", text):
        return day.isoweekday() % 7 == int(match[1]) % 7 and (day + timedelta(days=7)).month != day.month
    return day.isoweekday() % 7 in _numbers(text, 0, 6)


class Choices(NamedTuple):
    """What a schedule says beside its expression; `start` and `end` in seconds."""

    gap: str
    overlap: str
    rules: Sequence[str]
    start: int
    end: int


def instants(text: str, zone: ZoneInfo, begin: int, end: int, choices: Choices) -> Iterator[int]:
    """Those in (begin, end), in seconds."""
    expression = Expression(text)
    closed = _closed(choices.rules)
    step = 1 if expression.seconds else 60
    at = begin - JUMP - 3600
    at -= at % step
    before, again_until = _offset(at, zone), None
    for now in range(at, end, step):
        offset = _offset(now, zone) if now % 60 == 0 or now == at else before
        wall, fires = _wall(now + offset), False
        if 0 < offset - before <= JUMP:
            missing = (_wall(passed) for passed in range(now + before, now + offset, step))
            late = any(expression.match(each) and not closed(each) for each in missing)
            fires = late and not expression.rhythm and choices.gap == "run_after" and not closed(wall)
        if offset != before:
            again_until = now + before if -JUMP <= offset - before < 0 else None
        before = offset
        again = again_until is not None and now + offset < again_until
        passes = expression.rhythm or choices.overlap == "both" or not again
        fires = fires or (passes and expression.match(wall) and not closed(wall))
        if fires and now > begin and choices.start <= now < choices.end:
            yield now


def _closed(rules: Sequence[str]) -> Callable[[Wall], bool]:
    windows = [Expression(rule.removeprefix("cron:")) for rule in rules if rule.startswith("cron:")]
    days = [rule.split("..") for rule in rules if not rule.startswith("cron:")]
    return lambda wall: (
        any(each.match(wall.replace(second=0)) for each in windows)
        or any(low <= wall.date().isoformat() <= high for low, high in ((day[0], day[-1]) for day in days))
    )


def _wall(second: int) -> Wall:
    return EPOCH + timedelta(seconds=second)


def _offset(at: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())
