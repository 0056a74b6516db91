"""Every instant around the jumps of the wall clock, against an independent walk over real minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.core.timing import TimingSpec, timing_of
from pipeline.core.zones import zone_names, zone_of

from .minute_walk import Fields, minutes, runs, transitions

EXPRESSIONS = [
    "* * * * *",
    "*/20 * * * *",
    "*/30 2 * * *",
    "*/20 3 * * *",
    "0 */2 * * *",
    "*/30 */2 * * *",
    "0 * * * *",
    "15 * * * *",
    "30 1 * * *",
    "30 2 * * *",
    "15,45 2 * * *",
    "0 0 * * *",
    "59 23 * * *",
    "0 3 * * 0",
    "5 0-4 * * *",
    "10-50/20 1-3 * * *",
    "0,30 0,1,2,3 * * 6,0",
    "30 2 1-15 * 0",
    "0 1-23/2 * * *",
    "45 1 */2 * *",
]
NIGHTS = timedelta(hours=16)
FIRST_YEAR, LAST_YEAR = 2024, 2026


def check(name: str, begin: datetime, end: datetime) -> None:
    zone = zone_of(name).info
    walked = list(minutes(zone, begin, end))
    after, until = int(begin.timestamp()) * 1000, int(end.timestamp()) * 1000
    for text in EXPRESSIONS:
        fields = Fields(text)
        expected = [int(minute.at.timestamp()) * 1000 for minute in walked if runs(fields, minute)]
        timing = timing_of(TimingSpec(cron=text, tz=name))
        where = f"{text} in {name} from {begin}"
        assert timing.latest(after, until, 1 << 30) == expected, where
        assert timing.count(after, until) == len(expected), where
        found, at = [], after
        while (at := timing.next_after(at) or until + 1) <= until:
            found.append(at)
        assert found == expected, where


@pytest.mark.parametrize(
    ("name", "instant"),
    [
        ("America/New_York", "2026-03-08T07:00"),
        ("America/New_York", "2026-11-01T06:00"),
        ("Europe/London", "2026-10-25T01:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:30"),
        ("Australia/Lord_Howe", "2026-04-04T15:00"),
        ("Antarctica/Troll", "2026-03-29T01:00"),
        ("Antarctica/Troll", "2026-10-25T01:00"),
        ("America/Sao_Paulo", "2018-11-04T03:00"),
        ("America/Sao_Paulo", "2018-02-18T02:00"),
        ("Europe/Moscow", "2014-10-25T22:00"),
        ("Europe/Volgograd", "2020-12-26T22:00"),
        ("Africa/Casablanca", "2026-02-15T02:00"),
        ("Pacific/Apia", "2011-12-30T10:00"),
        ("Pacific/Kwajalein", "1993-08-21T12:00"),
        ("America/Havana", "2026-11-01T05:00"),
    ],
)
def test_nights_on_which_the_clock_jumps(name, instant):
    at = datetime.fromisoformat(instant).replace(tzinfo=UTC)
    check(name, at - NIGHTS, at + NIGHTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_rule_set_of_three_years():
    """Zones that jump alike for three years are one; the days around each of their jumps are walked."""
    alike: dict[tuple[tuple[datetime, timedelta], ...], str] = {}
    for name in sorted(zone_names()):
        if jumps := transitions(zone_of(name).info, FIRST_YEAR, LAST_YEAR):
            alike.setdefault(jumps, name)
    assert len(alike) > 20
    for jumps, name in alike.items():
        for at, _ in jumps:
            check(name, at - timedelta(hours=26), at + timedelta(hours=26))


def test_a_jump_at_the_turn_of_the_year_is_one_too():
    """Segments are cut there. Kiritimati left out 31 December 1994."""
    at = datetime(1994, 12, 31, 10, tzinfo=UTC)
    check("Pacific/Kiritimati", at - NIGHTS, at + NIGHTS)
