"""Zones as rows of stretches, each with one offset from UTC, from the `tzdata` package: the same on every machine."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import tzdata

from pipeline.core.errors import InvalidSchedule

LONGEST_JUMP = 3 * 3600
"""Seconds by which a wall clock is moved at most; beyond, the calendar was set right (date line)."""
FIRST, LAST = -5_364_662_400, 250_000_000_000
"""1800-01-01 and the year 9892, in seconds: a zone stays as it is at these ends."""
_CHUNK_BITS = 25
"""Stretches are looked up by chunks of 2**25 seconds, about a year."""
_PROBE = 4 * 86_400
"""Offsets are looked at this often: no zone has changed twice within six days (a test looks at all of them)."""
_CHUNKS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Stretch:
    """Instants [start, end) with one `offset` from UTC, all in seconds, east of it positive.

    `again_until` = wall time before which the wall clock shows what it has shown already (the second pass of an hour);
    `missing_from` = wall time from which on it jumped over what lies before `start + offset`. Both are
    `start + offset` where the clock did not jump there, or by more than LONGEST_JUMP.
    """

    start: int
    end: int
    offset: int
    again_until: int
    missing_from: int


class Zone:
    """A zone of the IANA database. `info` is for showing."""

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name, self.info = name, info
        self._chunks: dict[int, tuple[list[int], list[Stretch]]] = {}

    def stretch(self, at: int) -> Stretch:
        """The stretch that holds this second. Its ends are jumps of the clock, or arbitrary."""
        chunk = at >> _CHUNK_BITS
        found = self._chunks.get(chunk)
        if found is None:
            if len(self._chunks) >= _CHUNKS_KEPT:
                self._chunks.clear()
            found = self._chunks[chunk] = self._read(chunk << _CHUNK_BITS)
        starts, stretches = found
        return stretches[bisect_right(starts, at) - 1]

    def _read(self, begin: int) -> tuple[list[int], list[Stretch]]:
        # Begun before the chunk, since the second pass of a jump shortly before it may reach into it.
        at, end = begin - _PROBE, begin + (1 << _CHUNK_BITS)
        stretches, offset = [], self._offset(at)
        start, again_until, missing_from = at, at + offset, at + offset
        while at < end:
            following = min(at + _PROBE, end)
            now = self._offset(following)
            if now != offset:
                seam = self._seam(at, following, now)
                stretches.append(Stretch(start, seam, offset, again_until, missing_from))
                jump = now - offset
                start, again_until, missing_from = seam, seam + now, seam + now
                if 0 < jump <= LONGEST_JUMP:
                    missing_from -= jump
                elif 0 < -jump <= LONGEST_JUMP:
                    again_until -= jump
                offset = now
            at = following
        stretches.append(Stretch(start, end, offset, again_until, missing_from))
        return [each.start for each in stretches], stretches

    def _seam(self, low: int, high: int, offset: int) -> int:
        """The first second in (low, high] with this offset."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(min(max(at, FIRST), LAST), self.info).utcoffset()
        assert offset is not None
        return offset.days * 86_400 + offset.seconds


@lru_cache(maxsize=1024)
def zone_of(name: str) -> Zone:
    """The zone of this name. InvalidSchedule('tz') if there is none."""
    if not isinstance(name, str) or name not in zone_names():
        raise InvalidSchedule(
            "tz", f"{str(name)[:80]!r} is no zone of the IANA database, such as Europe/Berlin"
        )
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return Zone(name, ZoneInfo.from_file(file, key=name))


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """The zones there are."""
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


def zone_data_version() -> str:
    """The release of the zone data in use, such as 2026c."""
    return str(tzdata.IANA_VERSION)
