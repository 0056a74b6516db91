"""The appender's own part: who is told of which record, and what a full queue means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.adapters import kafka_append
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.ports import Put

REFUSAL = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "t"

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000 + self._offset


class Producer:
    """What `produce` was called with; `full` times it has no room, `refusal` is raised."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.full = 0
        self.polls = 0
        self.refusal: KafkaException | None = None

    def produce(self, *fields: Any, **more: Any) -> None:
        if self.full > 0:
            self.full -= 1
            raise BufferError
        if self.refusal is not None:
            raise self.refusal
        self.calls.append((fields, more))

    def poll(self, timeout: float) -> None:
        self.polls += 1

    def __len__(self) -> int:
        return 0

    def callback(self, n: int) -> Callable[[KafkaError | None, Any], None]:
        made: Callable[[KafkaError | None, Any], None] = self.calls[n][0][4]
        return made


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def appender(producer: Producer) -> KafkaAppender:
    made = KafkaAppender("localhost:1")
    made._producer.close()
    made._producer = producer  # type: ignore[assignment]
    return made


def put(topic: str = "t", **more: Any) -> Put:
    return Put(topic, 3, b"k", b"v", **more)


class Told:
    def __init__(self) -> None:
        self.reports: list[tuple[Exception | None, int, int]] = []

    def report(self, error: Exception | None, offset: int, log_append_time: int) -> None:
        self.reports.append((error, offset, log_append_time))


def test_one_callback_serves_all_records_of_one_report(appender: KafkaAppender, producer: Producer) -> None:
    done = Told().report
    for _ in range(3):
        appender.append(put(), done)
    assert producer.callback(0) is producer.callback(1) is producer.callback(2)
    assert producer.calls[0][0][:4] == ("t", b"v", b"k", 3)


def test_each_is_told_of_its_own_records(appender: KafkaAppender, producer: Producer) -> None:
    one, other = Told(), Told()
    one_done, other_done = one.report, other.report
    for n in range(6):
        appender.append(put(), other_done if n % 3 == 2 else one_done)
    for n in range(6):
        producer.callback(n)(REFUSAL if n == 5 else None, Message(n))
    assert one.reports == [(None, n, 1_000 + n) for n in (0, 1, 3, 4)]
    assert other.reports[0] == (None, 2, 1_002)
    assert isinstance(other.reports[1][0], InvalidInput)


def test_nobody_is_told_of_a_record_that_nobody_asked_about(
    appender: KafkaAppender, producer: Producer
) -> None:
    told = Told()
    done = told.report
    for report in (done, None, done):
        appender.append(put(), report)
    for n in range(3):
        producer.callback(n)(None, Message(n))
    assert told.reports == [(None, 0, 1_000), (None, 2, 1_002)]


def test_an_error_names_the_topic_of_its_record(appender: KafkaAppender, producer: Producer) -> None:
    told = Told()
    done = told.report
    appender.append(put("a"), done)
    appender.append(put("b"), done)
    producer.callback(0)(REFUSAL, Message(0))
    producer.callback(1)(REFUSAL, Message(0))
    assert [str(error).split(":")[1].strip() for error, _, _ in told.reports] == ["a", "b"]


def test_headers_travel(appender: KafkaAppender, producer: Producer) -> None:
    appender.append(put(headers=[("end", b"fired")]), Told().report)
    assert producer.calls[0][1] == {"headers": [("end", b"fired")]}


def test_a_full_queue_is_waited_for(appender: KafkaAppender, producer: Producer) -> None:
    producer.full = 3  # it is asked once, and then after each poll
    appender.append(put(), Told().report)
    assert (len(producer.calls), producer.polls) == (1, 2)


def test_a_queue_that_stays_full_is_an_unreachable_store(
    appender: KafkaAppender, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_append, "PATIENCE_S", 0.0)
    producer.full = 10
    with pytest.raises(StoreUnreachable, match="faster than the store takes them"):
        appender.append(put(), Told().report)
    assert producer.calls == []


def test_a_record_refused_at_once_is_reported_like_one_refused_later(
    appender: KafkaAppender, producer: Producer
) -> None:
    producer.refusal = KafkaException(REFUSAL)
    told = Told()
    appender.append(put(), told.report)
    ((error, offset, _),) = told.reports
    assert isinstance(error, InvalidInput)
    assert offset == -1
    with pytest.raises(InvalidInput):
        appender.append(put())


def test_an_error_nobody_asked_for_is_raised_by_flush(appender: KafkaAppender, producer: Producer) -> None:
    appender.append(put())
    message = type("M", (), {"topic": lambda self: "t"})()
    producer.callback(0)(REFUSAL, message)
    with pytest.raises(InvalidInput):
        appender.flush(0)
    appender.flush(0)


def test_of_many_records_is_told_once_when_all_are_stored(
    appender: KafkaAppender, producer: Producer
) -> None:
    told: list[Exception | None] = []
    appender.append_all([put(), put(), put()], told.append)
    for n in (1, 0):
        producer.callback(n)(None, Message(n))
    assert told == []
    producer.callback(2)(None, Message(2))
    assert told == [None]


@pytest.mark.parametrize("lost", range(3))
def test_of_many_records_one_that_is_not_stored_is_told(
    appender: KafkaAppender, producer: Producer, lost: int
) -> None:
    told: list[Exception | None] = []
    appender.append_all([put(), put(), put()], told.append)
    for n in range(3):
        assert told == []
        producer.callback(n)(REFUSAL if n == lost else None, Message(n))
    assert [type(error) for error in told] == [InvalidInput]


def test_many_records_refused_at_once_are_told_of_like_those_refused_later(
    appender: KafkaAppender, producer: Producer
) -> None:
    producer.refusal = KafkaException(REFUSAL)
    told: list[Exception | None] = []
    appender.append_all([put(), put()], told.append)
    assert [type(error) for error in told] == [InvalidInput]
