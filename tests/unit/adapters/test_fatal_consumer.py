"""A consumer that turned fatal is built anew, however the client says so (H17)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.core.errors import RebuildClients


class Event:
    """An error delivered in place of a record."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error

    def error(self) -> KafkaError:
        return self._error

    def partition(self) -> int:
        return -1

    def offset(self) -> int:
        return -1


@pytest.fixture
def log() -> Any:
    """The part that sorts events, with no client behind it."""
    built: Any = object.__new__(KafkaGroupLog)
    built._next, built._broken, built._problems = {}, set(), []
    return built


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._FATAL, "Fatal error: The group id does not exist"),  # as poll delivers it
        KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", fatal=True),
    ],
)
def test_a_fatal_consumer_is_rebuilt_h17(log: Any, error: KafkaError) -> None:
    log._sift([Event(error)])
    with pytest.raises(RebuildClients, match=error.str()):
        log._raise_problem()


def test_a_passing_error_of_the_consumer_is_waited_out(log: Any) -> None:
    assert log._sift([Event(KafkaError(KafkaError._TRANSPORT, "gone"))]) == []
    log._raise_problem()
