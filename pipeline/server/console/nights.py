"""Nights on which a zone's clock changes. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from pipeline.core.times import aware
from pipeline.core.zones import zone_of

AHEAD_S = 400 * 86_400
"""A zone that changes its clock at all does so within a year, or seldom."""


class Night(NamedTuple):
    """The clock changes at `at` (epoch ms) by `by` (positive: forward), at the local time `wall` of before."""

    at: int
    by: timedelta
    wall: str

    @property
    def told(self) -> str:
        minutes = abs(self.by) // timedelta(minutes=1)
        length = "1 hour" if minutes == 60 else f"{minutes} minutes"
        return f"{self.wall}: the clock goes {'forward' if self.by > timedelta() else 'back'} by {length}"


def nights(zone_name: str, now: int, most: int = 2) -> list[Night]:
    """The next ones. InvalidSchedule('tz')."""
    zone = zone_of(zone_name)
    at, found = now // 1000, list[Night]()
    end = at + AHEAD_S
    while len(found) < most:
        stretch = zone.stretch(at)
        if stretch.end > end:
            break
        by = zone.stretch(stretch.end).offset - stretch.offset
        if by:  # else the end of what is kept of it together
            wall = aware((stretch.end + stretch.offset) * 1000)
            found.append(Night(stretch.end * 1000, timedelta(seconds=by), f"{wall:%a %Y-%m-%d %H:%M}"))
        at = stretch.end
    return found
