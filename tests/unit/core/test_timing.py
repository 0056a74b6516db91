"""Intervals, windows, exclusions, jitter, rare dates, and the public preview."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.cron import DAY_MS
from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.timing import LAST_INSTANT, TimingSpec, every_of, preview, timing_of
from pipeline.core.zones import zone_data_version, zone_names, zone_of

HOUR = 3_600_000


def ms(text):
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


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
    assert (every_of("@every 5m"), every_of("* * * * *")) == (300_000, None)


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
    assert of("0 0 29 2 *", tz="Europe/Berlin").next_after(ms("9998-01-01T00:00")) is None


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
        ("every", {"every_ms": 999}),
        ("every", {"after_ms": -1}),
        ("tz", {"cron": "* * * * *", "tz": "Europe/Atlantis"}),
        ("tz", {"cron": "* * * * *", "tz": "../../etc/passwd"}),
        ("tz", {"cron": "* * * * *", "tz": 7}),
        ("dst_gap", {"cron": "* * * * *", "dst_gap": "twice"}),
        ("dst_overlap", {"cron": "* * * * *", "dst_overlap": "second"}),
        ("end", {"cron": "* * * * *", "start_at": 5, "end_at": 5}),
        ("jitter", {"cron": "* * * * *", "jitter_ms": -1}),
        ("jitter", {"cron": "* * * * *", "jitter_ms": 60_000}),
        ("jitter", {"every_ms": 5000, "jitter_ms": 6000}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-13-01",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("christmas",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-01-02..2026-01-01",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:* *",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("cron:30 * * * * *",)),)}),
        ("exclude", {"cron": "* * * * *", "exclude": (("a", ("2026-01-01",) * 1001),)}),
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
    with pytest.raises(AssertionError):
        timing.next_after(0)


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
    last = of("0 10 * * *", schedule_id="a", jitter_ms=HOUR, end_at=end).due_of(end - 1)
    other = of("0 10 * * *", schedule_id="b", jitter_ms=HOUR, end_at=end).due_of(end - 1)
    assert last != other
    assert end - 1 <= min(last, other) <= max(last, other) < end + HOUR


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


@pytest.mark.parametrize("at", [-2000 * 365 * DAY_MS, 0, LAST_INSTANT])
def test_any_instant_lies_in_a_segment(at):
    segment = zone_of("Europe/Berlin").segment(at)
    assert at < segment.end
    assert zone_of("Europe/Berlin").segments(at, at - 1) == []


def test_segments_join():
    joined = zone_of("Europe/Berlin").segments(ms("2020-01-01T00:00"), ms("2026-01-01T00:00"))
    assert all(a.end == b.start for a, b in pairwise(joined))
    assert len({segment.offset for segment in joined}) == 2


# -- preview ---------------------------------------------------------------------------------------------------


def test_preview_gives_aware_instants_in_utc():
    after = datetime(2026, 11, 30, 9, 0, tzinfo=timezone(timedelta(hours=1)))
    got = preview("0 10 * * *", tz="Europe/Berlin", after=after, count=2)
    assert got == [datetime(2026, 11, 30, 9, tzinfo=UTC), datetime(2026, 12, 1, 9, tzinfo=UTC)]
    assert all(at.tzinfo is UTC for at in got)
    assert preview("@every 1h", after=after, count=0) == []


def test_preview_takes_a_fraction_of_a_millisecond_as_before_the_next():
    at = datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert preview("0 10 * * *", after=at - timedelta(microseconds=1)) == [at]
    assert preview("0 10 * * *", after=at + timedelta(microseconds=1)) == [at + timedelta(days=1)]


def test_preview_with_a_policy():
    after = datetime(2026, 1, 1, tzinfo=UTC)
    got = preview(
        "H 10 * * *",
        after=after,
        count=9,
        schedule_id="a",
        exclude={"second": ["2026-01-02"]},
        start=after,
        end=datetime(2026, 1, 4, tzinfo=UTC),
    )
    assert [at.day for at in got] == [1, 3]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("after", {"after": datetime(2026, 1, 1)}),  # noqa: DTZ001
        ("after", {"after": "2026-01-01"}),
        ("after", {"after": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23)))}),
        ("count", {"count": -1}),
        ("count", {"count": True}),
        ("count", {"count": 1 << 40}),
    ],
)
def test_preview_refuses_by_field(field, options):
    with pytest.raises(InvalidInput) as refused:
        preview("* * * * *", **({"after": datetime(2026, 1, 1, tzinfo=UTC)} | options))
    assert refused.value.field == field


# -- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 8 * * mon-fri", "At 08:00, Monday through Friday (Europe/Berlin)"),
        ("@daily", "At 00:00 (Europe/Berlin)"),
        ("*/5 * * * *", "Every 5 minutes (Europe/Berlin)"),
        ("0 8 1 * fri", "minute 0, hour 8, day of month 1, day of week fri (either day) (Europe/Berlin)"),
        ("0 8 L * *", "minute 0, hour 8, day of month L (Europe/Berlin)"),
        ("0 0 8 * * *", "minute 0, hour 8 (Europe/Berlin)"),
        ("* * * * * *", "every second (Europe/Berlin)"),
        ("0 8 * * 7", "minute 0, hour 8, day of week 7 (Europe/Berlin)"),
        ("@every 90s", "every 90s"),
    ],
)
def test_words(cron, words):
    assert of(cron, tz="Europe/Berlin").words == words


@pytest.mark.parametrize(("every", "words"), [(90_000, "90s"), (DAY_MS, "1d"), (1500, "1500ms")])
def test_words_of_an_interval(every, words):
    assert of(every_ms=every).words == f"every {words}"


def test_what_the_library_cannot_tell_is_told_field_by_field(monkeypatch):
    def fails(*_):
        raise ValueError("another dialect")

    monkeypatch.setattr("cron_descriptor.get_description", fails)
    assert of("11 8 * * *").words == "minute 11, hour 8 (UTC)"
