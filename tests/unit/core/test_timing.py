"""Intervals, windows, exclusions, jitter, rare dates, and the public preview."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.cron import parse_cron
from pipeline.core.errors import InvalidSchedule
from pipeline.core.timing import Cronned, TimingSpec, timing_of
from pipeline.core.wall import Wall
from pipeline.core.zones import zone_data_version, zone_names, zone_of

HOUR, DAY_MS = 3_600_000, 86_400_000


def ms(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@contextmanager
def calls_below(limit):
    """What it costs, in calls: the same on a quick machine, on a busy one, and with coverage measured."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert calls < limit


def shown(instants):
    return [datetime.fromtimestamp(at / 1000, UTC).isoformat()[:16] for at in instants]


def of(cron=None, **more):
    return timing_of(TimingSpec(cron=cron, **more))


def test_strictly_after():
    timing, at = of("0 10 * * *"), ms("2026-05-01T10:00")
    assert timing.next_after(at) == at + DAY_MS
    assert timing.next_after(at - 1) == at


def test_an_interval_is_anchored_to_the_epoch_and_its_phase():
    timing = of(every_ms=90_000, phase_ms=7_000)
    assert timing.upcoming(0, 3) == [7_000, 97_000, 187_000]
    assert timing.upcoming(7_000, 1) == [97_000]
    assert timing.count(7_000, 187_000) == 2
    assert timing.latest(0, 200_000, 2) == [97_000, 187_000]
    assert of("@every 90s").upcoming(0, 2) == [90_000, 180_000]


def test_start_is_included_and_end_is_not():
    start, end = ms("2026-05-01T10:00"), ms("2026-05-03T10:00")
    timing = of("0 10 * * *", start_at=start, end_at=end)
    assert timing.upcoming(0, 9) == [start, start + DAY_MS]
    assert timing.count(0, end + DAY_MS) == 2
    assert timing.latest(0, end + DAY_MS, 1) == [start + DAY_MS]
    assert timing.count(end, end + DAY_MS) == 0
    assert timing.latest(end, end + DAY_MS, 5) == []
    assert timing.next_after(end) is None
    assert of("0 10 * * *", end_at=end).next_after(end) is None
    ends_in_the_past = of("0 10 * * *", end_at=ms("2020-01-01T00:00"))
    assert shown(ends_in_the_past.latest(0, end, 1)) == ["2019-12-31T10:00"]


def test_rare_dates_are_found():
    assert shown(of("0 0 29 2 *").upcoming(ms("2096-03-01T00:00"), 1)) == ["2104-02-29T00:00"]
    leap_monday = of("0 0 29 2 */1").upcoming(ms("2026-01-01T00:00"), 1)
    assert shown(leap_monday) == ["2028-02-29T00:00"]
    mondays = of("0 0 */1 2 *", exclude=(("no", ("cron:* * * * 0,2-6", "cron:* * 1-28 * *")),))
    assert shown(mondays.upcoming(ms("2072-03-01T00:00"), 2)) == ["2112-02-29T00:00", "2140-02-29T00:00"]
    assert of("0 0 29 2 *", tz="Europe/Berlin").next_after(ms("9998-01-01T00:00")) is None
    assert of("@every 1h").next_after(ms("9998-01-01T00:00")) == ms("9998-01-01T01:00")
    assert of("0 0 1 1 *").next_after(-(1 << 60)) == ms("1800-01-01T00:00")


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31W 2 *"])
def test_what_never_runs_is_refused(cron):
    with pytest.raises(InvalidSchedule, match="would never run"):
        of(cron)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("cron", {}),
        ("cron", {"cron": "* * * * *", "every_ms": 1000}),
        ("cron", {"cron": "@every soon"}),
        ("every", {"cron": "@every 10ms"}),
        ("every", {"cron": "@every 0s"}),
        ("cron", {"cron": "@every"}),
        ("cron", {"cron": "@every 90s", "every_ms": 90_000}),
        ("cron", {"every_ms": 90_000, "after_ms": 90_000}),
        ("every", {"every_ms": 51 * 366 * DAY_MS}),
        ("exclude", {"after_ms": 90_000, "exclude": (("a", ("christmas",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:H * * * *",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:",)),)}),
        ("cron", {"cron": "0 0 1 1 *", "start_at": ms("2026-02-01T00:00"), "end_at": ms("2026-12-01T00:00")}),
        ("every", {"every_ms": 3_600_000, "exclude": (("a", ("cron:0 * * * *",)),)}),
        ("every", {"every_ms": 5_000, "exclude": (("a", ("cron:* * * * *",)),)}),
        ("every", {"every_ms": 999}),
        ("every", {"after_ms": -1}),
        ("tz", {"cron": "* * * * *", "tz": "Europe/Atlantis"}),
        ("tz", {"cron": "* * * * *", "tz": "../../etc/passwd"}),
        ("tz", {"cron": "* * * * *", "tz": 7}),
        ("dst_gap", {"cron": "* * * * *", "dst_gap": "twice"}),
        ("dst_overlap", {"cron": "* * * * *", "dst_overlap": "second"}),
        ("end", {"cron": "* * * * *", "start_at": 5, "end_at": 5}),
        ("jitter", {"cron": "* * * * *", "jitter_ms": -1}),
        ("jitter", {"cron": "* * * * *", "jitter_ms": 60_001}),
        ("jitter", {"every_ms": 5000, "jitter_ms": 6000}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-13-01",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("christmas",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-01-02..2026-01-01",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:* *",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:30 * * * * *",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-01-01",) * 2001),)}),
        ("cron", {"cron": "0 9 * * *", "exclude": (("all", ("cron:* 9 * * *",)),)}),
        ("cron", {"cron": "* * * * * *", "exclude": (("all", ("cron:* * * * *",)),)}),
    ],
)
def test_bad_specs_are_refused_by_field(field, spec):
    with pytest.raises(InvalidSchedule) as refused:
        timing_of(TimingSpec(**spec))
    assert refused.value.field == field


def test_a_schedule_that_follows_its_own_end_has_no_grid():
    timing = of(after_ms=600_000, jitter_ms=10_000)
    assert timing.words == "10m after the last run finished"
    assert 0 <= timing.due_of(5) - 5 < 10_000
    assert timing.next_after(0) is None
    assert (timing.count(0, DAY_MS), timing.latest(0, DAY_MS, 5), timing.upcoming(0, 5)) == (0, [], [])


def test_excluded_dates_and_windows_do_not_run_and_do_not_count():
    holidays = (
        ("holidays", ("2026-12-25", "2026-12-31..2027-01-01")),
        ("nights", ("cron:* 0-5 * * *",)),
    )
    timing = of("0 */3 * * *", tz="Europe/Berlin", exclude=holidays)
    got = timing.upcoming(ms("2026-12-24T12:00"), 9)
    assert shown(got) == [
        "2026-12-24T14:00",
        "2026-12-24T17:00",
        "2026-12-24T20:00",
        "2026-12-26T05:00",
        "2026-12-26T08:00",
        "2026-12-26T11:00",
        "2026-12-26T14:00",
        "2026-12-26T17:00",
        "2026-12-26T20:00",
    ]
    assert timing.count(ms("2026-12-24T12:00"), got[-1]) == 9
    assert timing.latest(ms("2026-12-24T12:00"), got[-1], 2) == got[-2:]


@given(st.integers(0, 1 << 40), st.sampled_from(["*/7 * * * *", "0 */2 * * *", "15 3 * * 1"]))
def test_jitter_is_the_same_for_ever_and_ends_before_the_next(after, cron):
    plain, late = of(cron), of(cron, schedule_id="a", jitter_ms=400_000)
    nominal = plain.upcoming(after, 5)
    due = [late.due_of(at) for at in nominal]
    assert due == [late.due_of(at) for at in nominal]
    assert all(0 <= d - n < 400_000 for n, d in zip(nominal, due, strict=True))
    assert all(d < n for d, n in zip(due, nominal[1:], strict=False))
    assert plain.due_of(after) == after


def test_jitter_of_the_last_one_and_of_two_schedules():
    end = ms("2026-05-01T10:00") + 1
    nominal = end - 1
    assert of("0 10 * * *", schedule_id="a", jitter_ms=HOUR, end_at=end).due_of(nominal) == nominal
    last, other = (of("0 10 * * *", schedule_id=id, jitter_ms=HOUR).due_of(nominal) for id in "ab")
    assert last != other
    assert nominal <= min(last, other) <= max(last, other) < nominal + HOUR


ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
]


@given(
    st.sampled_from(["*/20 * * * *", "30 2 * * *", "0 1 * * *", "*/30 2 * * *", "0 0 1 * *", "5 4 * * 0,6"]),
    st.sampled_from(ZONES),
    st.integers(ms("2008-01-01T00:00"), ms("2034-01-01T00:00")),
    st.integers(1, 400 * DAY_MS),
)
def test_counting_walking_and_looking_back_agree(cron, tz, after, span):
    timing, until = of(cron, tz=tz), after + span // (40 if "*/" in cron else 1)
    found = timing.latest(after, until, 1 << 30)
    assert timing.count(after, until) == len(found)
    assert found == sorted(set(found))
    assert timing.upcoming(after, len(found)) == found
    assert all(after < at <= until for at in found)


def test_windows_of_the_reference():
    """Slots in (after, until]: the hours lost and gained in New York, the day that Apia left out."""
    york = of("0 * * * *", tz="America/New_York")
    assert york.count(ms("2026-03-08T05:00"), ms("2026-03-09T04:00")) == 23
    assert york.count(ms("2026-11-01T04:00"), ms("2026-11-02T05:00")) == 25
    assert of("* * * * *").count(0, 3 * DAY_MS) == 4320
    days = of("0 0 * * *", tz="Pacific/Apia").count(ms("2011-12-27T10:00"), ms("2012-01-01T10:00"))
    assert days == 5


def test_the_second_pass_by_itself():
    fixed = of("30 1 * * *", tz="America/New_York")
    assert fixed.count(ms("2026-11-01T06:10"), ms("2026-11-01T06:50")) == 0
    assert fixed.latest(ms("2026-11-01T06:10"), ms("2026-11-01T06:50"), 1) == []


def test_a_gap_at_the_end_of_what_is_asked_for():
    """The instant made up after a gap is none within a window that ends before it."""
    before = of("30 2 * * *", tz="America/New_York", end_at=ms("2026-03-08T07:00"))
    assert before.next_after(ms("2026-03-08T00:00")) is None


def test_named_choices_for_the_odd_nights():
    spring, autumn = ms("2026-03-08T00:00"), ms("2026-10-31T12:00")
    zone = "America/New_York"
    assert shown(of("30 2 * * *", tz=zone, dst_gap="skip").upcoming(spring, 1)) == ["2026-03-09T06:30"]
    both = of("30 1 * * *", tz=zone, dst_overlap="both").upcoming(autumn, 2)
    assert shown(both) == ["2026-11-01T05:30", "2026-11-01T06:30"]


def test_seconds_first_and_shifted_ones_on_the_whole_minute():
    got = of("30 30 2 * * *", tz="America/New_York").upcoming(ms("2026-03-08T00:00"), 2)
    assert [at % 60_000 for at in got] == [0, 30_000]
    assert shown(got) == ["2026-03-08T07:00", "2026-03-09T06:30"]


# -- zones -----------------------------------------------------------------------------------------------------


def test_zone_data():
    assert zone_data_version() >= "2025"
    assert {"UTC", "Europe/Berlin"} <= zone_names()


@pytest.mark.parametrize("at", [-(1 << 36), -1, 0, 1 << 25, (1 << 25) - 1, 1 << 38])
def test_any_second_lies_in_a_stretch(at):
    stretch = zone_of("Europe/Berlin").stretch(at)
    assert stretch.start <= at < stretch.end


def test_stretches_join_and_few_are_kept():
    zone = zone_of("Europe/Berlin")
    at, seen = 0, []
    while at < 1 << 34:
        seen.append(zone.stretch(at))
        at = seen[-1].end
    assert {stretch.offset for stretch in seen} == {3600, 7200}
    assert len(zone._chunks) <= 256


def test_no_zone_changes_twice_between_two_looks():
    """Stretches are found by looking every four days. Read here from the files themselves."""
    for name in zone_names():
        jumps = file_jumps(name)
        assert all(b - a > 4 * 86_400 for a, b in pairwise(jumps)), name


def file_jumps(name):
    """Seconds at which the offset changes, of the 64-bit block of a TZif file (RFC 8536)."""
    data = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()

    def header(at):
        return struct.unpack(">6l", data[at + 20 : at + 44])

    utc, std, leap, times, types, chars = header(0)
    at = 44 + times * 5 + types * 6 + chars + leap * 8 + std + utc
    times, types = header(at)[3:5]
    seconds = struct.unpack(f">{times}q", data[at + 44 : at + 44 + 8 * times])
    kinds = data[at + 44 + 8 * times : at + 44 + 9 * times]
    table = at + 44 + 9 * times
    offsets = [struct.unpack(">l", data[table + 6 * kind : table + 6 * kind + 4])[0] for kind in kinds]
    return [second for second, (a, b) in zip(seconds[1:], pairwise(offsets), strict=False) if a != b]


def test_a_pass_that_reaches_into_the_next_chunk_is_still_the_second():
    """Stretches are looked up by chunks of seconds; a jump right before the end of one counts in the next."""
    from zoneinfo import ZoneInfo

    from pipeline.core.zones import Zone

    class Zoned(Zone):
        def _offset(self, at):
            return 3600 if at < (40 << 25) - 600 else 0

    zone = Zoned("Test/Zone", ZoneInfo("UTC"))
    seam = (40 << 25) - 600
    fixed, rhythm = (
        Cronned(Wall(parse_cron("*/1 * * * *")), zone, make_up=False, both_passes=both)
        for both in (False, True)
    )
    around = (seam - 3600) * 1000, (seam + 7200) * 1000
    assert rhythm.count(*around) == 180
    assert fixed.count(*around) == 120
    assert fixed.first((seam + 700) * 1000) >= (seam + 3600) * 1000
    assert fixed.last(around[0], (seam + 3600) * 1000) < seam * 1000


# -- exclusions of intervals -----------------------------------------------------------------------------------

CLOSED = (("nights", ("cron:* 0-6 * * *",)), ("days", ("2026-03-29..2026-03-30",)))


@pytest.mark.parametrize("every", [7_000, 90_000, HOUR, 5 * HOUR])
def test_an_interval_with_exclusions(every):
    timing = of(every_ms=every, phase_ms=3_000, tz="Europe/Berlin", exclude=CLOSED)
    zone = zone_of("Europe/Berlin").info
    after, until = ms("2026-03-27T03:00") + 1_234, ms("2026-04-01T09:00") + 777

    def runs(at):
        wall = datetime.fromtimestamp(at // 1000, zone)
        return wall.hour > 6 and (wall.month, wall.day) not in ((3, 29), (3, 30))

    first = after + (3_000 - after) % every
    expected = [at for at in range(first, until + 1, every) if runs(at)]
    assert timing.count(after, until) == len(expected)
    assert timing.upcoming(after, 300) == expected[:300] or timing.upcoming(after, len(expected)) == expected
    assert timing.latest(after, until, 300) == expected[-300:]
    assert timing.latest(ms("2026-03-29T03:00"), ms("2026-03-29T20:00"), 5) == []


def test_what_is_made_up_after_a_gap_is_not_if_that_minute_or_the_time_itself_is_excluded():
    night = ms("2026-03-28T12:00")
    for rule in ("cron:30 2 29 3 *", "cron:0 3 * * *", "2026-03-29"):
        timing = of("30 2 * * *", tz="Europe/Berlin", exclude=(("no", (rule,)),))
        assert "2026-03-29T01:00" not in shown(timing.upcoming(night, 2))
    timing = of("30 2 * * *", tz="Europe/Berlin", exclude=(("no", ("cron:1 3 * * *",)),))
    assert shown(timing.upcoming(night, 1)) == ["2026-03-29T01:00"]


def test_looking_back_over_what_is_excluded():
    hourly = of(every_ms=HOUR, exclude=(("tops", ("cron:0-5 9 * * *",)),))
    nine = ms("2026-05-01T09:00")
    assert hourly.latest(nine - 1, nine + HOUR // 2, 5) == []
    assert hourly.latest(nine - 2 * HOUR - 1, nine, 5) == [nine - 2 * HOUR, nine - HOUR]
    workdays = of("0 9 * * *", exclude=(("weekends", ("cron:* 9 * * 0,6",)),))
    assert shown(workdays.latest(0, ms("2026-05-03T12:00"), 2)) == ["2026-04-30T09:00", "2026-05-01T09:00"]


def test_counting_with_windows_is_what_walking_finds():
    timing = of("*/10 * * * *", tz="Europe/Berlin", exclude=CLOSED)
    after, until = ms("2026-03-01T00:00"), ms("2026-04-15T00:00")
    found = timing.upcoming(after, 10_000)
    assert timing.count(after, until) == sum(at <= until for at in found)
    assert timing.latest(after, until, 500) == [at for at in found if at <= until][-500:]


# -- cost ------------------------------------------------------------------------------------------------------


def test_thousands_of_schedules_share_what_is_alike():
    """Of every second even, whose times of a day spelled out would be megabytes each."""
    of("* * * * * *", schedule_id="warm").count(0, 40 * DAY_MS)
    tracemalloc.start()
    kept = [of("* * * * * *", schedule_id=f"s{n}", jitter_ms=5) for n in range(1_000)]
    for timing in kept:
        timing.next_after(ms("2026-05-01T10:00"))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size / len(kept) < 3_000


def test_far_more_days_and_years_than_are_kept():
    timing = of("0 12 * * 1-5", tz="America/New_York")
    found = timing.upcoming(0, 2_000)
    assert timing.count(0, found[-1]) == 2_000
    assert len(of("0 0 1 1 *", tz="Europe/Berlin").upcoming(ms("1900-01-01T12:00"), 150)) == 150
    rare = of("0 0 1 * *").upcoming(ms("1900-01-01T12:00"), 1_300)
    assert shown(rare[-1:]) == ["2008-05-01T00:00"]


WINDOWS = (
    *(f"cron:* * {day} * {'1-3' if day % 2 else '*'}" for day in range(1, 32)),
    *(f"cron:* {hour} * * *" for hour in range(24)),
    *(f"cron:*/{n} {n % 24} {n % 28 + 1} * {n % 7}" for n in range(2, 147)),
)
"""As many as may be: no day is like another, and nothing is left of any."""


@pytest.mark.parametrize(
    "spec",
    [
        {"cron": "0 10 * * *"},
        {"cron": "* * * * * *"},
        {"every_ms": 86_399_000},
        {"every_ms": 1_000},
    ],
)
def test_the_worst_definition_is_refused_before_its_owner_is_missed(spec):
    """An owner looks at it, too, and is ended by its watchdog if that takes seconds; the next one would be as well."""
    with (
        calls_below(1_500_000),
        pytest.raises(InvalidSchedule, match=r"would never run, with what is excluded left out"),
    ):
        of(**spec, tz="Europe/Berlin", exclude=(("all", WINDOWS),))
    with pytest.raises(InvalidSchedule, match="201 rules with expressions are more than 200"):
        of(**spec, exclude=(("all", (*WINDOWS, "cron:0 0 * * *")),))


def test_a_rhythm_that_meets_what_is_open_once_in_more_than_50_years_never_runs():
    """A minute of each year is open, and the rhythm comes by a second later each day."""
    minute = ("cron:1-59 * * * *", "cron:0 1-23 * * *", "cron:* * 2-31 * *", "cron:* * * 2-12 *")
    with pytest.raises(InvalidSchedule, match="would never run"):
        of(every_ms=86_399_000, phase_ms=40_000_000, exclude=(("most", minute),))
    assert shown(of(every_ms=120_000, exclude=(("most", minute),)).upcoming(ms("2026-01-01T00:01"), 2)) == [
        "2027-01-01T00:00",
        "2028-01-01T00:00",
    ]


@pytest.mark.parametrize("every", [1_000, 61_000, 3_601_000])
def test_what_was_missed_for_years_is_counted_by_days(every):
    with calls_below(15_000_000):
        timing = of(every_ms=every, tz="Europe/Berlin", exclude=(("half", ("cron:*/2 * * * *",)),))
        years = timing.count(ms("1990-01-01T00:00"), ms("2026-01-01T00:00"))
    assert years == pytest.approx((ms("2026-01-01T00:00") - ms("1990-01-01T00:00")) / every / 2, rel=0.001)
