"""Consumers that wait on the topics while the night passes: lateness as DESIGN §1 defines it, and the
counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from pipeline import codec
from pipeline.adapters import kafka_settings
from pipeline.config import Settings
from pipeline.core.errors import StoreUnreachable
from pipeline.core.job import AckState
from pipeline.core.keys import AcksKind, parse_acks_key
from pipeline.ports import Appender, Put, Reader

POLL_S = 0.1
READY_TIMEOUT_S = 30.0
PROBE_TIMEOUT_MS = 30_000
"""A broker that has just started, on a busy machine, may take many seconds over its first answer."""
PROBE_KEY = b"probe"


def wall_ms() -> int:
    """This machine's clock in epoch ms."""
    return time.time_ns() // 1_000_000


def store_ahead_ms(appender: Appender, fleet: str) -> int:
    """By how much the store's clock is ahead of this machine's. 0 if a probe cannot tell them apart; else the
    upper bound, so that lateness is never understated. StoreUnreachable if a probe is not answered."""
    _probe(appender, fleet)  # makes contact; the longer an answer takes, the less it says about the clock
    sent = wall_ms()
    appended = _probe(appender, fleet)
    received = wall_ms()
    least, most = appended - received, appended + 1 - sent
    return 0 if least <= 0 <= most else most


def _probe(appender: Appender, fleet: str) -> int:
    """The LogAppendTime of a tombstone that nobody minds."""
    times: list[int] = []
    problems: list[Exception] = []

    def done(error: Exception | None, _offset: int, log_append_time: int) -> None:
        if error is None:
            times.append(log_append_time)
        else:
            problems.append(error)

    appender.append(Put(fleet, 0, PROBE_KEY, None), done)
    appender.flush(PROBE_TIMEOUT_MS)
    if not times:
        raise StoreUnreachable(f"{fleet}: {problems[0] if problems else 'no delivery report'}")
    return times[0]


class Watch:
    """A read_committed consumer of one whole topic in a thread of its own; `seen(message, wall clock in ms)`
    is called there for each record as it comes. A context manager: inside, the consumer is already
    waiting."""

    def __init__(
        self, settings: Settings, topic: str, partitions: int, seen: Callable[[Any, int], None]
    ) -> None:
        own = {
            "group.id": f"{settings.prefix}.watch",  # the client wants one; nothing joins it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,  # an answer without records is what tells the end of a partition
        }
        config = kafka_settings.settings(settings.require_bootstrap(), settings.kafka, own)
        self._consumer = Consumer(config)
        self._topic, self._partitions = topic, partitions
        self._seen = seen
        self._reached: set[int] = set()
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {topic}", daemon=True)

    def __enter__(self) -> Self:
        """StoreUnreachable if the consumer does not get to the end of every partition in time."""
        places = [TopicPartition(self._topic, n, OFFSET_BEGINNING) for n in range(self._partitions)]
        self._consumer.assign(places)
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

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(POLL_S)
            now = wall_ms()
            if message is None:
                continue
            error = message.error()
            if error is None:
                self._seen(message, now)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 -- librdkafka's own name for it
                self._reached.add(message.partition() or 0)
                if len(self._reached) == self._partitions:
                    self._ready.set()


class Tally:
    """What the watches have seen so far. Each list and set grows in one thread only."""

    def __init__(self, store_ahead: int) -> None:
        self._store_ahead = store_ahead
        self.lateness: list[int] = []
        self.started: set[tuple[str, int]] = set()
        self.succeeded: set[str] = set()

    def work(self, message: Any, now: int) -> None:
        head = codec.peek_run(message.value())
        if head.run == 1:
            self.lateness.append(now + self._store_ahead - head.due_at)

    def ack(self, message: Any, _now: int) -> None:
        value = message.value()
        if value is None or parse_acks_key(message.key()).kind not in (AcksKind.STARTED, AcksKind.TERMINAL):
            return
        ack = codec.ACK.decode(value)
        if ack.state is AckState.STARTED:
            self.started.add((ack.occurrence_id, ack.run))
        elif ack.state is AckState.SUCCEEDED:
            self.succeeded.add(ack.occurrence_id)


def watches(settings: Settings, reader: Reader, tally: Tally) -> tuple[Watch, Watch]:
    """Of the work topic and its acks."""
    work, acks = settings.names.work(settings.queue), settings.names.acks(settings.queue)
    partitions = reader.partitions(work)
    return Watch(settings, work, partitions, tally.work), Watch(settings, acks, partitions, tally.ack)
