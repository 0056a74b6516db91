"""The time rules once more, from their text alone: every real minute is walked and its wall clock compared.

Shares no code with `pipeline.core.timing`; slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
JUMP = 180
"""Minutes up to which a jump of the wall clock is one of summer time, and not the calendar set right."""
_WHOLE = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


class Fields:
    """Five fields of numbers, lists, ranges and steps."""

    def __init__(self, text: str) -> None:
        self.texts = text.split()
        self.sets = [_numbers(t, *bounds) for t, bounds in zip(self.texts, _WHOLE, strict=True)]
        self.interval = self.texts[0].startswith("*") or self.texts[1].startswith("*")

    def match(self, wall: datetime) -> bool:
        minute, hour, day, month, weekday = self.sets
        of_month, of_week = wall.day in day, wall.isoweekday() % 7 in weekday
        restricted = not self.texts[2].startswith("*") and not self.texts[4].startswith("*")
        on = (of_month or of_week) if restricted else (of_month and of_week)
        return wall.minute in minute and wall.hour in hour and wall.month in month and on


def _numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in text.split(","):
        body, _, step = item.partition("/")
        first, _, last = body.partition("-")
        begin, end = (low, high) if body == "*" else (int(first), int(last or first))
        found |= {number % 7 if high == 6 else number for number in range(begin, end + 1, int(step or 1))}
    return found


class Minute(NamedTuple):
    """A real minute: its wall clock, whether that was seen before, and the wall minutes missing right before it."""

    at: datetime
    wall: datetime
    again: bool
    missing: list[datetime]


def minutes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[Minute]:
    """The minutes in (begin, end]."""
    at = begin - JUMP * MINUTE
    offsets = [_offset(at, zone)]
    while (at := at + MINUTE) <= end:
        offsets.append(_offset(at, zone))
        if at <= begin:
            continue
        now, recent = offsets[-1], offsets[-JUMP - 1 : -1]
        wall = (at + now).replace(tzinfo=None)
        again = max(recent) > now and any(
            then - now == back * MINUTE for back, then in enumerate(reversed(recent), 1)
        )
        jump = (now - recent[-1]) // MINUTE
        missing = [wall - back * MINUTE for back in range(1, jump + 1)] if 0 < jump <= JUMP else []
        yield Minute(at, wall, again, missing)


def runs(fields: Fields, minute: Minute) -> bool:
    """Whether a schedule with the default choices runs in that minute."""
    if fields.interval:
        return fields.match(minute.wall)
    return (fields.match(minute.wall) and not minute.again) or any(map(fields.match, minute.missing))


def _offset(at: datetime, zone: ZoneInfo) -> timedelta:
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def transitions(zone: ZoneInfo, first_year: int, last_year: int) -> tuple[tuple[datetime, timedelta], ...]:
    """The minutes at which the offset changes, and what it is from then on."""
    found, at = [], datetime(first_year, 1, 1, tzinfo=UTC)
    step = timedelta(hours=6)
    while at.year <= last_year:
        if _offset(at, zone) != _offset(at + step, zone):
            low, high = at, at + step
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                low, high = (low, middle) if _offset(middle, zone) == _offset(high, zone) else (middle, high)
            found.append((high, _offset(high, zone)))
        at += step
    return tuple(found)
