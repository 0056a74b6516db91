"""Nights on which clocks change."""

from __future__ import annotations

import pytest

from pipeline.core.errors import InvalidSchedule
from pipeline.core.times import format_instant, parse_instant
from pipeline.server.console.nights import nights

NOW = parse_instant("now", "2026-11-30T12:00:00Z")


def told(zone: str) -> list[tuple[str, str]]:
    return [(format_instant(night.at), night.told) for night in nights(zone, NOW)]


def test_berlin() -> None:
    assert told("Europe/Berlin") == [
        ("2027-03-28T01:00:00.000Z", "Sun 2027-03-28 02:00: the clock goes forward by 1 hour"),
        ("2027-10-31T01:00:00.000Z", "Sun 2027-10-31 03:00: the clock goes back by 1 hour"),
    ]


def test_half_an_hour() -> None:
    assert told("Australia/Lord_Howe")[0][1] == "Sun 2027-04-04 02:00: the clock goes back by 30 minutes"


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/Sao_Paulo"])
def test_where_it_does_not_change(zone: str) -> None:
    assert told(zone) == []


def test_a_zone_that_there_is_not() -> None:
    with pytest.raises(InvalidSchedule, match="tz"):
        nights("Mars/Base", NOW)
