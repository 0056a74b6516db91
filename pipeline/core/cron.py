"""Cron expressions: the grammar, over croniter, and which days and times of day they name.

croniter reads the fields and nothing else: what it takes and should not is refused or spelled out before it sees it,
and time is not its business (`core.timing`), since it fires fixed times twice in the autumn hour and moves intervals
out of the gap. The grammar with all its rules is written down in docs/cron-rules.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from croniter import croniter

from pipeline.core.errors import InvalidSchedule

LENGTH_LIMIT = 256
"""Characters of an expression at most: a list of 100,000 items would take half a second to read."""
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY = range(6)
_NAMES = ("second", "minute", "hour", "day of month", "month", "day of week")
_LOW, _HIGH = (0, 0, 0, 1, 1, 0), (59, 59, 23, 31, 12, 6)
_H_HIGH = (59, 59, 23, 28, 12, 6)
"""What H is chosen up to: day 28 at most, so that it comes every month."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WORDS: dict[int, dict[str, int]] = {
    MONTH: {name: number for number, name in enumerate(MONTHS, 1)},
    WEEKDAY: {name: number for number, name in enumerate(WEEKDAYS)},
}
_FIELD = re.compile(r"\S+", re.ASCII)  # a no-break space separates nothing
_LEGAL = re.compile(r"[0-9A-Za-z*?,/#()-]*")
_RANDOM = re.compile(r"r(\(.*)?(/.*)?")
_HASHED = re.compile(r"h(?:\((\d{1,4})-(\d{1,4})\))?(?:/(\d{1,9}))?")
_HAS_HASHED = re.compile(r"(?i)(?:^|[\s,])h(?:$|[\s,(/])")
_RANGE = re.compile(r"([a-z]{3}|\d{1,4})-([a-z]{3}|\d{1,4})(?:/(\d{1,9}))?")
_LAST_OF = re.compile(r"([0-7])l")
_SUNDAY_STEP = re.compile(r"7/[1-9]\d*")
_SPECIAL = re.compile(r".*#.*|l.+|.+l")


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRule:
    """Which days match. `nearest` = the day whose nearest weekday is meant, 32 for the last of a month; `nth` = pairs
    of weekday (0 = Sunday) and which one of the month, 0 for the last, and takes the place of `weekdays`. `either`:
    both day fields are restricted, so one of them is enough (Vixie cron)."""

    months: frozenset[int]
    days: frozenset[int]
    last: bool
    nearest: int | None
    weekdays: frozenset[int]
    nth: frozenset[tuple[int, int]]
    either: bool

    @lru_cache(maxsize=1 << 14)  # noqa: B019 - rules are few and kept for as long as schedules have them
    def of_month(self, month: int, first: int, length: int) -> int:
        """The days of a month whose 1st is a `first` (0 = Sunday), as bits: bit 0 is the 1st."""
        if month not in self.months:
            return 0
        of_month, of_week = self._of_month(first, length), self._of_week(first, length)
        return of_month | of_week if self.either else of_month & of_week

    def _of_month(self, first: int, length: int) -> int:
        if self.nearest is not None:
            day = length if self.nearest > 31 else self.nearest
            return _bits([_nearest(day, first, length)]) if day <= length else 0
        return _bits([day for day in self.days if day <= length] + [length] * self.last)

    def _of_week(self, first: int, length: int) -> int:
        if not self.nth:
            return _bits(day for day in range(1, length + 1) if (first + day - 1) % 7 in self.weekdays)
        found: list[int] = []
        for weekday, which in self.nth:
            days = range(1 + (weekday - first) % 7, length + 1, 7)
            found += days[which - 1 : which or None]
        return _bits(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """An expression that was read: its times of day are all of hours x minutes x seconds, ascending.

    `fields` = second (`0` if there were five), minute, hour, day of month, month, day of week: lower case, H chosen.
    `interval` = it names a rhythm and no fixed times (minute, hour or second starts with a star), so it follows elapsed
    time where the wall clock jumps.
    """

    fields: tuple[str, ...]
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: DayRule
    interval: bool


def _bits(days: Iterable[int]) -> int:
    found = 0
    for day in days:
        found |= 1 << day - 1
    return found


def _nearest(day: int, first: int, length: int) -> int:
    """The weekday nearest to `day` within its month."""
    match (first + day - 1) % 7:
        case 6:
            return day - 1 if day > 1 else day + 2
        case 0:
            return day + 1 if day < length else day - 2
        case _:
            return day


# -- reading ---------------------------------------------------------------------------------------------------


def parse_cron(text: str, schedule_id: str = "") -> Cron:
    """Read an expression. H fields are chosen by the schedule's id, so they are the same everywhere and always.

    Raises InvalidSchedule('cron') naming the field and the position, counted in characters from 1.
    """
    return _parse(text, schedule_id if uses_id(text) else "")


def uses_id(text: object) -> bool:
    """Whether it has an H, so that what it means depends on the id of the schedule. InvalidSchedule if it is no text
    or too long to look at."""
    if not isinstance(text, str):
        raise InvalidSchedule("cron", f"must be text, not {type(text).__name__}")
    if len(text) > LENGTH_LIMIT:
        raise InvalidSchedule("cron", f"is {len(text)} characters long, more than {LENGTH_LIMIT}")
    return _HAS_HASHED.search(text) is not None


@dataclass(frozen=True, slots=True)
class _Field:
    """One field: which, where it stands (from 1), its text in lower case."""

    at: int
    position: int
    text: str

    def items(self) -> Iterator[tuple[int, str]]:
        position = self.position
        for item in self.text.split(","):
            yield position, item
            position += len(item) + 1

    def starts_with(self, marks: str) -> bool:
        return self.text[0] in marks


@lru_cache(maxsize=1 << 14)
def _parse(text: str, schedule_id: str) -> Cron:
    fields = _fields(text)
    plain = [_plain(field, schedule_id) for field in fields]
    try:
        read = _ask(plain)
    except Exception:  # noqa: BLE001 - it raises errors of many kinds on what it cannot read: find out where
        raise _culprit(fields, plain) from None
    day, _, weekday = fields[-3:]
    sets = [_numbers(values, at) for at, values in enumerate(_seconds_first(read))]
    return Cron(
        fields=tuple(plain) if len(plain) == len(_NAMES) else ("0", *plain),
        seconds=sets[SECOND],
        minutes=sets[MINUTE],
        hours=sets[HOUR],
        days=DayRule(
            months=frozenset(sets[MONTH]),
            days=frozenset(sets[DAY]),
            last="l" in read.expanded[2],
            nearest=32 if day.text == "lw" else min(read.nearest_weekday or (), default=None),
            weekdays=frozenset(sets[WEEKDAY]),
            nth=_nth(read.nth_weekday_of_month),
            either=not day.starts_with("*?") and not weekday.starts_with("*?"),
        ),
        interval=any(field.starts_with("*") for field in fields[:-3]),
    )


def _ask(fields: list[str]) -> croniter:
    return croniter(" ".join(fields), 0.0, second_at_beginning=len(fields) == len(_NAMES))


def _seconds_first(read: croniter) -> list[list[int | str]]:
    minute_first = read.expanded
    return [minute_first[5] if len(minute_first) > 5 else [0], *minute_first[:5]]


def _numbers(values: list[int | str], at: int) -> tuple[int, ...]:
    if "*" in values:
        return tuple(range(_LOW[at], _HIGH[at] + 1))
    return tuple(sorted(value for value in values if isinstance(value, int)))


def _nth(read: dict[int, set[int | str]]) -> frozenset[tuple[int, int]]:
    return frozenset(
        (weekday, int(n) if n != "l" else 0) for weekday, numbers in read.items() for n in numbers
    )


# -- refusing and spelling out ---------------------------------------------------------------------------------


def _fields(text: str) -> list[_Field]:
    found = [(match.start() + 1, match[0]) for match in _FIELD.finditer(text)]
    if found and found[0][1].startswith("@"):
        found = [(found[0][0], field) for field in _alias([word for _, word in found]).split()]
    missing = len(_NAMES) - len(found)
    for number, (position, field) in enumerate(found):
        legal = len(_LEGAL.match(field)[0])  # type: ignore[index]
        if legal < len(field):
            which = f"{_NAMES[number + missing]} field" if missing in (0, 1) else f"field {number + 1}"
            problem = f"{field[legal]!r} has no meaning here"
            raise InvalidSchedule("cron", f"{which}, character {position + legal}: {problem}")
    if missing not in (0, 1):
        raise InvalidSchedule("cron", f"{text[:40]!r} has {_count(len(found))}")
    return [_Field(number + missing, place, field.lower()) for number, (place, field) in enumerate(found)]


def _count(number: int) -> str:
    years = " (years are not read)" if number == 7 else ""
    return (
        f"{number} field{'s' * (number != 1)}{years}: five are needed (minute, hour, day of month, month, day of week),"
        " or six with seconds first"
    )


def _alias(words: list[str]) -> str:
    name = " ".join(words).lower()
    if name == "@reboot":
        raise InvalidSchedule("cron", "@reboot names no time: a scheduler that is always on has no start")
    if name not in ALIASES:
        raise InvalidSchedule("cron", f"{name[:40]!r} is none of {', '.join(ALIASES)}, @every DURATION")
    return ALIASES[name]


def _plain(field: _Field, schedule_id: str) -> str:
    """The field as croniter may see it."""
    items = [item for _, item in field.items()]
    special = [_SPECIAL.fullmatch(item) is not None for item in items]
    if field.at == WEEKDAY and any(special) and not all(special):
        raise _bad(field.position, _NAMES[WEEKDAY], f"{field.text!r} has plain weekdays beside # or L")
    return ",".join(_plain_item(field.at, position, item, schedule_id) for position, item in field.items())


def _plain_item(at: int, position: int, item: str, schedule_id: str) -> str:
    if _RANDOM.fullmatch(item):
        raise _bad(position, _NAMES[at], "R is drawn anew at every start: use H, which stays")
    if hashed := _HASHED.fullmatch(item):
        return _chosen(at, position, hashed, schedule_id)
    if found := _RANGE.fullmatch(item):
        return _range(at, position, found)
    if at == DAY and item == "lw":
        return "31w"
    if at == WEEKDAY and (last := _LAST_OF.fullmatch(item)):
        return f"l{last[1]}"
    # To croniter 7/2 would begin at 0.
    return "7" if at == WEEKDAY and _SUNDAY_STEP.fullmatch(item) else item


def _range(at: int, position: int, found: re.Match[str]) -> str:
    """A range of one value would be the whole cycle to croniter; one over the end with a step it counts wrongly."""
    low, high = (_value(at, text) for text in (found[1], found[2]))
    step = int(found[3] or 1)
    if low is None or high is None or not step:
        return found[0]  # croniter says what is wrong with it
    if not _LOW[at] <= min(low, high) <= max(low, high) <= _HIGH[at] + (at == WEEKDAY):
        raise _bad(position, _NAMES[at], f"{found[0]!r} is not within {_within(at)}")
    if low == high or (at == WEEKDAY and (low, high) == (7, 0)):
        raise _bad(position, _NAMES[at], f"{found[0]!r} is a range of one value: write {found[1]}")
    if at == WEEKDAY:
        low %= 7
    if low <= high or found[3] is None:
        return found[0]
    base, span = _LOW[at], _HIGH[at] - _LOW[at] + 1
    return ",".join(str((n - base) % span + base) for n in range(low, high + span + 1, step))


def _value(at: int, text: str) -> int | None:
    return int(text) if text.isdecimal() else _WORDS.get(at, {}).get(text)


def _chosen(at: int, position: int, found: re.Match[str], schedule_id: str) -> str:
    """H, H(0-29), H/15, H(0-29)/10 as the numbers that the id of the schedule chooses, other ones in each field."""
    if not schedule_id:
        raise _bad(position, _NAMES[at], "H is chosen by the id of a schedule, and none is given")
    low, high, step = int(found[1] or _LOW[at]), int(found[2] or _H_HIGH[at]), int(found[3] or 1)
    if not _LOW[at] <= low < high <= _HIGH[at] or not step:
        raise _bad(
            position, _NAMES[at], f"{found[0]!r} is not H, H({low}-{high}) or H/n within {_within(at)}"
        )
    digest = hashlib.blake2b(f"{schedule_id}\0{_NAMES[at]}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    if found[3] is None:
        return str(low + number % (high - low + 1))
    first = low + number % min(step, high - low + 1)
    return ",".join(map(str, range(first, high + 1, step)))


def _culprit(fields: list[_Field], plain: list[str]) -> InvalidSchedule:
    """Each item alone among stars; if each is right by itself, together they are not."""
    stars = ["*"] * len(fields)
    for number, field in enumerate(fields):
        for position, item in field.items():
            text = _plain_item(field.at, position, item, "any")
            if not _reads([*stars[:number], text, *stars[number + 1 :]]):
                return _bad(position, _NAMES[field.at], _problem(field.at, item))
        if not _reads([*stars[:number], plain[number], *stars[number + 1 :]]):
            return _bad(field.position, _NAMES[field.at], f"{field.text!r} mixes what does not go together")
    return InvalidSchedule("cron", "its fields do not go together")


def _reads(fields: list[str]) -> bool:
    try:
        _ask(fields)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _problem(at: int, item: str) -> str:
    if not item:
        return "an item of the list is empty"
    if item.isdecimal():
        return f"{item[:20]} is not within {_within(at)}"
    return f"{item[:40]!r} is no value, range or step of {_within(at)}"


def _within(at: int) -> str:
    return f"{_LOW[at]}-{_HIGH[at] + (at == WEEKDAY)}"


def _bad(position: int, name: str, problem: str) -> InvalidSchedule:
    return InvalidSchedule("cron", f"{name} field, character {position}: {problem}")
