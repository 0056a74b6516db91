"""Query parameters: read, or told by their names."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.server.api.jobs import FILTERS, ORDER
from pipeline.server.params import CURSOR, LIMIT, MANY, WAIT, Instant, Pair, Param, described, read_query

ALL = (*FILTERS, ORDER, LIMIT, CURSOR, WAIT)


def test_values_by_name() -> None:
    query = (
        b"status=dead&status=pending&label=a%3Db&label=c%3D&handler=email.send&limit=7"
        b"&due_from=2030-01-31T09:30:00Z"
    )
    assert read_query(query, ALL) == {
        "status": ["dead", "pending"],
        "label": [("a", "b"), ("c", "")],
        "handler": "email.send",
        "limit": 7,
        "due_from": 1_896_082_200_000,
    }
    assert read_query(b"", ALL) == {}
    assert read_query(b"text=a+b%20c", ALL) == {"text": "a b c"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"nope=1", "nope"),
        (b"=1", "query"),
        (b"limit=0", "limit"),
        (b"limit=201", "limit"),
        (b"limit=1e2", "limit"),
        (b"limit=" + "\u0661".encode(), "limit"),
        (b"limit=1&limit=2", "limit"),
        (b"status=gone", "status"),
        (b"label=a", "label"),
        (b"label==a", "label"),
        (b"due_from=yesterday", "due_from"),
        (b"due_from=", "due_from"),
        (b"wait=1h", "wait"),
        (b"wait=5", "wait"),
        (b"handler=%00", "handler"),
        (b"handler=%ff", "handler"),
        (b"%ff=1", "query"),
        (b"handler=", "handler"),
        (b"handler", "handler"),
        (b"order=id", "order"),
        (b"text=" + b"x" * 600, "text"),
        (b"&".join([b"label=a%3Db"] * (MANY + 1)), "label"),
        (b"handler=a&&", "query"),
    ],
)
def test_what_is_wrong_is_named(query: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_query(query, ALL)
    assert error.value.field == field


@given(st.binary(max_size=100))
def test_any_query_is_read_or_told(query: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        read_query(query, ALL)


@pytest.mark.parametrize("param", ALL, ids=lambda param: param.name)
def test_each_is_described_with_an_example_that_can_be_read(param: Param) -> None:
    told: Any = described(param)
    assert told["description"]
    if param.example is not None:
        param.read(str(param.example))
    assert isinstance(param, Instant | Pair) or told["schema"]
