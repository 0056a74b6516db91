"""Schedules in plain words: `weekdays at 08:00 Berlin`.

cron-descriptor tells times of day where its reading is ours: five fields, minute and hour alone. Days are told here,
since it reads an either-or of days as both, and neither H, LW nor a range over the end.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from pipeline.core.cron import DAY, HOUR, MINUTE, SECOND, WEEKDAY, Cron, parse_cron

if TYPE_CHECKING:
    from pipeline.core.timing import TimingSpec

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_NTH = ("last", "first", "second", "third", "fourth", "fifth")
_WEEKDAYS = frozenset(range(1, 6))
_LISTED = 4
"""Times of a day that are named one by one at most."""
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))


@lru_cache(maxsize=4096)
def words_of(spec: TimingSpec) -> str:
    """What the spec says, but for start, end and jitter. The spec is one that `timing_of` has compiled."""
    if spec.after_ms is not None:
        return f"{_duration(spec.after_ms)} after the last run finished"
    if spec.every_ms is not None:
        told = f"every {_duration(spec.every_ms)}"
    else:
        assert spec.cron is not None
        cron = parse_cron(spec.cron, spec.schedule_id)
        told = f"{_days(cron)}{_times(cron)} {spec.tz.rpartition('/')[2].replace('_', ' ')}"
    names = [name for name, _ in spec.exclude]
    return f"{told}, not on {_listed(names)}" if names else told


def _duration(ms: int) -> str:
    parts = []
    for unit, length in _UNITS:
        if count := ms // length:
            parts.append(f"{count}{unit}")
        ms %= length
    return "".join(parts) + (f"{ms}ms" if ms else "")


# -- times of day ----------------------------------------------------------------------------------------------


def _times(cron: Cron) -> str:
    if len(cron.hours) * len(cron.minutes) * len(cron.seconds) <= _LISTED:
        second = "" if cron.fields[SECOND] == "0" else ":{:02}"
        clock = "{:02}:{:02}" + second
        return "at " + _listed(
            [clock.format(h, m, s) for h in cron.hours for m in cron.minutes for s in cron.seconds]
        )
    if cron.fields[SECOND] == "0":
        return _library_times(cron)
    seconds = _field("second", cron.seconds, 60)
    rhythm = seconds.startswith("every") and len(cron.minutes) == 60
    minutes = "" if rhythm else f" of {_field('minute', cron.minutes, 60)}"
    hours = "" if len(cron.hours) == 24 else f" of {_field('hour', cron.hours, 24)}"
    return seconds + minutes + hours


def _library_times(cron: Cron) -> str:
    minute, hour = (_spelled(cron, at, size) for at, size in ((MINUTE, 60), (HOUR, 24)))
    from cron_descriptor import Options, get_description

    options = Options(use_24hour_time_format=True, locale_code="en_US")
    told = str(get_description(f"{minute} {hour} * * *", options))
    return told[0].lower() + told[1:]


def _spelled(cron: Cron, at: int, size: int) -> str:
    """The field as the library tells it rightly: a star, a step that divides it, a range or a list, ascending."""
    values = cron.minutes if at == MINUTE else cron.hours
    if len(values) == size:
        return "*"
    if (step := _step(values, size)) is not None:
        return f"*/{step}"
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{values[0]}-{values[-1]}"
    return ",".join(map(str, values))


def _field(name: str, values: tuple[int, ...], size: int) -> str:
    if len(values) == size:
        return f"every {name}"
    if (step := _step(values, size)) is not None:
        return f"every {step} {name}s"
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{name}s {values[0]} to {values[-1]}"
    return f"{name}{'s' * (len(values) > 1)} {_listed(list(map(str, values)))}"


def _step(values: tuple[int, ...], size: int) -> int | None:
    """n if they are every n-th of all, from 0 on and round the clock."""
    steps = {b - a for a, b in pairwise((*values, values[0] + size))}
    return steps.pop() if values[0] == 0 and len(steps) == 1 and len(values) > 1 else None


# -- days ------------------------------------------------------------------------------------------------------


def _days(cron: Cron) -> str:
    """Empty if it is every day and the times tell that there are many."""
    rule = cron.days
    of_month, of_week = _of_month(cron), _of_week(cron)
    told = [each for each in (of_month, of_week) if each]
    words = (" or " if rule.either else " and only ").join(told)
    if len(rule.months) < 12:
        words = f"{words or 'every day'} in {_listed([_MONTHS[month - 1] for month in sorted(rule.months)])}"
    if not words:
        return "" if len(cron.hours) == 24 else "every day "
    return f"{words} "


def _of_month(cron: Cron) -> str:
    rule = cron.days
    if cron.fields[DAY] in ("*", "?"):
        return ""
    if rule.nearest is not None:
        nearest = "last day" if rule.nearest > 31 else _ordinal(rule.nearest)
        return f"on the weekday nearest the {nearest} of the month"
    return f"on the {_listed([*_rows(sorted(rule.days)), *['last day'] * rule.last])} of the month"


def _rows(days: list[int]) -> list[str]:
    """Day by day, but three or more in a row together: `8th to 14th`."""
    told: list[str] = []
    first_ones = (day for day in days if day - 1 not in days)
    last_ones = (day for day in days if day + 1 not in days)
    for first, last in zip(first_ones, last_ones, strict=True):
        if last - first > 1:
            told.append(f"{_ordinal(first)} to {_ordinal(last)}")
        else:
            told += [_ordinal(day) for day in range(first, last + 1)]
    return told


def _of_week(cron: Cron) -> str:
    rule = cron.days
    if cron.fields[WEEKDAY] in ("*", "?"):
        return ""
    if rule.nth:
        return (
            _listed([f"on the {_NTH[which]} {_DAYS[day]}" for day, which in sorted(rule.nth)])
            + " of the month"
        )
    if rule.weekdays == _WEEKDAYS:
        return "weekdays"
    # A week begins on Monday, as most calendars have it.
    return _listed([f"{_DAYS[day]}s" for day in sorted(rule.weekdays, key=lambda day: (day - 1) % 7)])


def _ordinal(day: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th") if not 11 <= day <= 13 else "th"
    return f"{day}{ending}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
