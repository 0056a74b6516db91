"""Questions to a store that is being restarted: asked again while its answer passes, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.adapters import kafka_io, kafka_topics
from pipeline.adapters.kafka_io import offset_after, range_of
from pipeline.adapters.kafka_meta import Meta
from pipeline.adapters.kafka_topics import Shape, TopicAdmin
from pipeline.core.errors import DuelineError, NotFound, Refused, StoreUnreachable
from pipeline.core.layout import default_layout
from pipeline.core.names import Names

LOST = KafkaError._TRANSPORT
UNKNOWN = KafkaError._UNKNOWN_PARTITION


class FakeConsumer:
    """Answers in order; the last one for ever. The broker has so many partitions of the topic."""

    def __init__(self, *answers: int | tuple[int, int], partitions: int = 0) -> None:
        self._answers = list(answers)
        self._partitions = partitions
        self.asked = 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(
            topics={topic: SimpleNamespace(partitions=dict.fromkeys(range(self._partitions)))}
        )

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, int):
            raise KafkaException(KafkaError(answer))
        return answer


class Time:
    """Goes by where somebody sleeps, and nowhere else."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kafka_io, kafka_topics):
        monkeypatch.setattr(module, "time", Time())


def asked(consumer: FakeConsumer) -> tuple[int, int]:
    found: Any = consumer
    return range_of(found, "t", 0, None)


@pytest.mark.parametrize(
    "passing",
    [
        LOST,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        UNKNOWN,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        (-1001, -1001),
        (0, -1),
    ],
)
def test_what_passes_is_asked_again(passing: Any) -> None:
    consumer = FakeConsumer(passing, passing, (3, 7))
    assert asked(consumer) == (3, 7)
    assert consumer.asked == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (LOST, StoreUnreachable),
        (KafkaError.NOT_LEADER_FOR_PARTITION, StoreUnreachable),
        ((-1001, -1001), StoreUnreachable),
        (UNKNOWN, NotFound),
    ],
)
def test_what_stays_so_is_told_in_the_end(answer: Any, error: type[DuelineError]) -> None:
    consumer = FakeConsumer(answer)
    with pytest.raises(error):
        asked(consumer)
    assert consumer.asked > 2


def test_what_does_not_pass_is_told_at_once() -> None:
    consumer = FakeConsumer(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(DuelineError, match="t/0"):
        asked(consumer)
    assert consumer.asked == 1


class Event:
    def __init__(self, code: int | None, offset: int) -> None:
        self._code, self._offset = code, offset

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def offset(self) -> int:
        return self._offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0


def test_an_event_that_passes_moves_no_reader() -> None:
    assert offset_after(Event(None, 4)) == 5
    assert offset_after(Event(KafkaError._PARTITION_EOF, 4)) == 4
    assert offset_after(Event(LOST, -1001)) == -1
    with pytest.raises(NotFound):
        offset_after(Event(KafkaError._AUTO_OFFSET_RESET, 4))


# -- an installation that should be there


class Forgetful(TopicAdmin):
    """Of a broker that knows its topics from the n-th question on."""

    def __init__(self, unknown: int) -> None:
        super().__init__({"bootstrap.servers": "localhost:1"}, Names("unit"), timeout_ms=100)
        self._unknown = unknown
        self.meta = self  # type: ignore[assignment]

    def shapes(self, names: Any) -> dict[str, Shape]:
        self._unknown -= 1
        shape = Shape(topic_id="id", partitions=3, replication=1, led=True)
        return {} if self._unknown >= 0 else dict.fromkeys(names, shape)

    def read(self) -> Meta:
        return Meta(layout=default_layout(queues={}))


def test_what_should_be_there_is_looked_for_again() -> None:
    """A worker that builds its clients anew meanwhile would end as refused."""
    assert Forgetful(3).topic_id("unit.jobs") == "id"
    assert Forgetful(3).meta_expected().layout is not None
    assert len(Forgetful(3).shapes_expected(["a", "b"])) == 2


def test_what_is_not_there_is_told_after_a_while() -> None:
    with pytest.raises(Refused, match="topics create"):
        Forgetful(1_000).topic_id("unit.jobs")
    assert Forgetful(1_000).meta_expected() == Meta()
    with pytest.raises(Refused):
        Forgetful(1).partitions("unit.jobs")  # whether a user's topic is there is asked once


@pytest.mark.parametrize(("partitions", "error"), [(1, StoreUnreachable), (0, NotFound)])
def test_a_partition_that_only_the_client_does_not_know_is_waited_for_and_not_taken_for_deleted(
    partitions: int, error: type[DuelineError]
) -> None:
    with pytest.raises(error, match="t/0"):
        asked(FakeConsumer(UNKNOWN, partitions=partitions))
