"""The lateness probe: measures only what a consumer already waiting received, within its budget."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from pipeline import codec
from pipeline.adapters.kafka_settings import END_OF_PARTITION
from pipeline.core.job import Run
from pipeline.service import probe as module
from pipeline.service.probe import LatenessProbe

T0 = 1_800_000_000_000
Measured = tuple[str, int, int, int]


class Message:
    def __init__(
        self, topic: str, partition: int, value: bytes | None, at: int, error: Any = None, key: bytes = b"o"
    ) -> None:
        self._place, self._value, self._at, self._error = (topic, partition), value, at, error
        self._key = key

    def key(self) -> bytes:
        return self._key

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def value(self) -> bytes | None:
        return self._value

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at

    def error(self) -> Any:
        return self._error


def eof(topic: str = "t.work.mail", partition: int = 1) -> Message:
    return Message(topic, partition, None, 0, KafkaError(END_OF_PARTITION))


def fired(
    due_at: int, appended_at: int, *, created_at: int = T0, partition: int = 1, id_: str = "o"
) -> Message:
    run = Run(
        job_id="j", occurrence_id=id_, due_at=due_at, run=1, queue="mail", handler="h", created_at=created_at,
        nominal_at=due_at, idempotency_key="k", payload=b"{}",
    )  # fmt: skip
    return Message("t.work.mail", partition, codec.RUN.encode(run), appended_at, key=id_.encode())


class FakeConsumer:
    """Hands out bursts of records; a tenth of a second passes before each."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.assigned: list[list[tuple[str, int, int]]] = []
        self.bursts: deque[tuple[Message, ...]] = deque()
        self.burst: deque[Message] = deque()
        self.at_once = 1_000
        self.unassigned = 0
        self.closed = threading.Event()
        self.error: Exception | None = None

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append([(p.topic, p.partition, p.offset) for p in partitions])

    def unassign(self) -> None:
        self.unassigned += 1

    def poll(self, timeout: float) -> Message | None:
        """What comes while the consumer waits is the next burst; what is left of one is there at once."""
        if self.error is not None:
            raise self.error
        if not self.burst and timeout > 0:
            self.house.monotonic += 0.1
            self.burst.extend(self.bursts.popleft() if self.bursts else ())
        return self.burst.popleft() if self.burst else None

    def consume(self, limit: int, timeout: float) -> list[Message]:
        return [self.burst.popleft() for _ in range(min(limit, self.at_once, len(self.burst)))]

    def close(self) -> None:
        self.closed.set()


class House:
    def __init__(self, budget: int = 10, queues: Mapping[str, int] | None = None) -> None:
        self.monotonic = 0.0
        self.now = T0 + 1_000
        self.measured: list[Measured] = []
        self.kinds: list[str] = []
        self.told: list[str] = []
        self.consumer = FakeConsumer(self)
        self.probe = LatenessProbe(
            open_consumer=lambda: self.consumer,
            queues=lambda: {"mail": 3} if queues is None else queues,
            topic=lambda queue: f"t.work.{queue}",
            budget=budget,
            now=lambda: self.now,
            sink=self,
            events=self,
            monotonic=lambda: self.monotonic,
        )

    def lateness(self, queue: str, *, due_at: int, appended_at: int, received_at: int) -> None:
        self.measured.append((queue, due_at, appended_at, received_at))

    def not_measured(self, kind: str) -> None:
        self.kinds.append(kind)

    def on(self, action: str, **fields: Any) -> None:
        self.told.append(action)

    def turn(self, *bursts: tuple[Message, ...]) -> None:
        self.consumer.bursts.extend(bursts)
        self.probe.take_turn(self.consumer)


def test_a_run_that_a_waiting_consumer_receives_is_measured_by_the_stores_clock() -> None:
    house = House()
    house.turn((eof(),), (fired(T0 + 980, T0 + 990),))
    assert house.measured == [("mail", T0 + 980, T0 + 990, T0 + 1_000)]


def test_what_stood_there_when_the_consumer_began_says_nothing_but_what_follows_does() -> None:
    """Under steady traffic there is never an end of the partition to be told of."""
    house = House()
    house.turn((fired(T0 + 1, T0 + 2), fired(T0 + 1, T0 + 2)), (fired(T0 + 3, T0 + 4),))
    assert [due for _, due, _, _ in house.measured] == [T0 + 3]


def test_the_end_of_one_partition_says_nothing_of_another() -> None:
    house = House()
    house.turn((eof(partition=2),), (fired(T0 + 3, T0 + 4),))
    assert house.measured == []


def test_what_came_while_the_consumer_was_busy_is_not_measured() -> None:
    house = House()
    house.consumer.at_once = 0
    house.turn((eof(),), (fired(T0 + 1, T0 + 2), fired(T0 + 3, T0 + 4)))
    assert [due for _, due, _, _ in house.measured] == [T0 + 1]


def test_one_partition_of_every_queue_from_its_end_and_another_one_each_turn() -> None:
    house = House(queues={"mail": 3, "media": 2})
    house.turn()
    house.turn()
    assert house.consumer.assigned == [
        [("t.work.mail", 1, OFFSET_END), ("t.work.media", 1, OFFSET_END)],
        [("t.work.mail", 2, OFFSET_END), ("t.work.media", 0, OFFSET_END)],
    ]


def test_a_turn_ends_after_its_time() -> None:
    house = House()
    house.turn()
    assert module.TURN_S <= house.monotonic < module.TURN_S + 1


def test_a_used_up_budget_stops_fetching_until_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 0.3)
    house = House(budget=3)
    house.turn((eof(),), (fired(T0 + 1, T0 + 2),) * 50)
    assert (len(house.measured), house.consumer.unassigned) == (3, 1)
    assert house.monotonic < module.TURN_S


def test_what_is_taken_in_vain_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKEN_LIMIT", 100)
    monkeypatch.setattr(module, "WINDOW_S", 0.3)
    house = House()
    house.turn((fired(T0 + 1, T0 + 2),) * 100, (fired(T0 + 1, T0 + 2),))
    assert (house.measured, house.consumer.unassigned) == ([], 1)


def test_the_budget_comes_back_every_second() -> None:
    house = House(budget=12)
    house.turn((eof(),), *[(fired(T0 + 1, T0 + 2),)] * 60)  # ten a second
    assert (len(house.measured), house.consumer.unassigned) == (60, 0)


def test_a_job_that_was_due_before_it_was_made_is_not_a_late_one() -> None:
    house = House()
    house.turn((eof(),), (fired(T0 - 5_000, T0 + 2, created_at=T0),))
    assert (house.measured, house.kinds) == ([], ["due_at_creation"])


def test_an_occurrence_of_a_schedule_is_made_as_it_fires_and_late_all_the_same() -> None:
    house = House()
    house.turn((eof(),), (fired(T0 - 5_000, T0 + 2, created_at=T0, id_=f"s:daily:7:g::{T0 - 5_000}"),))
    assert [due for _, due, _, _ in house.measured] == [T0 - 5_000]


def test_foreign_bytes_are_counted_and_passed_over() -> None:
    house = House()
    garbage, empty = Message("t.work.mail", 1, b"garbage", T0), Message("t.work.mail", 1, None, T0)
    house.turn((eof(),), (garbage, empty, fired(T0, T0 + 1)))
    assert house.kinds == ["unreadable", "unreadable"]
    assert len(house.measured) == 1


def test_an_installation_without_queues_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 0.01)
    house = House(queues={})
    house.turn()
    assert house.consumer.assigned == []


def test_a_store_that_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    house = House()
    house.consumer.error = KafkaException(KafkaError(KafkaError._TRANSPORT))
    house.probe.start()
    eventually(lambda: len(house.told) >= 2)
    assert house.consumer.closed.is_set()
    house.probe.close()
    assert set(house.told) == {"probe_failed"}


def test_the_thread_ends_when_it_is_closed() -> None:
    house = House()
    house.probe.start()
    house.probe.close()
    assert house.consumer.closed.wait(30)
