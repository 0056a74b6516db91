"""From a request to the run that is stored."""

from __future__ import annotations

import json
import math
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.request import PLANNED, JobOptions, Requests
from pipeline.core.errors import InvalidInput
from pipeline.core.hashing import text_hash
from pipeline.core.ids import due_of
from pipeline.core.job import EARLIEST, LATEST
from pipeline.core.jobref import JobRef

NOW = 1_800_000_000_000
AT = "2030-01-31T09:30:00+02:00"
AT_MS = 1_896_075_000_000


def requests(**more: Any) -> Requests:
    return Requests(
        **{
            "now": lambda: NOW,
            "random80": lambda: 12345,
            "payload_limit": 1_000,
            "default_queue": "default",
            **more,
        }
    )


def refused(request: dict[str, Any], **more: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        requests(**more).run({"handler": "email.send", "at": AT, **request})
    return caught.value


def test_the_least_request_gets_every_default() -> None:
    run = requests().run({"handler": "email.send", "at": AT})
    assert due_of(run.job_id) == run.due_at == run.nominal_at == AT_MS
    assert (run.job_id, run.run, run.failures) == (run.occurrence_id, 1, 0)
    assert (run.idempotency_key, run.queue, run.payload) == (run.job_id, "default", b"{}")
    assert run.created_at == NOW
    assert (run.key, run.schedule_id, run.serial, run.attempt_limit, run.timeout_ms) == (None,) * 5
    assert (run.labels, run.headers) == ({}, {})


def test_everything_asked_for_is_in_the_run() -> None:
    run = requests().run(
        {
            "handler": "email.send",
            "payload": {"to": "ä@b", "n": 2**70},
            "in_": "1m30s",
            "idempotency_key": "dunning_invoice_55",
            "queue": "mail",
            "labels": {"customer": "7", "empty": ""},
            "headers": {"traceparent": "00-1"},
            "max_attempts": 3,
            "timeout": timedelta(seconds=2),
            "serial": "customer 7",
        }
    )
    assert run.due_at == NOW + 90_000
    assert run.payload == '{"to":"ä@b","n":1180591620717411303424}'.encode()
    assert (run.idempotency_key, run.queue) == ("dunning_invoice_55", "mail")
    assert run.labels == {"customer": "7", "empty": ""}
    assert run.headers == {"traceparent": "00-1"}
    assert (run.attempt_limit, run.timeout_ms, run.serial) == (3, 2_000, "customer 7")


@pytest.mark.parametrize(
    ("at", "due_at"),
    [
        (datetime(2030, 1, 31, 9, 30, tzinfo=timezone(timedelta(hours=2))), AT_MS),
        (AT, AT_MS),
        ("2001-01-01T00:00:00Z", 978_307_200_000),
    ],
)
def test_at_is_an_aware_datetime_or_text_and_may_be_past(at: object, due_at: int) -> None:
    assert requests().run({"handler": "h", "at": at}).due_at == due_at


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("handler", None),
        ("handler", ""),
        ("handler", "E-Mail"),
        ("handler", "nul\0"),
        ("handler", "x" * 81),
        ("handler", 7),
        ("queue", "no/such"),
        ("queue", b"bytes"),
        ("queue", {}),
        ("queue", []),
        ("queue", False),
        ("at", datetime(2030, 1, 1)),  # noqa: DTZ001 -- naive on purpose
        ("at", "2030-01-01T00:00:00"),
        ("at", "tomorrow"),
        ("at", 1_800_000_000),
        ("at", datetime(1999, 1, 1, tzinfo=UTC)),
        ("at", "2300-01-01T00:00:00Z"),
        ("payload", [1]),
        ("payload", "text"),
        ("payload", {"x": math.nan}),
        ("payload", {"x": math.inf}),
        ("payload", {"x": {1}}),
        ("payload", {"x": "\ud800"}),
        ("payload", {"x": "y" * 1_000}),
        ("idempotency_key", ""),
        ("idempotency_key", "a\0b"),
        ("idempotency_key", "ä" * 257),
        ("idempotency_key", "\udfff"),
        ("idempotency_key", 55),
        ("serial", ""),
        ("labels", ["a"]),
        ("labels", {"": "x"}),
        ("labels", {1: "x"}),
        ("labels.a", None),
        ("labels.a", 1),
        ("headers", {str(n): "x" for n in range(65)}),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("max_attempts", "3"),
        ("timeout", "0s"),
        ("timeout", "soon"),
        *((name, "x") for name in PLANNED),
        ("idempotencykey", "x"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_option(field: str, value: object) -> None:
    name, _, member = field.partition(".")
    assert refused({name: {member: value} if member else value}).field == field


@pytest.mark.parametrize("value", ["10", "-1s", "soon", -1, math.nan, "300y", timedelta(days=-1)])
def test_a_bad_delay_names_in(value: object) -> None:
    assert refused({"at": None, "in_": value}).field == "in_"


def test_a_delay_beyond_the_latest_instant_names_in() -> None:
    assert refused({"at": None, "in_": "1s"}, now=lambda: LATEST).field == "in_"


@pytest.mark.parametrize("times", [{"at": None}, {"at": AT, "in_": "1s"}])
def test_exactly_one_of_at_and_in(times: dict[str, str | None]) -> None:
    assert refused(times).field == "at"


def test_a_planned_option_without_a_value_asks_for_nothing() -> None:
    requests().run({"handler": "h", "at": AT, **dict.fromkeys(PLANNED)})


def test_an_unknown_option_is_told_what_was_meant() -> None:
    assert "did you mean idempotency_key?" in str(refused({"idempotencykey": "x"}))


def test_the_payload_limit_counts_bytes_of_json() -> None:
    payload = {"x": "ä" * 10}
    size = len(json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode())
    request = {"handler": "h", "at": AT, "payload": payload}
    assert len(requests(payload_limit=size).run(request).payload) == size
    assert str(size) in str(refused({"payload": payload}, payload_limit=size - 1))


@given(at=st.integers(EARLIEST, LATEST))
def test_the_reference_tells_the_instant_that_is_stored(at: int) -> None:
    run = requests().run(
        {"handler": "h", "at": datetime.fromtimestamp(0, UTC) + at * timedelta(milliseconds=1)}
    )
    ref = JobRef.of(run)
    assert (ref.id, ref.status) == (run.job_id, "created")
    assert (ref.due_at - datetime.fromtimestamp(0, UTC)) / timedelta(milliseconds=1) == run.due_at == at


def test_every_declared_option_is_accepted() -> None:
    requests().run({"handler": "h", "payload": {}, **dict.fromkeys(JobOptions.__annotations__), "at": AT})


# -- spread -------------------------------------------------------------------------------------------------


def test_a_spread_puts_off_within_it_and_keeps_the_nominal_time() -> None:
    run = requests().run({"handler": "h", "at": AT, "spread": "30s", "idempotency_key": "invoice-55"})
    assert run.nominal_at == AT_MS
    assert run.due_at == AT_MS + text_hash("invoice-55") % 30_000 == due_of(run.job_id)
    again = requests(random80=lambda: 7).run(
        {"handler": "h", "at": AT, "spread": "30s", "idempotency_key": "invoice-55"}
    )
    assert again.due_at == run.due_at


def test_a_spread_without_any_key_is_by_the_random_part_of_the_id() -> None:
    for random80 in (0, 12_345, 2**80 - 1):
        run = requests(random80=lambda n=random80: n).run({"handler": "h", "at": AT, "spread": "30s"})
        assert run.due_at == AT_MS + random80 % 30_000


def test_a_spread_of_zero_or_none_is_none() -> None:
    for spread in ("0s", None, 0):
        run = requests().run({"handler": "h", "at": AT, "spread": spread})
        assert run.due_at == run.nominal_at == AT_MS


@pytest.mark.parametrize(
    "request_", [{"spread": "wide"}, {"spread": -1}, {"at": "2199-12-31T23:59:59Z", "spread": "2w"}]
)
def test_a_bad_spread_names_itself(request_: dict[str, Any]) -> None:
    assert refused({"idempotency_key": "x", **request_}).field == "spread"


# -- jobs with a key ----------------------------------------------------------------------------------------


def test_a_job_with_a_key_is_a_command_with_all_that_was_asked_for() -> None:
    command = requests().command(
        {
            "handler": "email.send",
            "payload": {"to": "a@b"},
            "in_": "1m",
            "key": "invoice-55",
            "unique": timedelta(minutes=10),
            "on_conflict": "debounce",
            "idempotency_key": "i",
            "queue": "mail",
            "labels": {"a": "1"},
            "headers": {"h": "2"},
            "max_attempts": 3,
            "timeout": "2s",
            "serial": "s",
            "wait": "1s",
            "spread": None,
        }
    )
    uuid.UUID(command.command_id)
    assert (command.verb, command.key, command.job_id) == ("create", "invoice-55", None)
    assert (command.due_at, command.delay_ms) == (NOW + 60_000, None)
    assert (command.unique, command.on_conflict) == ("600000ms", "debounce")
    assert (command.handler, command.payload, command.queue) == ("email.send", b'{"to":"a@b"}', "mail")
    assert (command.idempotency_key, command.attempt_limit, command.timeout_ms) == ("i", 3, 2_000)
    assert (command.serial, command.labels, command.headers) == ("s", {"a": "1"}, {"h": "2"})


def test_a_spread_of_a_job_with_a_key_is_by_the_key() -> None:
    given = {"handler": "h", "at": AT, "spread": "30s", "key": "invoice-55", "idempotency_key": "other"}
    assert requests().command(given).due_at == AT_MS + text_hash("invoice-55") % 30_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key", ""),
        ("key", "a\0b"),
        ("key", "\ud800"),
        ("key", "x" * 513),
        ("key", 55),
        ("unique", "soon"),
        ("unique", True),
        ("unique", ""),
        ("on_conflict", "win"),
        ("on_conflict", ["existing"]),
        ("handler", "NO"),
        ("queue", "no/such"),
        ("queue", {}),
        ("priority", 1),
        ("nonsense", 1),
    ],
)
def test_a_bad_value_of_a_job_with_a_key_names_its_option(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        requests().command({"handler": "h", "at": AT, "key": "k", field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["unique", "on_conflict"])
def test_what_only_a_key_can_keep_needs_one(name: str) -> None:
    assert "needs a key" in str(refused({name: "started"}))
    requests().run({"handler": "h", "at": AT, name: None, "key": None})
