"""Cron expressions: the grammar, over croniter, and which days and times of day they name.

croniter reads the fields and nothing else: what it takes and should not is refused before it sees it, and time is not
its business (`core.timing`), since it fires fixed times twice in the autumn hour and moves intervals out of the gap.
Rules: Vixie cron as Debian runs it; five fields, or six with seconds first; L, W, # and H as croniter has them.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from croniter import croniter

from pipeline.core.errors import InvalidSchedule

LENGTH_LIMIT = 256
"""Characters of an expression at most: a list of 100,000 items would take half a second to read."""
DAY_MS = 86_400_000
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_NAMES = ("second", "minute", "hour", "day of month", "month", "day of week")
_FIRST, _LAST = (0, 0, 0, 1, 1, 0), (59, 59, 23, 31, 12, 6)
_SPACE = " \t\n\r\v\f"
_FIELD = re.compile(r"[^ \t\n\r\v\f]+")
_LEGAL = re.compile(r"[0-9A-Za-z*?,/#()-]+")
_RANDOM = re.compile(r"(?i)(?:^|,)R(?:[(/,]|$)")
_HASHED = re.compile(r"(?i)(?:^|,)H(?:[(/,]|$)")
_RANGE = re.compile(r"(\w+)-(\w+)(?:/\d+)?")
_SUNDAY_STEP = re.compile(r"7/\d+")
_LONG_NUMBER = re.compile(r"\d{10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """An expression that was read. `times` = the times of a matching day, ms since its midnight by the wall clock,
    ascending. `interval` = it names a rhythm, not fixed times (minute, hour or second starts with a star), so it
    follows elapsed time where the wall clock jumps (as the Debian/Vixie daemon does)."""

    text: str
    fields: tuple[str, ...]
    """Second (`0` if there were five), minute, hour, day of month, month, day of week, as written."""
    times: tuple[int, ...]
    months: frozenset[int]
    interval: bool
    days: Callable[[int, int], tuple[int, ...]]
    """(year, month) -> its matching days, ascending."""

    def of_month(self, year: int, month: int) -> tuple[int, ...]:
        return self.days(year, month) if month in self.months else ()


@lru_cache(maxsize=1 << 14)
def parse_cron(text: str, schedule_id: str = "") -> Cron:
    """Read an expression. H fields are resolved from the schedule's id, so they are the same everywhere and always.

    Raises InvalidSchedule('cron') naming the field and the position.
    """
    fields = _fields(text)
    hashed = [number for number, (_, field) in enumerate(fields) if _HASHED.search(field)]
    if hashed and not schedule_id:
        raise _bad(
            fields[hashed[0]][0], _name(fields, hashed[0]), "H needs the id of a schedule to be chosen by"
        )
    try:
        read = _read([_plain(fields, number) for number in range(len(fields))], schedule_id)
    except Exception:  # noqa: BLE001
        # Whatever it raises on what it cannot read (it is not one kind of error): find out where.
        raise _culprit(fields, schedule_id) from None
    seconds, minutes, hours = read.sets[0], read.sets[1], read.sets[2]
    written = tuple(field for _, field in fields)
    written = written if len(written) == len(_NAMES) else ("0", *written)
    return Cron(
        text=text,
        fields=written,
        times=tuple((h * 3600 + m * 60 + s) * 1000 for h, m, s in product(hours, minutes, seconds)),
        months=frozenset(read.sets[4]),
        interval=any(field.startswith("*") for field in written[:3]),
        days=lru_cache(maxsize=256)(_Days(read, written)),
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """What croniter made of the fields: the numbers of each, ascending; `L` of the day of month; weekdays by
    their number within the month; days whose nearest weekday is meant."""

    sets: tuple[tuple[int, ...], ...]
    last: bool
    nth: dict[int, set[int | str]]
    nearest: frozenset[int]


def _read(fields: list[str], schedule_id: str) -> _Read:
    six = len(fields) == len(_NAMES)
    read = croniter(" ".join(fields), hash_id=schedule_id.encode() or None, second_at_beginning=six)
    expanded = [*read.expanded]
    expanded = [expanded[5], *expanded[:5]] if six else [[0], *expanded]
    sets = tuple(
        tuple(range(first, last + 1)) if values == ["*"] else tuple(sorted(v for v in values if v != "l"))
        for values, first, last in zip(expanded, _FIRST, _LAST, strict=True)
    )
    return _Read(
        sets, "l" in expanded[3], dict(read.nth_weekday_of_month), frozenset(read.nearest_weekday or ())
    )


class _Days:
    """Which days of a month match: both day fields restricted = either; one of them starting with a star or `?` = both
    (Vixie cron)."""

    def __init__(self, read: _Read, fields: tuple[str, ...]) -> None:
        self._read = read
        of_month, of_week = (fields[number].startswith(("*", "?")) for number in (3, 5))
        self._either = not of_month and not of_week

    def __call__(self, year: int, month: int) -> tuple[int, ...]:
        first_weekday, length = monthrange(year, month)  # 0 = Monday
        of_month = self._of_month(first_weekday, length)
        of_week = {day for day in range(1, length + 1) if self._on((first_weekday + day) % 7, day, length)}
        return tuple(sorted(of_month | of_week if self._either else of_month & of_week))

    def _of_month(self, first_weekday: int, length: int) -> set[int]:
        read = self._read
        if read.nearest:
            return {_nearest(day, first_weekday, length) for day in read.nearest if day <= length}
        days = {day for day in read.sets[3] if day <= length}
        return days | {length} if read.last else days

    def _on(self, weekday: int, day: int, length: int) -> bool:
        """`weekday`: 0 = Sunday."""
        if weekday not in self._read.sets[5]:
            return False
        which = self._read.nth.get(weekday)
        return which is None or (day + 6) // 7 in which or ("l" in which and day + 7 > length)


def _nearest(day: int, first_weekday: int, length: int) -> int:
    """The weekday nearest to `day` within its month."""
    match (first_weekday + day - 1) % 7:
        case 5:
            return day - 1 if day > 1 else day + 2
        case 6:
            return day + 1 if day < length else day - 2
        case _:
            return day


# -- refusing --------------------------------------------------------------------------------------------------


def _fields(text: str) -> list[tuple[int, str]]:
    """The fields with their positions, from 1; an alias is written out."""
    if not isinstance(text, str):
        raise InvalidSchedule("cron", f"must be text, not {type(text).__name__}")
    if len(text) > LENGTH_LIMIT:
        raise InvalidSchedule("cron", f"is {len(text)} characters long, at most {LENGTH_LIMIT} are read")
    stripped = text.strip(_SPACE)
    if stripped.startswith("@"):
        return [(1, field) for field in _alias(stripped).split()]
    fields = [(found.start() + 1, found[0]) for found in _FIELD.finditer(text)]
    if len(fields) not in (5, 6):
        raise InvalidSchedule(
            "cron",
            f"{text[:80]!r} has {len(fields)} fields: five are needed (minute, hour, day of month, month, day of week),"
            " or six with seconds first",
        )
    for number, (position, field) in enumerate(fields):
        _check(position, _name(fields, number), field)
    return fields


def _alias(text: str) -> str:
    written = ALIASES.get(text.lower())
    if written is None and text.lower() == "@reboot":
        raise InvalidSchedule(
            "cron", "@reboot names no time: a scheduler that is always on has no start to run it at"
        )
    if written is None:
        raise InvalidSchedule("cron", f"{text[:40]!r} is none of {', '.join(ALIASES)} and @every DURATION")
    return written


def _check(position: int, name: str, field: str) -> None:
    legal = _LEGAL.match(field)
    end = legal.end() if legal else 0
    if end < len(field):
        raise _bad(position + end, name, f"{field[end]!r} has no meaning here")
    if found := _RANDOM.search(field):
        raise _bad(position + found.start(), name, "R would be drawn anew on every start; use H, which stays")
    if found := _LONG_NUMBER.search(field):
        raise _bad(position + found.start(), name, "a number of so many digits is out of any range")


def _plain(fields: list[tuple[int, str]], number: int) -> str:
    """The field as croniter may see it: an equal range would be the whole cycle to it, `7/2` would begin at 0."""
    of_week = _name(fields, number) == _NAMES[5]
    return ",".join(_plain_item(item, of_week) for item in fields[number][1].split(","))


def _plain_item(item: str, of_week: bool) -> str:
    if of_week and _SUNDAY_STEP.fullmatch(item):
        return "0"
    found = _RANGE.fullmatch(item)
    return found[1] if found is not None and found[1].lower() == found[2].lower() else item


def _culprit(fields: list[tuple[int, str]], schedule_id: str) -> InvalidSchedule:
    """Each item alone among stars; if each is right by itself, together they are not."""
    for number, (position, field) in enumerate(fields):
        for item in field.split(","):
            if not _reads(fields, number, _plain_item(item, _name(fields, number) == _NAMES[5]), schedule_id):
                return _bad(position, _name(fields, number), _problem(item, fields, number))
            position += len(item) + 1
        if not _reads(fields, number, _plain(fields, number), schedule_id):
            return _bad(
                fields[number][0], _name(fields, number), f"{field!r} mixes what does not go together"
            )
    return InvalidSchedule("cron", "its fields do not go together")


def _reads(fields: list[tuple[int, str]], number: int, text: str, schedule_id: str) -> bool:
    alone = ["*"] * len(fields)
    alone[number] = text
    try:
        _read(alone, schedule_id)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _problem(item: str, fields: list[tuple[int, str]], number: int) -> str:
    at = number + len(_NAMES) - len(fields)
    top = 7 if at == len(_NAMES) - 1 else _LAST[at]
    if not item:
        return "an item of the list is empty"
    if item.isdecimal():
        return f"{item} is not within {_FIRST[at]}-{top}"
    return f"{item!r} is no value, range or step of {_FIRST[at]}-{top}"


def _name(fields: list[tuple[int, str]], number: int) -> str:
    return _NAMES[number + len(_NAMES) - len(fields)]


def _bad(position: int, name: str, problem: str) -> InvalidSchedule:
    return InvalidSchedule("cron", f"{name} field, character {position}: {problem}")
