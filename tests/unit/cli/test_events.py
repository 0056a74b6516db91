"""Events of the owners for people: one line stays one line, and no other line is touched."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.events import LONGEST, readable

NUMBERS = st.lists(st.integers(0, 60), unique=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def event(**fields: Any) -> str:
    return json.dumps({"at": "2027-01-15T08:00:00Z", "role": "worker", "action": "running", **fields})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "running"),
        ({"partitions": list(range(24)), "queue": "mail"}, "running partitions=0-23 queue=mail"),
        ({"partitions": [7, 0, 1, 2, 5]}, "running partitions=0-2,5,7"),
        ({"partitions": []}, "running partitions=[]"),
        ({"names": ["a", "b"], "n": 1.5, "none": None}, 'running names=["a", "b"] n=1.5 none=null'),
        ({"error": "no\nway", "empty": "", "é": "é=1"}, 'running error="no\\nway" empty="" é="é=1"'),
        ({"error": "x" * 500}, f"running error={'x' * LONGEST}…"),
    ],
)
def test_an_event_is_its_action_and_its_fields(fields: dict[str, Any], text: str) -> None:
    assert readable(event(**fields)) == text


@pytest.mark.parametrize(
    "line",
    [
        "",
        "to ada@example.com: hello",
        '{"action": "paid", "invoice": 55}',
        '{"action": ',
        '["action", "at", "role"]',
        "{" * 9_000,
        '{"a":' * 9_000,
    ],
)
def test_another_line_is_left_as_it_is(line: str) -> None:
    assert readable(line) == line


@given(NUMBERS)
def test_ranges_stand_for_their_numbers(numbers: list[int]) -> None:
    text = readable(event(n=numbers)).removeprefix("running n=").strip("[]")
    pairs = [part.partition("-") for part in text.split(",") if part]
    found = [n for first, _, last in pairs for n in range(int(first), int(last or first) + 1)]
    shown = len(text) <= LONGEST
    assert not shown or found == sorted(numbers)
    assert all(int(a[2] or a[0]) + 1 < int(b[0]) for a, b in pairwise(pairs) if shown)


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z_]{1,8}\Z").filter(lambda n: n not in ("at", "role", "action")), JSON
    )
)
def test_one_line_per_event(fields: dict[str, Any]) -> None:
    text = readable(event(**fields))
    assert text.startswith("running")
    assert len(text.splitlines()) == 1
