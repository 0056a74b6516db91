"""A transactional id that the coordinator forgot after 7 idle days never crashes its owner (H31)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from unit.test_kafka_txn import Cluster, cluster, commit, error, producer

from pipeline.core.errors import OutcomeUnknown, RebuildClients, RetryStep

__all__ = ["cluster", "producer"]

EXPIRED = KafkaError.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("call", "flags", "expected"),
    [
        ("begin", {}, RetryStep),
        ("send_offsets_to", {"txn_requires_abort": True}, RetryStep),
        ("send_offsets_to", {}, RetryStep),
        ("send_offsets_to", {"fatal": True}, RebuildClients),
        ("commit", {"txn_requires_abort": True}, OutcomeUnknown),
        ("commit", {"fatal": True}, RebuildClients),
    ],
)
def test_a_forgotten_id_is_repeated_taken_over_anew_or_rebuilt_h31(
    cluster: Cluster, producer: Any, call: str, flags: dict[str, bool], expected: type[Exception]
) -> None:
    cluster.fail(call, error(EXPIRED, **flags))
    with pytest.raises(expected):
        commit(producer)
    if expected is not RebuildClients:
        commit(producer)  # and the next one works


def test_a_forgotten_id_seen_by_a_delivery_is_repeated_h31(cluster: Cluster, producer: Any) -> None:
    cluster.fail("deliver", KafkaError(EXPIRED, "expired"))
    with pytest.raises(RetryStep):
        commit(producer)
    commit(producer)
