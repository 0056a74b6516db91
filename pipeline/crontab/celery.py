"""When a Celery Beat entry runs, in our words: its `crontab`, interval or number of seconds as fields of a spec."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pipeline.core.errors import InvalidInput

_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)
CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
"""In the order in which Celery's `crontab` takes them without names."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(r"(?:\*|([A-Za-z0-9]{1,9})(?:-([A-Za-z0-9]{1,9}))?)(?:/([0-9]{1,9}))?")
_OTHER_DAYS = "other-days-of-month"
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A call in the source that is one of Celery's or datetime's values: `crontab(minute=5)`. Never executed."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def timing(schedule: Any) -> tuple[dict[str, Any], list[str]]:
    """The fields of a spec that say when, and notes. InvalidInput naming `schedule`, or a field of `crontab`."""
    match schedule:
        case Called(name="crontab"):
            return _crontab(schedule), []
        case Called(name="schedule"):
            return _every(_argument(schedule, 0, "run_every"))
        case Called(name="solar"):
            raise InvalidInput(
                "schedule", "sunrise and sunset have no counterpart: give the times, or a script"
            )
        case Called() if schedule.name != "timedelta":
            raise InvalidInput("schedule", f"{schedule.name[:80]}(…) is no schedule that can be carried over")
        case _:
            return _every(schedule)


def duration(value: Any) -> timedelta | float | None:
    """A number of seconds, or a timedelta; None if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if not (isinstance(value, Called) and value.name == "timedelta") or len(value.args) > 7:
        return None
    try:
        return timedelta(*value.args, **value.kwargs)
    except (TypeError, OverflowError, ValueError):
        return None


def _every(period: Any) -> tuple[dict[str, Any], list[str]]:
    given = duration(period)
    if given is None:
        raise InvalidInput("schedule", "must be a number of seconds, timedelta(…), crontab(…) or schedule(…)")
    return {"every": given}, [
        "counted from midnight UTC of 1970-01-01, not from when it first ran: give it a phase"
    ]


def _argument(call: Called, place: int, name: str) -> Any:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name)


def _crontab(call: Called) -> dict[str, Any]:
    """Cron text, and for days that Celery wants both of, which cron takes one of, the other days of the month as
    excluded."""
    given = dict(zip(CRONTAB_FIELDS, call.args, strict=False)) | dict(call.kwargs)
    if len(call.args) > len(CRONTAB_FIELDS):
        raise InvalidInput("schedule", "crontab(…) has five fields")
    for name in given:
        if name not in CRONTAB_FIELDS:
            raise InvalidInput(name[:80], "no field of a crontab that can be carried over")
    texts = {name: _text(name, given.get(name, "*"), low, high) for name, low, high in _FIELDS}
    days = texts["day_of_month"]
    if days.startswith("*") or texts["day_of_week"].startswith("*"):  # cron wants both, too
        return {"cron": " ".join(texts.values())}
    others = set(range(1, 32)) - _numbers("day_of_month", given["day_of_month"], 1, 31)
    texts["day_of_month"] = "*"
    rule = f"cron:* * {_ranges(others)} * *"
    return {"cron": " ".join(texts.values()), "exclude": {_OTHER_DAYS: [rule]}}


def _text(name: str, value: Any, low: int, high: int) -> str:
    """One field as cron writes it; names, lists and ranges over the end become numbers."""
    numbers = _numbers(name, value, low, high)
    if len(numbers) == high - low + 1:
        return "*"
    if isinstance(value, str) and re.fullmatch(r"\*/[0-9]+", value):
        step = int(value[2:])
        return f"*/{step}" if step <= high - low else str(low)
    return _ranges(numbers)


def _numbers(name: str, value: Any, low: int, high: int) -> set[int]:
    """The numbers that a field of `crontab` stands for. InvalidInput naming it."""
    match value:
        case None:
            return set(range(low, high + 1))
        case bool():
            found: set[Any] = set()
        case int():
            found = {value}
        case str() if len(value) <= _LONGEST_TEXT:
            found = set().union(*(_part(name, part.strip(), low, high) for part in value.split(",")))
        case list() | tuple() | set() | frozenset() if len(value) <= _LONGEST_TEXT:
            found = {item for item in value if type(item) is int}
            found = found if len(found) == len(set(map(repr, value))) else set()
        case _:
            found = set()
    if not found or min(found) < low or max(found) > high:
        raise InvalidInput(name, f"{value!r:.80} is no number from {low} to {high}, list of them, or pattern")
    return found


def _part(name: str, part: str, low: int, high: int) -> Iterable[int]:
    match = _PART.fullmatch(part)
    if match is None or (match[3] and match[1] and not match[2]) or (match[3] and not int(match[3])):
        raise InvalidInput(name, f"{part[:80]!r} is no pattern of a crontab")
    if match[1] is None:
        numbers = list(range(low, high + 1))
    else:
        first, last = _number(name, match[1]), _number(name, match[2] or match[1])
        if not (low <= first <= high and low <= last <= high):
            raise InvalidInput(name, f"{part[:80]!r} is not within {low} to {high}")
        numbers = [n for n in (*range(first, high + 1), *range(low, first)) if _within(n, first, last)]
    return numbers[:: int(match[3] or 1)]


def _within(n: int, first: int, last: int) -> bool:
    return first <= n <= last if first <= last else n >= first or n <= last


def _number(name: str, text: str) -> int:
    if text.isdecimal():
        return int(text)
    day = text[:3].lower()
    if name != "day_of_week" or day not in _DAYS:
        raise InvalidInput(name, f"{text!r} is neither a number nor the name of a weekday")
    return _DAYS.index(day)


def _ranges(numbers: set[int]) -> str:
    """`{1, 2, 3, 7}` as `1-3,7`."""
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    ends = sorted(n for n in numbers if n + 1 not in numbers)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
