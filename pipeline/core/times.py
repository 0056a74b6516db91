"""Instants and durations at the edge: text and datetimes in, integer milliseconds inside (DESIGN §6).

A fraction of a millisecond is rounded up: a job may fire late, never early.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_CEILING, Decimal

from pipeline.core.errors import InvalidInput
from pipeline.core.job import EARLIEST, LATEST, Millis

Duration = str | timedelta | float
"""As `parse_duration` reads it: `10m`, a timedelta, or a number of seconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = Millis(200 * 366 * 86_400_000)

# RFC 3339 §5.6: letters of either case, and a space for the T; seconds and offset are not optional.
_INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]{1,30})?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
_UNITS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,15}})?){unit})?" for unit in _UNITS))


def parse_instant(field: str, text: object) -> Millis:
    """An RFC 3339 instant as epoch ms. InvalidInput naming `field` if malformed, naive or absurd."""
    match = _INSTANT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidInput(field, f"{_shown(text)} is no RFC 3339 instant such as 2030-01-31T09:30:00Z")
    if match[8] is None and match[9] is None:
        raise InvalidInput(field, f"{_shown(text)} has no offset: add Z or one such as +02:00")
    year, month, day, hour, minute, second, fraction, *_ = match.groups()
    try:
        whole = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=_zone(match)
        )
    except ValueError as error:
        raise InvalidInput(field, f"{_shown(text)} is no instant: {error}") from None
    ms = (whole - _EPOCH) // _MILLISECOND
    return _plausible(field, ms + _ceiling(Decimal(fraction) * 1000) if fraction else ms, text)


def instant_of(field: str, value: datetime) -> Millis:
    """An aware datetime as epoch ms. InvalidInput naming `field` if it is naive or absurd."""
    if value.utcoffset() is None:
        raise InvalidInput(field, f"{value} is naive: add a time zone, for example tzinfo=datetime.UTC")
    return _plausible(field, -((_EPOCH - value) // _MILLISECOND), value)


def parse_duration(field: str, value: object) -> Millis:
    """A duration as ms: text (`90s`, `1h30m`, `1.5h`, `500ms`, `2d`, `1w`), a timedelta, a number of seconds.

    Units go from large to small, each at most once; text without a unit is refused, since nobody can tell
    `10` seconds from `10` minutes. Zero is allowed. InvalidInput naming `field` if malformed, negative or
    over 200 years.
    """
    match value:
        case str():
            exact = _read_duration(field, value)
        case timedelta():
            exact = Decimal(value // timedelta(microseconds=1)) / 1000
        case int() | float() if not isinstance(value, bool):
            exact = Decimal(value) * 1000
        case _:
            raise InvalidInput(field, f"{_shown(value)} is no duration such as 90s, 10m or 1h30m")
    if exact.is_nan() or exact < 0:
        raise InvalidInput(field, f"{_shown(value)} is no duration: it must be zero or more")
    if exact > _LONGEST:
        raise InvalidInput(field, f"{_shown(value)} is longer than 200 years")
    return Millis(_ceiling(exact))


def format_instant(ms: int) -> str:
    """Epoch ms as RFC 3339 in UTC with milliseconds and Z, the one form the product writes."""
    return aware(ms).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def written_instant(value: datetime) -> str:
    """An aware datetime in the one form the product writes."""
    return format_instant((value - _EPOCH) // _MILLISECOND)


def aware(ms: int) -> datetime:
    """Epoch ms as an aware datetime in UTC. OverflowError outside the years 1 to 9999."""
    return _EPOCH + ms * _MILLISECOND


def _zone(match: re.Match[str]) -> timezone:
    if match[8]:
        return UTC
    hours, minutes = int(match[10]), int(match[11])
    if hours > 23 or minutes > 59:
        raise ValueError("the offset must be within 23:59")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(offset if match[9] == "+" else -offset)


def _plausible(field: str, ms: int, given: object) -> Millis:
    computed = isinstance(given, datetime)  # a number was made into it, perhaps of the other unit
    if ms < EARLIEST:
        hint = ": were seconds taken for milliseconds?" if computed else ""
        raise InvalidInput(field, f"{_shown(given)} is before 2000{hint}")
    if ms > LATEST:
        hint = ": were milliseconds taken for seconds?" if computed else ""
        raise InvalidInput(field, f"{_shown(given)} is after 2200{hint}")
    return Millis(ms)


def _read_duration(field: str, text: str) -> Decimal:
    if text.startswith("-"):
        raise InvalidInput(field, f"{_shown(text)} is no duration: it must be zero or more")
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise InvalidInput(field, f"{_shown(text)} is no duration such as 90s, 10m or 1h30m")
    amounts = zip(match.groups(), _UNITS.values(), strict=True)
    return sum((Decimal(amount) * unit for amount, unit in amounts if amount), Decimal(0))


def _ceiling(exact: Decimal) -> int:
    return int(exact.to_integral_value(ROUND_CEILING))


def _shown(value: object) -> str:
    # repr keeps it on one line whatever it holds; a datetime reads better as text.
    text = str(value) if isinstance(value, (datetime, timedelta)) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
