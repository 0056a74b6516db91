"""`kafka`: a record that goes into the ack transaction."""

from __future__ import annotations

import re
from typing import Any

import pytest
from asked import T0, Keeping, context

from pipeline.core.handler import Dead, InvalidPayload
from pipeline.handlers.kafka import KafkaHandler

HANDLER = KafkaHandler(allow=("orders", "audit.*"))


def produced(payload: object) -> list[tuple[Any, ...]]:
    side = Keeping()
    HANDLER.run(context(side=side), payload)
    return side.produced


@pytest.mark.parametrize(
    ("payload", "record"),
    [
        ({"topic": "orders", "value": "ü"}, ("orders", "ü".encode(), None, {}, None)),
        ({"topic": "orders", "value": None, "key": "k"}, ("orders", None, b"k", {}, None)),
        ({"topic": "audit.log", "value_base64": "AP8="}, ("audit.log", b"\0\xff", None, {}, None)),
        ({"topic": "audit.", "json": {"a": 1}}, ("audit.", b'{"a":1}', None, {}, None)),
        (
            {"topic": "orders", "json": None, "headers": {"h": "ü"}, "partition": 3},
            ("orders", b"null", None, {"h": "ü".encode()}, 3),
        ),
    ],
)
def test_a_record_as_the_payload_says(payload: dict[str, Any], record: tuple[Any, ...]) -> None:
    assert produced(payload) == [record]


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"value": "x"}, "topic: it is missing"),
        ({"topic": "or ders", "value": "x"}, "topic: it is no name of a topic"),
        ({"topic": "orders"}, "value: give value, value_base64 or json"),
        ({"topic": "orders", "value": 5}, "value: it must be text"),
        ({"topic": "orders", "value": "a", "json": 1}, "json: give value or json, not both"),
        ({"topic": "orders", "value_base64": "?"}, "value_base64: it is no base64"),
        ({"topic": "orders", "value": "x", "key": 5}, "key: it must be text"),
        ({"topic": "orders", "value": "x", "headers": {"a": None}}, "headers.a: it must be text"),
        ({"topic": "orders", "value": "x", "partition": -1}, "partition: "),
        ({"topic": "orders", "value": "x", "partition": True}, "partition: "),
        ({"topic": "orders", "valu": "x"}, "'valu': unknown field; did you mean value?"),
    ],
)
def test_a_payload_that_makes_no_record_is_refused(payload: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPayload, match="^" + re.escape(problem)):
        produced(payload)


@pytest.mark.parametrize("topic", ["order", "orders2", "audit", "__consumer_offsets"])
def test_a_topic_that_nobody_allowed_is_the_end(topic: str) -> None:
    with pytest.raises(Dead, match="is not allowed by DUELINE_TOPIC_ALLOW"):
        produced({"topic": topic, "value": "x"})


def test_kafkas_own_topics_are_not_for_jobs_whatever_is_allowed() -> None:
    with pytest.raises(Dead, match="is not allowed"):
        KafkaHandler(allow=("*",)).run(context(), {"topic": "__transaction_state", "value": "x"})


def test_a_record_of_a_schedule_says_which_instant_it_is_for_and_which_was_the_last_that_succeeded() -> None:
    payload = {"topic": "orders", "value": "x", "headers": {"h": "1"}}
    side = Keeping()
    HANDLER.run(context(side=side, occurrence_id=f"s:daily:7:g::{T0}"), payload)
    HANDLER.run(context(side=side, occurrence_id=f"s:daily:7:g::{T0}", last_success_at=T0), payload)
    own = {**payload, "headers": {"dueline-nominal-at": "mine"}}
    HANDLER.run(context(side=side, occurrence_id=f"s:daily:7:g::{T0}"), own)
    at = b"2027-01-15T08:00:00.000Z"
    assert [headers for _, _, _, headers, _ in side.produced] == [
        {"dueline-nominal-at": at, "h": b"1"},
        {"dueline-nominal-at": at, "dueline-last-success-at": at, "h": b"1"},
        {"dueline-nominal-at": b"mine"},
    ]
