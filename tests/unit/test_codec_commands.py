"""Commands in JSON: read strictly, and every refusal names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.job import Command

JSON = [("content-type", b"application/json")]
LEAST = {"command_id": "c1", "verb": "create"}
SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
PAYLOADS = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner), max_leaves=9
)


def read(value: str | bytes, headers: Any = JSON) -> Command:
    return codec.decode_command(value if isinstance(value, bytes) else value.encode(), headers)


def given_as(**members: Any) -> Command:
    return read(json.dumps({**LEAST, **members}))


def test_the_least_command() -> None:
    assert given_as() == Command(command_id="c1", verb="create")


def test_a_whole_command() -> None:
    command = given_as(
        handler="email.send",
        payload={"to": "Zoë", "n": [1, 2.5, None, True]},
        due_at="2030-01-31T09:30:00.250+01:00",
        attempt_limit=5,
        timeout_ms=30_000,
        reason=None,
        labels={"team": "billing"},
        headers={},
    )
    assert command.payload == '{"to":"Zoë","n":[1,2.5,null,true]}'.encode()
    assert command.due_at == 1_896_078_600_250
    assert (command.attempt_limit, command.timeout_ms, command.reason) == (5, 30_000, None)
    assert command.labels == {"team": "billing"}
    assert codec.COMMAND.decode(codec.COMMAND.encode(command)) == command


def test_due_at_may_be_epoch_milliseconds() -> None:
    assert given_as(due_at=1_896_078_600_250).due_at == 1_896_078_600_250


@pytest.mark.parametrize("payload", [None, 0, "text", [], {}, False])
def test_any_json_value_is_a_payload(payload: Any) -> None:
    encoded = given_as(payload=payload).payload
    assert encoded is not None
    assert json.loads(encoded) == payload


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(payload=PAYLOADS)
def test_a_payload_arrives_as_it_was_given(payload: Any) -> None:
    assert json.loads(given_as(payload=payload).payload or b"") == payload


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Type", b"application/json; charset=utf-8")],
        [("content-type", b"application/avro"), ("content-type", b"Application/JSON")],
        [("a", None), ("content-type", b"application/json")],
    ],
)
def test_headers_that_say_json(headers: Any) -> None:
    assert read(json.dumps(LEAST), headers).verb == "create"


@pytest.mark.parametrize(
    "headers", [None, [], [("content-type", None)], [("content-type", b"application/jsonl")]]
)
def test_without_such_a_header_a_command_is_avro(headers: Any) -> None:
    command = Command(command_id="c1", verb="create")
    assert codec.decode_command(codec.COMMAND.encode(command), headers) == command
    with pytest.raises(Undecodable, match="single-object"):
        read(json.dumps(LEAST), headers)


REFUSED = {
    "not UTF-8": (b'{"command_id":"\xff"}', "command: .*utf-8"),
    "empty": ("", "command: "),
    "no JSON": ("{", "command: "),
    "trailing": (json.dumps(LEAST) + "{}", "command: Extra data"),
    "byte order mark": (b"\xef\xbb\xbf{}", "command: .*BOM"),
    "no object": ("[]", "command: must be a JSON object"),
    "no command_id": ('{"verb":"create"}', "command_id: missing"),
    "no verb": ('{"command_id":"c1"}', "verb: missing"),
    "unknown field": ('{"command_id":"c1","verb":"create","due":1}', "'due': no such field"),
    "given twice": ('{"command_id":"c1","verb":"create","verb":"cancel"}', "'verb': given twice"),
    "a megabyte of brackets": ("[" * 1_000_000, "command: nested deeper than 64"),
    "surrogate in a text": (
        '{"command_id":"\\ud800","verb":"create"}',
        "command_id: half of a surrogate pair",
    ),
}
REFUSED_PAYLOADS = {
    "twice": ('{"a":1,"a":2}', "'a': given twice"),
    "NaN": ("NaN", "command: NaN is not JSON"),
    "minus infinity": ("[-Infinity]", "command: -Infinity is not JSON"),
    "infinite float": ("1e999", "payload: a number out of range"),
    "number of 5,000 digits": ("9" * 5000, "command: .*digits"),
    "surrogate": (r'"\ud800"', "payload: half of a surrogate pair"),
}


@pytest.mark.parametrize(("value", "told"), REFUSED.values(), ids=REFUSED)
def test_refused(value: str | bytes, told: str) -> None:
    with pytest.raises(Undecodable, match=f"^{told}"):
        read(value)


@pytest.mark.parametrize(("payload", "told"), REFUSED_PAYLOADS.values(), ids=REFUSED_PAYLOADS)
def test_refused_payloads(payload: str, told: str) -> None:
    with pytest.raises(Undecodable, match=f"^{told}"):
        read(f'{{"command_id":"c1","verb":"create","payload":{payload}}}')


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("verb", 1, "must be a string"),
        ("verb", None, "must be a string"),
        ("job_id", ["j"], "must be a string"),
        ("key", 1, "must be a string"),
        ("attempt_limit", "5", "must be an integer"),
        ("attempt_limit", 5.0, "must be an integer"),
        ("attempt_limit", True, "must be an integer"),
        ("attempt_limit", 2**31, "out of range"),
        ("timeout_ms", 2**63, "out of range"),
        ("timeout_ms", -(2**63) - 1, "out of range"),
        ("delay_ms", "10s", "must be an integer"),
        ("due_at", "2030-01-31", "no RFC 3339 instant"),
        ("due_at", "2030-01-31T09:30:00", "no offset"),
        ("due_at", 1.5, "must be an integer"),
        ("labels", [], "must be an object of strings"),
        ("labels", None, "must be an object of strings"),
        ("labels", {"a": 1}, "must be a string"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any, told: str) -> None:
    with pytest.raises(Undecodable, match=f"^{field}: .*{told}"):
        given_as(**{field: value})


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if levels % 2 else {"a": value}
    return value


@pytest.mark.parametrize("levels", [62, 63])
def test_a_payload_may_be_deep(levels: int) -> None:
    assert given_as(payload=nested(levels)).payload


@pytest.mark.parametrize("levels", [64, 65, 500])
def test_a_payload_may_not_be_deeper_than_64_levels_with_its_command(levels: int) -> None:
    with pytest.raises(Undecodable, match=r"^payload: nested deeper than 64"):
        given_as(payload=nested(levels))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    noise=st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(Undecodable):
        read(noise)
