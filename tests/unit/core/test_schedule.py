"""A definition in JSON and back, and what is refused by the name of its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput, InvalidSchedule
from pipeline.core.schedule import (
    NAMES,
    TEXTS_CEILING,
    ScheduleSpec,
    check_spec,
    policy,
    spec_from_json,
    spec_to_json,
    timing_spec,
)

LEAST = {"id": "daily", "handler": "report", "cron": "0 10 * * *"}
WHOLE = {
    "id": "daily", "handler": "report", "queue": "mail", "payload": {"größe": [1, None]}, "every": "90s",
    "after": "finish", "phase": "1s", "tz": "Europe/Berlin", "dst_gap": "skip", "dst_overlap": "both",
    "exclude": {"holidays": ["2026-12-25", "2026-12-31..2027-01-01"]}, "start": "2030-01-01T00:00:00.000Z",
    "end": "2031-01-01T00:00:00.500Z", "max_occurrences": 7, "jitter": "500ms", "misfire": "all(3)", "catch_up": "2h",
    "misfire_threshold": "5s", "overlap": "buffer_all(9)", "overlap_timeout": "1d", "pause_after": 3,
    "max_attempts": 2, "timeout": "1m", "serial": "x", "labels": {"a": "b"}, "headers": {"c": "d"},
    "source": "app:shop", "version": "1.2", "note": "for whom",
}  # fmt: skip


def spec_of(**changes: Any) -> ScheduleSpec:
    return replace(spec_from_json(LEAST), **changes)


def test_everything_that_can_be_said_is_read_and_written_the_same() -> None:
    given_ = {name: WHOLE[name] for name in NAMES if name in WHOLE}
    spec = spec_from_json(given_)
    assert spec_to_json(spec) == given_
    assert (spec.after_ms, spec.every_ms, spec.start_at) == (90_000, None, 1_893_456_000_000)
    assert set(WHOLE) | {"cron"} == set(NAMES)


def test_the_least_is_an_id_a_handler_and_a_rhythm() -> None:
    spec = spec_from_json(LEAST)
    check_spec(spec)
    assert spec == ScheduleSpec(id="daily", handler="report", cron="0 10 * * *")
    assert spec_from_json({**LEAST, "note": None, "after": None}) == spec


@pytest.mark.parametrize("rhythm", [{"cron": "@every 90s"}, {"cron": None, "every_ms": 90_000}])
def test_the_grid_of_an_interval_has_a_phase(rhythm: dict[str, Any]) -> None:
    check_spec(spec_of(phase_ms=1_000, **rhythm))


@given(st.integers(0, 10**11))
def test_durations_come_back_as_they_were(ms: int) -> None:
    spec = ScheduleSpec(id="a", handler="b", every_ms=ms, jitter_ms=ms)
    assert spec_from_json(spec_to_json(spec)) == spec


def test_an_instant_may_be_epoch_milliseconds() -> None:
    assert spec_from_json({**LEAST, "start": 1_893_456_000_000}).start_at == 1_893_456_000_000


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"every_ms": 5}, "every_ms"),
        ({"id": None}, "id"),
        ({"handler": None}, "handler"),
        ({"handler": 5}, "handler"),
        ({"note": "\ud800"}, "note"),
        ({"jitter": "soon"}, "jitter"),
        ({"start": "tomorrow"}, "start"),
        ({"start": -5}, "start"),
        ({"end": 1 << 50}, "end"),
        ({"max_occurrences": "7"}, "max_occurrences"),
        ({"max_occurrences": True}, "max_occurrences"),
        ({"pause_after": 1 << 40}, "pause_after"),
        ({"labels": ["a"]}, "labels"),
        ({"labels": {"a": 1}}, "labels"),
        ({"exclude": {"a": "2026-12-25"}}, "exclude"),
        ({"exclude": []}, "exclude"),
        ({"payload": []}, "payload"),
        ({"payload": {"a": float("nan")}}, "payload"),
        ({"payload": {"a": "\ud800"}}, "payload"),
        ({"payload": {"a": LOOP}}, "payload"),
        ({"after": "finish"}, "after"),
        ({"after": "start", "every": "5m"}, "after"),
    ],
    ids=str,
)
def test_wrong_types_and_unknown_names_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        spec_from_json({**LEAST, **changes})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "No Name"}, "id"),
        ({"handler": ""}, "handler"),
        ({"queue": "../x"}, "queue"),
        ({"misfire": "all"}, "misfire"),
        ({"misfire": "latest(2)"}, "misfire"),
        ({"misfire": "all(0)"}, "misfire"),
        ({"misfire": "all(1001)"}, "misfire"),
        ({"overlap": "buffer_all"}, "overlap"),
        ({"overlap": "queue"}, "overlap"),
        ({"source": "somebody"}, "source"),
        ({"source": "app:"}, "source"),
        ({"max_occurrences": 0}, "max_occurrences"),
        ({"overlap_timeout_ms": 0}, "overlap_timeout"),
        ({"cron": None, "every_ms": 0}, "every"),
        ({"jitter_ms": -1}, "jitter"),
        ({"catch_up_ms": -1}, "catch_up"),
        ({"payload": b"5"}, "payload"),
        ({"payload": b"{"}, "payload"),
        ({"payload": b'{"x":"' + b"y" * 1_000_000 + b'"}'}, "payload"),
        ({"note": "x" * TEXTS_CEILING, "labels": {"a": "b"}}, "labels"),
        ({"every_ms": 5_000}, "cron"),
        ({"cron": None}, "cron"),
        ({"start_at": 2_000_000_000_000, "end_at": 2_000_000_000_000}, "end"),
        ({"phase_ms": 1}, "phase"),
        ({"phase_ms": 1, "cron": None, "after_ms": 1_000}, "phase"),
        ({"tz": "Mars/Olympus"}, "tz"),
        ({"cron": "0 0 30 2 *"}, "cron"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_spec(spec_of(**changes))
    assert refused.value.field == field
    assert isinstance(refused.value, InvalidSchedule) == (field in ("cron", "end", "tz", "phase"))


def test_policies_are_a_name_and_a_number() -> None:
    assert policy("misfire", "all(12)") == ("all", 12)
    assert policy("overlap", "buffer_one") == ("buffer_one", 0)


def test_when_it_is_meant_to_run_does_not_depend_on_the_order_of_its_calendars() -> None:
    one, other = {"a": ("2026-12-25",), "b": ("2026-12-26",)}, {"b": ("2026-12-26",), "a": ("2026-12-25",)}
    assert timing_spec(spec_of(exclude=one)) == timing_spec(spec_of(exclude=other))
    assert hash(timing_spec(spec_of(exclude=one)))
