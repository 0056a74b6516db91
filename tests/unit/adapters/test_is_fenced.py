"""Which errors say that another producer has our transactional.id, and which ids that went stale (H17, H31)."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.adapters.kafka_settings import is_fenced
from pipeline.core.errors import RebuildClients, StoreUnreachable


def raised(code: int) -> RebuildClients:
    """As `kafka_txn` raises it, and once more as `_create` wraps it."""
    try:
        try:
            raise KafkaException(KafkaError(code))
        except KafkaException as error:
            raise RebuildClients("fatal") from error
    except RebuildClients as inner:
        try:
            raise RebuildClients("id: fatal") from inner
        except RebuildClients as outer:
            return outer


@pytest.mark.parametrize(
    "code", [KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED]
)
def test_a_fenced_producer_is_told_from_other_fatal_errors(code: int) -> None:
    assert is_fenced(raised(code))


@pytest.mark.parametrize(
    "code", [KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._FATAL, KafkaError._TIMED_OUT]
)
def test_other_errors_are_no_fencing(code: int) -> None:
    assert not is_fenced(raised(code))


def test_an_error_without_a_cause_is_no_fencing() -> None:
    assert not is_fenced(StoreUnreachable("gone"))
