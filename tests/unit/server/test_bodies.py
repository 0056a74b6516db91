"""Whatever JSON stands in a field of a body, it is taken or told: nothing of it makes a server fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.server.api import ENDPOINTS
from pipeline.server.api.bodies import BODIES

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 10**30, 0.5, 1e308),
    *("", "x", "a" * 600, "\x00", "\ud800", "90s", "2030-01-01T00:00:00Z", "* * * * *", "all(3)"),
    *([], [None], ["x"], ["x"] * 200, [{}], {}, {"x": None}, {"x": "y"}, {"x": []}, {"handler": {}}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=9), some, max_size=3),
    max_leaves=5,
)
CHANGES = [each for each in ENDPOINTS if each.body is not None]
NDJSON = {"content-type": "application/x-ndjson"}


def fields_of(name: str) -> list[str]:
    return list(BODIES[name]["properties"])


def example_of(name: str) -> dict[str, Any]:
    examples: list[dict[str, Any]] = BODIES[name].get("examples", [{}])
    return examples[0]


def post(served: Any, endpoint: Any, body: Any) -> Any:
    path = endpoint.path.replace("{id}", "nightly").replace("{queue}", "default").replace("{name}", "default")
    waits = "?wait=0s" if any(param.name == "wait" for param in endpoint.query) else ""
    content = json.dumps(body)
    headers = {"content-type": "application/json"}
    return served.ask(endpoint.method, path + waits, content=content, headers=headers)


def failed(served: Any) -> list[Any]:
    return [fields for action, fields in served.events.lines if action == "request_failed"]


@pytest.mark.parametrize("endpoint", CHANGES, ids=lambda endpoint: endpoint.name)
def test_any_value_of_any_field_is_taken_or_told(served: Any, endpoint: Any) -> None:
    example = example_of(endpoint.body)
    for field in fields_of(endpoint.body):
        for value in VALUES:
            answer = post(served, endpoint, {**example, field: value})
            assert answer.status_code != 500, (field, value, failed(served))
    for value in VALUES:
        assert post(served, endpoint, value).status_code != 500, (value, failed(served))
    assert not failed(served)


def test_any_value_of_any_field_of_a_line_is_taken_or_told(served: Any) -> None:
    given = [{**example_of("NewJob"), field: value} for field in fields_of("NewJob") for value in VALUES]
    body = "\n".join(json.dumps(each) for each in (*given, *VALUES)).encode()
    told = served.ask("POST", "/jobs", content=body, headers=NDJSON).json()
    assert told["accepted"] + told["rejected"] == len(given) + len(VALUES)
    assert told["rejected"] > len(given) / 2
    assert not failed(served)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(made=st.dictionaries(st.sampled_from(fields_of("NewJob")), JSON, max_size=4))
def test_any_job_is_taken_or_told_alike_alone_and_in_a_stream(served: Any, made: dict[str, Any]) -> None:
    job = {"handler": "h", "in": "1h", **made}
    alone = served.post("/jobs?wait=0s", job) if _sendable(job) else None
    line = json.dumps(job).encode()
    told = served.ask("POST", "/jobs", content=line, headers=NDJSON)
    assert told.status_code == 200
    if alone is not None:
        assert alone.status_code in (201, 202, 422)
        assert told.json()["rejected"] == (alone.status_code == 422), (alone.text, told.text)
    assert not failed(served)


def _sendable(value: Any) -> bool:
    """Whether a client's library makes a request of it: not of a lone surrogate."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
