"""Zones as rows of segments, each with one offset from UTC, from the `tzdata` package: the same on every machine."""

from __future__ import annotations

import importlib.resources
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import tzdata

from pipeline.core.cron import DAY_MS
from pipeline.core.errors import InvalidSchedule

_PROBE_MS = 6 * 3_600_000
"""Offsets are looked at this often: no zone has changed twice within six hours."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
FIRST_YEAR, LAST_YEAR = 1850, 9998
"""Before the first a zone stays as it is then; after the last there are no instants."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Instants [start, end) with one `offset` from UTC (ms, east of it positive), which holds `since` the clock jumped;
    `before` is the offset until then. Years cut segments: of a jump more than a day before `start` nothing is told,
    then `before` is `offset`."""

    start: int
    end: int
    offset: int
    since: int
    before: int


class Zone:
    """A zone of the IANA database."""

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name, self.info = name, info
        self._of_year = lru_cache(maxsize=512)(self._segments)

    def segment(self, at: int) -> Segment:
        """The segment that holds the instant."""
        return next(segment for segment in self._of_year(_year(at)) if at < segment.end)

    def segments(self, first: int, last: int) -> list[Segment]:
        """The segments from the one that holds `first` to the one that holds `last`."""
        found = [self.segment(first)] if first <= last else []
        while found and found[-1].end <= last:
            found.append(self.segment(found[-1].end))
        return found

    def _segments(self, year: int) -> tuple[Segment, ...]:
        start, end = _begin(year), _begin(year + 1)
        found, offset, before = [], self._offset(start), self._offset(start - DAY_MS)
        since = start if before == offset else self._seam(start - DAY_MS, start)
        for probe in range(start, end, _PROBE_MS):
            until = min(probe + _PROBE_MS, end - 1)
            now = self._offset(until)
            if now != offset:
                seam = self._seam(probe, until)
                found.append(Segment(start, seam, offset, since, before))
                start, since, before, offset = seam, seam, offset, now
        return (*found, Segment(start, end, offset, since, before))

    def _seam(self, low: int, high: int) -> int:
        """The first instant in (low, high] with the offset of `high`."""
        offset = self._offset(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high

    def _offset(self, at: int) -> int:
        offset = (_EPOCH + at * _MS).astimezone(self.info).utcoffset()
        assert offset is not None
        return offset // _MS


def _year(at: int) -> int:
    days = at // DAY_MS
    if days < -43_830:
        return FIRST_YEAR
    return min((_EPOCH + timedelta(days=days)).year, LAST_YEAR) if days < 2_932_000 else LAST_YEAR


def _begin(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // _MS


@lru_cache(maxsize=1024)
def zone_of(name: str) -> Zone:
    """The zone of this name. InvalidSchedule('tz') if there is none."""
    if not isinstance(name, str) or name not in zone_names():
        raise InvalidSchedule(
            "tz", f"{str(name)[:80]!r} is no zone of the IANA database, such as Europe/Berlin"
        )
    with importlib.resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return Zone(name, ZoneInfo.from_file(file, key=name))


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The zones there are."""
    text = importlib.resources.files("tzdata").joinpath("zones").read_text("utf-8")
    return frozenset(text.split())


def zone_data_version() -> str:
    """The release of the zone data in use, such as 2026c."""
    return str(tzdata.IANA_VERSION)
