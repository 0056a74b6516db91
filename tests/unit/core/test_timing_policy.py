"""The written policy of docs/cron-rules.md, row by row, and what cron.md lists to be tested first."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from pipeline.core.errors import InvalidSchedule
from pipeline.core.timing import TimingSpec, preview, timing_of


def runs(cron, tz, after, count, **policy):
    at = datetime.fromisoformat(after).replace(tzinfo=UTC)
    return [found.isoformat()[5:19] for found in preview(cron, tz=tz, after=at, count=count, **policy)]


YORK, LONDON, HOWE, PAULO = "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Sao_Paulo"


@pytest.mark.parametrize(
    ("row", "cron", "tz", "after", "expected"),
    [
        ("strictly after", "0 10 * * *", "UTC", "2026-05-01T10:00", ["05-02T10:00:00"]),
        ("gap, fixed", "30 2 * * *", YORK, "2026-03-08T00:00", ["03-08T07:00:00", "03-09T06:30:00"]),
        ("gap, one instant", "0,30 2,3 * * *", YORK, "2026-03-08T00:00", ["03-08T07:00:00", "03-08T07:30:00"]),
        ("gap, seconds", "15,45 30 2 * * *", YORK, "2026-03-08T00:00", ["03-08T07:00:00", "03-09T06:30:15"]),
        ("gap, interval", "*/30 2 * * *", YORK, "2026-03-08T00:00", ["03-09T06:00:00", "03-09T06:30:00"]),
        ("gap, rhythm", "0 */2 * * *", YORK, "2026-03-08T04:30", ["03-08T05:00:00", "03-08T08:00:00"]),
        ("gap, second star", "* 30 2 * * *", YORK, "2026-03-08T00:00", ["03-09T06:30:00"]),
        ("overlap, fixed", "30 1 * * *", YORK, "2026-11-01T00:00", ["11-01T05:30:00", "11-02T06:30:00"]),
        ("overlap, hourly", "0 * * * *", YORK, "2026-11-01T04:30", [f"11-01T0{n}:00:00" for n in (5, 6, 7)]),
        ("overlap, */20", "*/20 1 * * *", YORK, "2026-11-01T04:59",
            [f"11-01T0{h}:{m:02}:00" for h in (5, 6) for m in (0, 20, 40)]),
        ("in the second pass", "30 1 * * *", YORK, "2026-11-01T06:10", ["11-02T06:30:00"]),
        ("in the first pass", "30 1 * * *", YORK, "2026-11-01T05:30", ["11-02T06:30:00"]),
        ("London, gap", "30 1 * * *", LONDON, "2026-03-28T12:00", ["03-29T01:00:00", "03-30T00:30:00"]),
        ("London, overlap", "30 1 * * *", LONDON, "2026-10-24T12:00", ["10-25T00:30:00", "10-26T01:30:00"]),
        ("Lord Howe, gap", "15 2 * * *", HOWE, "2026-10-03T00:00", ["10-03T15:30:00", "10-04T15:15:00"]),
        ("Lord Howe, overlap", "45 1 * * *", HOWE, "2026-04-04T00:00", ["04-04T14:45:00", "04-05T15:15:00"]),
        ("Lord Howe, both", "*/30 1 * * *", HOWE, "2026-04-04T13:59",
            ["04-04T14:00:00", "04-04T14:30:00", "04-04T15:00:00"]),
        ("Sao Paulo, no midnight", "0 0 * * *", PAULO, "2018-11-03T12:00", ["11-04T03:00:00", "11-05T02:00:00"]),
        ("Sao Paulo, 23:30 twice", "30 23 * * *", PAULO, "2018-02-17T12:00", ["02-18T01:30:00", "02-19T02:30:00"]),
        ("Troll, two hours", "30 2 * * *", "Antarctica/Troll", "2026-03-28T12:00",
            ["03-29T01:00:00", "03-30T00:30:00"]),
        ("Troll, back", "30 2 * * *", "Antarctica/Troll", "2026-10-24T12:00", ["10-25T00:30:00", "10-26T02:30:00"]),
        ("Moscow, no summer time", "30 1 * * *", "Europe/Moscow", "2014-10-25T12:00",
            ["10-25T21:30:00", "10-26T22:30:00"]),
        ("Volgograd", "30 1 * * *", "Europe/Volgograd", "2020-12-26T12:00", ["12-26T21:30:00", "12-27T22:30:00"]),
        ("Casablanca, Ramadan", "30 2 * * *", "Africa/Casablanca", "2026-02-14T12:00",
            ["02-15T01:30:00", "02-16T02:30:00"]),
        ("Apia, no 30th", "0 0 * * *", "Pacific/Apia", "2011-12-29T12:00", ["12-30T10:00:00", "12-31T10:00:00"]),
        ("Kwajalein, no 21st", "0 12 * * *", "Pacific/Kwajalein", "1993-08-20T00:00",
            ["08-21T00:00:00", "08-22T00:00:00"]),
        ("either day", "0 0 13 * 5", "UTC", "2026-02-01T00:00",
            ["02-06T00:00:00", "02-13T00:00:00", "02-20T00:00:00"]),
        ("star: both days", "0 0 */2 * 5", "UTC", "2026-02-01T00:00", ["02-13T00:00:00", "02-27T00:00:00"]),
        ("question mark", "0 0 ? * 5", "UTC", "2026-02-01T00:00", ["02-06T00:00:00", "02-13T00:00:00"]),
        ("seconds first", "5 4 3 * * *", "UTC", "2026-02-01T00:00", ["02-01T03:04:05", "02-02T03:04:05"]),
        ("31W", "0 0 31W * *", "UTC", "2026-05-01T00:00", ["05-29T00:00:00", "07-31T00:00:00"]),
    ],
)  # fmt: skip
def test_policy(row, cron, tz, after, expected):
    assert runs(cron, tz, after, len(expected)) == expected, row


def test_named_choices_are_about_fixed_times():
    night, autumn = "2026-03-08T00:00", "2026-11-01T04:30"
    assert runs("30 2 * * *", YORK, night, 1, dst_gap="skip") == ["03-09T06:30:00"]
    assert runs("30 1 * * *", YORK, autumn, 2, dst_overlap="both") == ["11-01T05:30:00", "11-01T06:30:00"]
    yearly = {"dst_overlap": "both", "count": 4, "after": autumn, "tz": YORK}
    assert runs("0,30 1 1 11 *", **yearly)[1:] == ["11-01T05:30:00", "11-01T06:00:00", "11-01T06:30:00"]
    assert runs("0 * * * *", YORK, autumn, 2, dst_overlap="first") == ["11-01T05:00:00", "11-01T06:00:00"]


@pytest.mark.parametrize("tz", [YORK, LONDON, HOWE, PAULO])
@pytest.mark.parametrize("cron", ["30 1 * * *", "30 2 * * *", "0 0 * * *", "30 23 * * *"])
def test_a_nightly_job_runs_once_a_day_through_both_changes(cron, tz):
    timing = timing_of(TimingSpec(cron=cron, tz=tz))
    start = int(datetime(2017, 6, 1, tzinfo=UTC).timestamp()) * 1000
    found = timing.upcoming(start, 730)
    hours = {round((b - a) / 1_800_000) / 2 for a, b in pairwise(found)}
    assert hours <= {23.0, 23.5, 24.0, 24.5, 25.0}
    assert timing.count(start, found[-1]) == 730


def test_a_start_at_any_instant_of_the_autumn_night_gives_the_same_runs():
    """Two owners, one of them with a cold cache or started in between, compute the same occurrences."""
    night = int(datetime(2026, 11, 1, 3, tzinfo=UTC).timestamp()) * 1000
    for cron in ("30 1 * * *", "*/20 1 * * *", "0 * * * *", "15 0-3 * * *"):
        warm = timing_of(TimingSpec(cron=cron, tz=YORK))
        found = warm.upcoming(night, 9)
        for minute in range(0, 360, 7):
            at = night + minute * 60_000
            timing_of.cache_clear()
            cold = timing_of(TimingSpec(cron=cron, tz=YORK))
            assert cold.next_after(at) == next(each for each in found if each > at)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0 9-9 * * *", "hour field, character 3"),
        ("R * * * *", "minute field, character 1"),
        ("0 0 * * * * 2030", "7 fields"),
        (",".join(["1"] * 100_000) + " * * * *", "200007 characters"),
        (["0 * * * *"], "must be text"),
        ("0 0 30 2 *", "would never run"),
        ("0 0 0 31 4,6 *", "would never run"),
        ("0 0 * 2 1#5#1", "day of week field"),
        ("0 0 30W 2 *", "would never run"),
    ],
)
def test_what_is_to_be_refused_first_of_all(text, problem):
    with pytest.raises(InvalidSchedule, match=problem):
        preview(text, after=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("cron", "tz", "after", "until", "count"),
    [
        ("0 * * * *", YORK, "2026-03-08T05:00", "2026-03-09T04:00", 23),
        ("0 * * * *", YORK, "2026-11-01T04:00", "2026-11-02T05:00", 25),
        ("*/30 * * * *", HOWE, "2026-10-03T13:30", "2026-10-04T13:00", 47),
        ("*/30 * * * *", HOWE, "2026-04-04T13:00", "2026-04-05T13:30", 49),
        ("0 0 * * *", PAULO, "2018-11-03T02:30", "2018-11-06T02:30", 4),
        ("0 0 * * *", "Pacific/Apia", "2011-12-27T10:00", "2012-01-01T10:00", 5),
        ("* * * * *", "UTC", "2026-01-01T00:00", "2026-01-04T00:00", 4_320),
    ],
)
def test_windows(cron, tz, after, until, count):
    low, high = (
        int(datetime.fromisoformat(t).replace(tzinfo=UTC).timestamp()) * 1000 for t in (after, until)
    )
    timing = timing_of(TimingSpec(cron=cron, tz=tz))
    assert timing.count(low, high) == count == len(timing.latest(low, high, 10_000))
