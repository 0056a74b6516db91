"""An idempotent producer that turned fatal is replaced, and what it had queued is told of: with the real client, which
has a call that makes it so, and its own mock of a broker."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.ports import Put

OBJECT_HEAD = object.__basicsize__
"""Before the first field of an extension's object, which is the client's handle."""
MOCK = {"test.mock.num.brokers": "1"}
PUT = Put("t", 0, b"k", b"v")


def turn_fatal(appender: KafkaAppender) -> None:
    """As if a broker had lost the sequence numbers of the producer."""
    site = Path(confluent_kafka.__file__).parents[1]
    (library,) = [
        *site.glob("confluent_kafka.libs/librdkafka*"),
        *site.glob("confluent_kafka/.dylibs/librdkafka*"),
    ][:1]
    kill = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    kill.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    handle = ctypes.c_void_p.from_address(id(appender._producer) + OBJECT_HEAD)
    assert kill(handle, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, b"as a test wants it") == 0


class Told:
    def __init__(self) -> None:
        self.errors: list[Exception | None] = []

    def report(self, error: Exception | None, _offset: int, _at: int) -> None:
        self.errors.append(error)


@pytest.fixture
def appender() -> Iterator[KafkaAppender]:
    """What it is given stays in its queue for two seconds."""
    made = KafkaAppender("unused:1", MOCK, linger_ms=2_000)
    yield made
    made.close()


def polled(appender: KafkaAppender, told: Told, count: int) -> None:
    for _ in range(200):
        appender.poll(50)
        if len(told.errors) >= count:
            return
    pytest.fail(f"{len(told.errors)} of {count} were told of")


def test_what_was_queued_is_reported_with_the_reason(appender: KafkaAppender) -> None:
    told = Told()
    for _ in range(3):
        appender.append(PUT, told.report)
    turn_fatal(appender)
    polled(appender, told, 3)
    assert [type(error) for error in told.errors] == [DuelineError] * 3
    assert "t: the producer turned fatal" in str(told.errors[0])
    assert "as a test wants it" in str(told.errors[0])
    assert appender._dying == []


@pytest.mark.parametrize("noticed_by", ["append", "poll", "flush"])
def test_what_comes_next_is_stored(appender: KafkaAppender, noticed_by: str) -> None:
    told, lost = Told(), Told()
    appender.append(PUT, lost.report)
    turn_fatal(appender)
    if noticed_by == "poll":
        appender.poll(1_000)
    elif noticed_by == "flush":
        appender.flush(10_000)
        assert len(lost.errors) == 1
    appender.append(PUT, told.report)
    appender.flush(10_000)
    assert told.errors == [None]
    assert [type(error) for error in lost.errors] == [DuelineError]


def test_one_death_makes_one_producer_whoever_finds_it(appender: KafkaAppender) -> None:
    turn_fatal(appender)
    broken = appender._producer
    threads = [threading.Thread(target=appender.append, args=(PUT, Told().report)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    successor = appender._producer
    assert successor is not broken
    appender.poll(0)
    appender.flush(10_000)
    assert appender._producer is successor


def test_a_record_that_nobody_waits_for_is_told_of_by_flush(appender: KafkaAppender) -> None:
    appender.append(PUT)
    turn_fatal(appender)
    with pytest.raises(DuelineError, match="turned fatal"):
        appender.flush(10_000)
    appender.flush(10_000)


def test_a_dead_one_can_be_closed() -> None:
    appender = KafkaAppender("unused:1", MOCK, linger_ms=1_000)
    appender.append(PUT, Told().report)
    turn_fatal(appender)
    appender.close()


def test_what_a_callback_raises_is_no_death(appender: KafkaAppender) -> None:
    before = appender._producer

    def report(*_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    appender.append(PUT, report)
    with pytest.raises((KafkaException, StoreUnreachable)):
        appender.flush(10_000)
    assert appender._producer is before
