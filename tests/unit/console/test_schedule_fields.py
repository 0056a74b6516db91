"""What the fields of the schedule form read, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.client.schedule_options import spec_of
from pipeline.core.schedule import NAMES, ScheduleSpec, spec_to_json
from pipeline.server.console.schedule_fields import (
    COUNTED,
    ENTRIES,
    MORE,
    NUMBER,
    changed,
    read,
    said,
    written,
)

WHOLE: dict[str, Any] = {
    "id": "daily-report",
    "handler": "report.daily",
    "queue": "mail",
    "payload": {"n": 123456789012345678901234567890},
    "every": "1h",
    "phase": "15m",
    "tz": "Europe/Berlin",
    "dst_gap": "skip",
    "dst_overlap": "both",
    "exclude": {"holidays": ["2030-12-24..2031-01-01", "2031-05-01"], "nights": ["cron:* 0-5 * * *"]},
    "start": "2030-01-31T09:30:00.000Z",
    "end": "2031-01-31T09:30:00.000Z",
    "max_occurrences": 10,
    "jitter": "30s",
    "misfire": "all(20)",
    "catch_up": "6h",
    "misfire_threshold": "5m",
    "overlap": "buffer_all(3)",
    "overlap_timeout": "2h",
    "pause_after": 3,
    "max_attempts": 5,
    "timeout": "30s",
    "serial": "ledger",
    "labels": {"tenant": "acme", "of": "a=b"},
    "headers": {"trace": "on"},
    "note": "by finance",
}
LEAST = {**written({}), "id": "x", "handler": "h", "cron": "0 10 * * *"}


def problems(**texts: str) -> dict[str, str]:
    return read({**LEAST, **texts}, whole=True)[1]


def test_every_option_has_a_field() -> None:
    assert {*ENTRIES} == {*NAMES} - {"source", "version"} | {policy + NUMBER for policy in COUNTED}


def test_what_was_written_is_read_back() -> None:
    spec = spec_to_json(spec_of(WHOLE))
    values, wrong = read(written(spec), whole=True)
    assert not wrong
    assert spec_to_json(spec_of(values)) == spec


def test_one_that_counts_from_the_end_is_read_back() -> None:
    spec = spec_to_json(spec_of({"id": "x", "handler": "h", "every": "10m", "after": "finish"}))
    assert spec_to_json(spec_of(read(written(spec), whole=True)[0])) == spec


def test_defaults_are_shown_as_nothing() -> None:
    """Or the part of the form for more would always be open."""
    texts = written(spec_to_json(ScheduleSpec(id="x", handler="h", cron="@daily")))
    assert {name: texts[name] for name in MORE} == {name: written({})[name] for name in MORE}


def test_examples_are_right() -> None:
    for name, entry in ENTRIES.items():
        if entry.example and not name.endswith(NUMBER):
            assert not problems(**{name: entry.example}), name


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("id", "A", "does not match"),
        ("id", "", "is required"),
        ("handler", "", "is required"),
        ("handler", "a b", "does not match"),
        ("queue", "ä", "does not match"),
        ("cron", "61 * * * *", "61 is not within"),
        ("cron", "", "give an expression or an interval"),
        ("every", "90", "no duration"),
        ("tz", "Mars/Base", "no zone"),
        ("jitter", "soon", "no duration"),
        ("start", "tomorrow", "no RFC 3339"),
        ("end", "2030-01-31T09:30:00", "has no offset"),
        ("phase", "1 h", "no duration"),
        ("payload", "[1]", "must be an object"),
        ("exclude", "2030-12-24", "is not name=value"),
        ("exclude", "holidays=Christmas", "holidays: 'Christmas': is no date"),
        ("labels", "tenant", "is not name=value"),
        ("headers", "a=1\na=2", "'a' appears twice"),
        ("max_occurrences", "many", "not a whole number"),
        ("max_attempts", "-1", "not a whole number"),
        ("pause_after", "0", "at least 1"),
        ("pause_after", "9" * 10, "not a whole number"),
        ("timeout", "0s", "at least 1"),
        ("catch_up", "6", "no duration"),
        ("misfire_threshold", "x", "no duration"),
        ("overlap_timeout", "0s", "at least 1"),
    ],
)
def test_what_is_wrong_with_one(name: str, text: str, problem: str) -> None:
    found = problems(**{name: text})
    assert list(found) == [name]
    assert problem in found[name]


def test_what_is_wrong_is_told_of_all() -> None:
    found = problems(cron="61 * * * *", tz="Mars", jitter="x", labels="a", pause_after="0", handler="")
    assert {*found} == {"cron", "tz", "jitter", "labels", "pause_after", "handler"}


def test_what_is_missing_is_told_only_of_a_whole_form() -> None:
    assert read(written({}), whole=False)[1] == {}
    assert {*read(written({}), whole=True)[1]} == {"id", "handler", "cron"}


def test_an_edit_has_no_id() -> None:
    texts = {name: text for name, text in LEAST.items() if name != "id"}
    assert read(texts, whole=True)[1] == {}


@pytest.mark.parametrize(
    ("number", "problem"),
    [("", "how many?"), ("x", "not a whole number"), ("0", "at least 1"), ("2000", "more than 1000")],
)
def test_a_policy_with_a_number(number: str, problem: str) -> None:
    found = problems(misfire="all", misfire_number=number)
    assert list(found) == ["misfire_number"]
    assert problem in found["misfire_number"]


def test_a_number_without_its_policy_does_not_count() -> None:
    values, wrong = read({**LEAST, "misfire_number": "x", "overlap_number": "3"}, whole=True)
    assert not wrong
    assert (values["misfire"], values["overlap"]) == ("latest", "skip")
    assert not {"misfire_number", "overlap_number"} & {*values}


def edit(spec: dict[str, Any], **texts: str) -> dict[str, Any]:
    before = written(spec)
    now = {**before, **texts}
    return changed(before, now, read(now, whole=True)[0])


def test_only_what_has_another_text_was_changed() -> None:
    spec = spec_to_json(spec_of(WHOLE))
    assert edit(spec) == {}
    assert edit(spec, labels="", note="new") == {"labels": None, "note": "new"}
    assert edit(spec, misfire_number="30") == {"misfire": "all(30)"}


def test_what_no_line_can_say_stays_until_it_is_written_anew() -> None:
    spec = spec_to_json(spec_of({**WHOLE, "headers": {"a=b": "c", " d": "e"}}))
    assert edit(spec, note="new") == {"note": "new"}


def test_another_interval_keeps_what_it_counts_from() -> None:
    """Whoever gives a new one replaces all that says when."""
    spec = {"id": "x", "handler": "h", "every": "10m", "after": "finish"}
    assert edit(spec, every="20m") == {"every": "20m", "after": "finish"}
    assert edit(spec, every="", cron="@daily", after="") == {"cron": "@daily", "every": None, "after": None}
    assert edit({**spec, "after": None}, phase="5m") == {"phase": "5m"}


def test_a_definition_is_said_in_the_words_of_the_form() -> None:
    spec = spec_to_json(
        spec_of({"id": "x", "handler": "h", "cron": "@daily", "misfire": "all(20)", "note": "mine"})
    )
    assert said(spec) == [
        ("Id", "x"),
        ("Cron expression", "@daily"),
        ("Time zone", "UTC"),
        ("If the clock skips its time", "run it straight after"),
        ("If its time comes twice", "run it the first time only"),
        ("Handler", "h"),
        ("Queue", "default"),
        ("If some were missed", "fire the newest, up to 20"),
        ("While one is running", "skip the next one"),
        ("Note", "mine"),
    ]
