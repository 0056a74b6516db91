"""The public preview: what it takes, and what it shows is what fires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pipeline import InvalidInput, InvalidSchedule, preview
from pipeline.core.times import aware
from pipeline.core.timing import TimingSpec, timing_of


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
        ("count", {"count": "3"}),
        ("every", {"every": "90s"}),
        ("start", {"start": "tomorrow"}),
        ("end", {"end": datetime(2026, 1, 1)}),  # noqa: DTZ001
        ("jitter", {"jitter": "long"}),
        ("tz", {"tz": None}),
        ("tz", {"tz": "Europe/Atlantis"}),
        ("dst_gap", {"dst_gap": ["skip"]}),
        ("exclude", {"exclude": ["2026-12-25"]}),
        ("exclude", {"exclude": {"a": "2026-12-25"}}),
        ("exclude", {"exclude": {"a": [20261225]}}),
    ],
)
def test_preview_refuses_by_field(field, options):
    with pytest.raises(InvalidInput) as refused:
        preview("* * * * *", **({"after": datetime(2026, 1, 1, tzinfo=UTC)} | options))
    assert refused.value.field == field


@pytest.mark.parametrize("expression", [None, 5, ["* * * * *"], b"* * * * *", "", "* * * *", "0 0 30 2 *"])
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(InvalidSchedule) as refused:
        preview(expression, after=datetime(2026, 1, 1, tzinfo=UTC))
    assert refused.value.field == "cron"


def test_options_may_be_text_as_on_the_command_line():
    after = datetime(2026, 1, 1, tzinfo=UTC)
    given = {
        "start": "2026-01-02T00:00:00Z",
        "end": "2026-01-05T00:00:00Z",
        "dst_gap": "skip",
        "jitter": None,
    }
    assert [at.day for at in preview("0 10 * * *", after=after, count=9, **given)] == [2, 3, 4]
    grid = preview("@every 1h", after=after, count=2, phase="5m")
    assert grid == [after + timedelta(minutes=5), after + timedelta(minutes=65)]


def test_what_is_shown_is_what_fires_jitter_included():
    after = datetime(2026, 3, 28, tzinfo=UTC)
    spec = TimingSpec(cron="H 2 * * *", tz="Europe/Berlin", schedule_id="nightly", jitter_ms=600_000)
    timing, at, fired = timing_of(spec), int(after.timestamp()) * 1000, []
    for _ in range(5):
        at = timing.next_after(at)
        fired.append(aware(timing.due_of(at)))
    shown = preview(
        "H 2 * * *",
        tz="Europe/Berlin",
        after=after,
        count=5,
        schedule_id="nightly",
        jitter=timedelta(minutes=10),
    )
    assert shown == fired


def test_the_last_year_of_all_ends_it():
    assert preview("* * * * *", after=datetime.max.replace(tzinfo=UTC), count=3) == []


def test_a_phase_is_for_intervals():
    with pytest.raises(InvalidSchedule, match="phase: shifts the grid of an interval"):
        preview("0 10 * * *", after=datetime(2026, 1, 1, tzinfo=UTC), phase="5m")
