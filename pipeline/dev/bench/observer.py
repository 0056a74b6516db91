"""The consumer that waits on the work topic: lateness as DESIGN §1 defines it, and emit delay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_END, Consumer, KafkaError, TopicPartition

from pipeline.adapters import kafka_settings
from pipeline.adapters.kafka_io import take
from pipeline.config import Settings
from pipeline.core.errors import StoreUnreachable
from pipeline.core.ids import due_of

POLL_S = 0.1
BATCH = 10_000
READY_TIMEOUT_S = 30.0


def wall_ms() -> int:
    """This machine's clock in epoch ms."""
    return time.time_ns() // 1_000_000


class Seen(NamedTuple):
    """One record, when it was in hand and when it was appended; epoch ms by the store's clock."""

    due: int
    at: int
    appended: int

    @property
    def lateness(self) -> int:
        return self.at - self.due

    @property
    def emit_delay(self) -> int:
        return self.appended - self.due


def due_of_anonymous(key: bytes) -> int:
    return due_of(key.decode())


class Observer:
    """A read_committed consumer of one topic from its end on, in a thread of its own. A context manager: inside,
    it is already waiting.

    `due_in`: reads the due time from a record's key; by default that is an anonymous id.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        partitions: int,
        *,
        store_ahead: int = 0,
        due_in: Callable[[bytes], int] = due_of_anonymous,
    ) -> None:
        own = {
            "group.id": f"{settings.prefix}.observer",  # the client wants one; nothing joins it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "queued.min.messages": 1_000_000,
        }
        self._consumer = Consumer(kafka_settings.settings(settings.require_bootstrap(), settings.kafka, own))
        self._topic, self._partitions = topic, partitions
        self._store_ahead, self._due_in = store_ahead, due_in
        self._reached: set[int] = set()
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"observe {topic}", daemon=True)
        self.seen: list[Seen] = []
        """Grows in the observer's thread only."""

    def __enter__(self) -> Self:
        """StoreUnreachable if the consumer does not get to the end of every partition in time."""
        self._consumer.assign([TopicPartition(self._topic, n, OFFSET_END) for n in range(self._partitions)])
        self._thread.start()
        if not self._ready.wait(READY_TIMEOUT_S):
            missing = sorted({*range(self._partitions)} - self._reached)
            raise StoreUnreachable(f"{self._topic}: partitions {missing} not read in {READY_TIMEOUT_S:.0f} s")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def wait(self, count: int, timeout_s: float, alive: Callable[[], None] = lambda: None) -> None:
        """Until `count` records are in hand; StoreUnreachable if they do not come in time. `alive` raises if
        whoever should make them has ended."""
        deadline = time.monotonic() + timeout_s
        while len(self.seen) < count:
            alive()
            if time.monotonic() > deadline:
                raise StoreUnreachable(
                    f"{self._topic}: {len(self.seen)} of {count} records after {timeout_s:.0f} s"
                )
            time.sleep(0.02)

    def _run(self) -> None:
        while not self._stop.is_set():
            batch = take(self._consumer, BATCH, POLL_S)
            if batch:
                self._take(batch, wall_ms() + self._store_ahead)

    def _take(self, batch: list[Any], now: int) -> None:
        due_in, seen = self._due_in, self.seen
        for message in batch:
            error = message.error()
            if error is None:
                seen.append(Seen(due_in(message.key()), now, message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- librdkafka's own name for it
                self._end(message.partition())

    def _end(self, partition: int) -> None:
        self._reached.add(partition)
        if len(self._reached) == self._partitions:
            self._ready.set()
