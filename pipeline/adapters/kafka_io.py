"""Plain reads, outside any group and any transaction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from pipeline.adapters.kafka_settings import (
    ABSENT,
    END_OF_PARTITION,
    NO_POSITION,
    PASSING,
    constructing,
    error_of,
    settings,
    translate,
)
from pipeline.core.errors import NotFound, StoreUnreachable
from pipeline.ports import Record

PATIENCE_S = 8.0
"""How long a broker may be silent before it counts as unreachable (DESIGN §9: exit 5 within 10 s)."""
WAIT_S = 0.1
DECIDED_S = 0.02
SETTLE_S = 2.0
"""How long a topic may take to be known to every broker: a new one, or any after a restart."""
BATCH = 10_000
LEFT_BEHIND = 100_000
"""Records buffered for a tailed partition that nobody asks for any more, before it is let go."""
TAILED = {"queued.max.messages.kbytes": 1024}
"""A tailed partition stays assigned when nobody reads it any more: what is fetched ahead stays small."""
T = TypeVar("T")
READER_GROUP = "dueline.reader"
"""librdkafka wants a group id even of a consumer that joins no group; nothing is ever committed to it."""


class KafkaReader:
    """`Reader`. NotFound for what does not exist, StoreUnreachable when no broker answers in time.

    One thread at a time. A `read` has a consumer of its own while it runs, so reads may be interleaved;
    all tails share one.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        own = {
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.queue.backoff.ms": 20,
        }
        self._settings = settings(bootstrap, client or {}, own)
        self._idle: list[Consumer] = []
        self._tails: _Tails | None = None

    def _consumer(self) -> Consumer:
        return self._idle.pop() if self._idle else _consumer(self._settings)

    def read(
        self, topic: str, partition: int, start: int | None = None, since_ms: int | None = None
    ) -> Iterator[Record]:
        consumer = self._consumer()
        begin, end = range_of(consumer, topic, partition, since_ms)
        return self._read(consumer, topic, partition, max(begin, start or 0), end)

    def _read(self, consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        if start < end:
            consumer.assign([TopicPartition(topic, partition, start)])
        position, silence = start, 0.0
        while position < end:
            before, batch = position, take(consumer, BATCH, WAIT_S)
            for message in batch:
                position = max(position, offset_after(message))
                if position > end:
                    break
                if message.error() is None:
                    yield message
            silence = longer(silence, batch if position > before else [])
        consumer.unassign()
        self._idle.append(consumer)

    def tail(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Record]:
        """The first call of a partition, or one with another `start` than after the last record, waits for
        the broker's answer; going on from the last record takes what has been fetched meanwhile."""
        if self._tails is None:
            self._tails = _Tails(_consumer({**self._settings, **TAILED}))
        return self._tails.take(topic, partition, start, limit)

    def leave(self, topic: str, partition: int) -> None:
        if self._tails is not None:
            self._tails.leave(topic, partition)

    def decided(self, topic: str, partition: int, timeout_ms: int) -> None:
        deadline = time.monotonic() + timeout_ms / 1000
        undecided = _consumer({**self._settings, "isolation.level": "read_uncommitted"})
        try:
            _, end = range_of(undecided, topic, partition, None)
        finally:
            undecided.close()
        consumer = self._consumer()
        while range_of(consumer, topic, partition, None)[1] < end:
            if time.monotonic() >= deadline:
                consumer.close()
                raise StoreUnreachable(
                    f"{topic}/{partition}: a transaction that stays open hides what was stored last; ask again"
                )
            time.sleep(DECIDED_S)
        self._idle.append(consumer)

    def partitions(self, topic: str) -> int:
        consumer = self._consumer()
        try:
            return partition_count(consumer, topic)
        finally:
            self._idle.append(consumer)

    def close(self) -> None:
        for consumer in self._idle:
            consumer.close()
        self._idle.clear()
        if self._tails is not None:
            self._tails.close()


class _Tail:
    """Where one tailed partition stands: the offset its next caller wants, and what was fetched for it."""

    __slots__ = ("answered", "buffer", "following")

    def __init__(self, start: int) -> None:
        self.following = start
        self.buffer: deque[Any] = deque()
        self.answered = False


class _Tails:
    """Any number of tailed partitions on one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._open: dict[tuple[str, int], _Tail] = {}

    def take(self, topic: str, partition: int, start: int, limit: int) -> Sequence[Record]:
        tail = self._open.get((topic, partition))
        if tail is None or tail.following != start:
            tail = self._begin(topic, partition, start)
        if not tail.buffer:
            self._pump(topic, partition, 0.0)
        silence = 0.0
        while not tail.buffer and not tail.answered:
            silence = longer(silence, self._pump(topic, partition, WAIT_S))
            tail = self._open.get((topic, partition), tail)  # it may have been begun anew
        records = [tail.buffer.popleft() for _ in range(min(limit, len(tail.buffer)))]
        if records:
            tail.following = records[-1].offset() + 1
        return records

    def _begin(self, topic: str, partition: int, start: int) -> _Tail:
        """From `start`, or from where the log begins or ends by now: what it keeps for a limited time may be gone, and
        a log that lost its tail ends earlier than it did."""
        low, high = range_of(self._consumer, topic, partition, None)
        place = TopicPartition(topic, partition, max(low, min(start, high)))
        if (topic, partition) in self._open:
            self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        tail = self._open[topic, partition] = _Tail(start)
        return tail

    def leave(self, topic: str, partition: int) -> None:
        if self._open.pop((topic, partition), None) is not None:
            self._consumer.incremental_unassign([TopicPartition(topic, partition)])

    def _pump(self, topic: str, partition: int, timeout: float) -> list[Any]:
        """Sort what has come in to the partitions' buffers."""
        batch = take(self._consumer, BATCH, timeout)
        for message in batch:
            tail = self._open.get((message.topic(), message.partition()))
            if tail is None:
                continue
            if message.error() is None:
                tail.buffer.append(message)
            elif message.error().code() in NO_POSITION:
                self._begin(message.topic(), message.partition(), tail.following)
            elif offset_after(message) >= 0:
                tail.answered = True
        for place, tail in list(self._open.items()):
            if len(tail.buffer) > LEFT_BEHIND and place != (topic, partition):
                self._consumer.incremental_unassign([TopicPartition(*place)])
                del self._open[place]
        return batch

    def close(self) -> None:
        self._consumer.close()


def _consumer(config: Mapping[str, Any]) -> Consumer:
    with constructing():
        return Consumer(dict(config))


def take(consumer: Consumer, limit: int, timeout: float) -> list[Any]:
    """Up to `limit` messages and events, waiting at most `timeout` seconds for the first and for no other:
    `consume` alone would wait for the full number. Tested with `is None`: a tombstone is falsy."""
    first = consumer.poll(timeout)
    if first is None:
        return []
    return [first, *consumer.consume(limit - 1, 0)] if limit > 1 else [first]


def require_topic(consumer: Consumer, topic: str) -> None:
    """NotFound if the topic does not exist, StoreUnreachable if no broker says so in time."""
    settled = time.monotonic() + SETTLE_S
    while not partition_count(consumer, topic):
        if time.monotonic() >= settled:
            raise NotFound(f"topic {topic} does not exist")
        time.sleep(WAIT_S)


def partition_count(consumer: Consumer, topic: str) -> int:
    """0 if the topic does not exist, as far as the asked broker knows; StoreUnreachable."""
    metadata = _ask(lambda: consumer.list_topics(topic, PATIENCE_S), topic)
    return len(metadata.topics[topic].partitions)


def check_reachable(bootstrap: str, timeout_ms: int, client: Mapping[str, str] | None = None) -> str:
    """The cluster's id; StoreUnreachable if no broker answers in time."""
    with constructing():
        producer = Producer(settings(bootstrap, client or {}, {}))
    try:
        return str(producer.list_topics(timeout=timeout_ms / 1000).cluster_id)
    except KafkaException as exception:
        raise translate(error_of(exception), bootstrap) from exception
    finally:
        producer.close()


def range_of(consumer: Consumer, topic: str, partition: int, since_ms: int | None) -> tuple[int, int]:
    """Where to begin, and the end as of now: the last stable offset, for a read_committed consumer."""
    place = TopicPartition(topic, partition)
    try:
        low, high = _ask(lambda: _watermarks(consumer, place), f"{topic}/{partition}")
    except NotFound as absent:
        if partition_count(consumer, topic) <= partition:
            raise
        # Seen of clients whose broker had stood still twice: what the broker itself says counts.
        raise StoreUnreachable(f"{absent}, though the broker has it") from absent
    if since_ms is None:
        return low, high
    place = TopicPartition(topic, partition, since_ms)
    (found,) = _ask(lambda: consumer.offsets_for_times([place], PATIENCE_S), f"{topic}/{partition}")
    if found.error is not None:
        raise translate(found.error, f"{topic}/{partition}")
    return (found.offset if found.offset >= 0 else high), high


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    low, high = consumer.get_watermark_offsets(place, PATIENCE_S)
    if min(low, high) < 0:  # no offset at all, told as a success: seen of clients after a leader had changed
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return low, high


def _ask(question: Callable[[], T], subject: str) -> T:
    """The broker's answer, asked again while a leader is being found (a new topic, a broker gone) or the connection is
    lost: a store that is restarted comes back, and for a moment knows no topic."""
    began = time.monotonic()
    while True:
        try:
            return question()
        except KafkaException as exception:
            error = error_of(exception)
            if time.monotonic() - began >= _patience(error):
                raise translate(error, subject) from exception
            time.sleep(WAIT_S)


def _patience(error: KafkaError) -> float:
    """How long to go on asking after this answer, s."""
    if error.code() in PASSING:
        return PATIENCE_S
    return SETTLE_S if error.code() in ABSENT else 0.0


def longer(silence: float, batch: list[Any]) -> float:
    """Seconds waited in vain so far, after one more wait; StoreUnreachable when they are too many."""
    if batch:
        return 0.0
    if silence > PATIENCE_S:
        raise StoreUnreachable(f"no broker answered for {PATIENCE_S:.0f} s")
    return silence + WAIT_S


def offset_after(message: Any) -> int:
    """The offset after a message or an end-of-partition event, -1 after what passes; raises what any other event
    means."""
    error: KafkaError | None = message.error()
    offset: int = message.offset()
    if error is None:
        return offset + 1
    if error.code() == END_OF_PARTITION:
        return offset
    if error.code() in PASSING:
        return -1
    if error.code() in NO_POSITION:
        raise NotFound(f"{message.topic()}/{message.partition()}: {error.str()}")
    raise translate(error, f"{message.topic()}/{message.partition()}")
