"""`--queue Q:weight`."""

from __future__ import annotations

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.service.shares import parse_queues, shares


def test_a_queue_without_a_weight_weighs_one() -> None:
    assert parse_queues(["mail:3", "media"]) == {"mail": 3, "media": 1}
    assert parse_queues([]) == {}


@pytest.mark.parametrize("weight", ["", "0", "-1", "1.5", "x", "1001", "9" * 5_000, "٣", "1:2", " 1"])
def test_a_bad_weight_is_refused_by_the_option(weight: str) -> None:
    with pytest.raises(InvalidInput, match="a weight is a whole number from 1 to 1000") as error:
        parse_queues([f"mail:{weight}"])
    assert error.value.field == "--queue"


@pytest.mark.parametrize("queue", ["", ":3", "A B", "mail/x"])
def test_a_bad_name_is_refused_by_the_option(queue: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_queues([queue])
    assert error.value.field == "--queue"


def test_a_queue_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'mail' is given twice"):
        parse_queues(["mail", "mail:2"])


@pytest.mark.parametrize(
    ("total", "weights", "expected"),
    [
        (32, {"a": 1}, {"a": 32}),
        (32, {"a": 3, "b": 1}, {"a": 24, "b": 8}),
        (10, {"a": 1, "b": 1, "c": 1}, {"a": 4, "b": 3, "c": 3}),
        (7, {"a": 2, "b": 3}, {"a": 3, "b": 4}),
        (2, {"a": 100, "b": 1}, {"a": 1, "b": 1}),
        (1, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_places_are_shared_out_by_weight_and_every_queue_has_one(
    total: int, weights: dict[str, int], expected: dict[str, int]
) -> None:
    assert shares(total, weights) == expected
