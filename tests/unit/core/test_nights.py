"""What a zone's clock does at an instant, in words."""

from __future__ import annotations

from datetime import datetime

import pytest

from pipeline.core.nights import unusual
from pipeline.core.zones import zone_of


@pytest.mark.parametrize(
    ("zone", "at", "told"),
    [
        ("Europe/Berlin", "2027-01-15T12:00:00+00:00", ""),
        ("Europe/Berlin", "2027-03-28T01:00:00+00:00", "the clock goes forward by 1 hour right before it"),
        ("Europe/Berlin", "2027-03-28T01:00:01+00:00", ""),
        ("Europe/Berlin", "2027-10-31T00:30:00+00:00", "this time comes twice: the first pass"),
        ("Europe/Berlin", "2027-10-31T01:30:00+00:00", "this time comes twice: the second pass"),
        (
            "Australia/Lord_Howe",
            "2027-10-02T15:30:00+00:00",
            "the clock goes forward by 30 minutes right before it",
        ),
        ("UTC", "2027-03-28T01:00:00+00:00", ""),
    ],
)
def test_nights_on_which_the_clock_changes(zone: str, at: str, told: str) -> None:
    instant = datetime.fromisoformat(at)
    assert unusual(instant, instant.astimezone(zone_of(zone).info)) == told
