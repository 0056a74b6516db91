"""Plain appends and plain reads, outside any group and any transaction."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from pipeline.adapters.kafka_settings import (
    CALLBACK_ERRORS,
    END_OF_PARTITION,
    LEADERLESS,
    NO_POSITION,
    PURGED,
    RECORD_LIMIT,
    constructing,
    error_of,
    fatal_of,
    is_fatal,
    settings,
    translate,
)
from pipeline.core.errors import DuelineError, NotFound, StoreUnreachable
from pipeline.ports import Put, Record

log = logging.getLogger(__name__)

PATIENCE_S = 8.0
"""How long a broker may be silent before it counts as unreachable (DESIGN §9: exit 5 within 10 s)."""
WAIT_S = 0.1
DECIDED_S = 0.02
FLUSH_MS = 20
SETTLE_S = 2.0
"""How long a new topic may take to be known to every broker."""
BATCH = 10_000
LEFT_BEHIND = 100_000
"""Records buffered for a tailed partition that nobody asks for any more, before it is let go."""
TAILED = {"queued.max.messages.kbytes": 1024}
"""A tailed partition stays assigned when nobody reads it any more: what is fetched ahead stays small."""
T = TypeVar("T")
READER_GROUP = "dueline.reader"
"""librdkafka wants a group id even of a consumer that joins no group; nothing is ever committed to it."""

Report = Callable[[Exception | None, int, int], None]


class _Reporter(NamedTuple):
    """`report` tells `done` of records of `topic`."""

    topic: str
    done: Report
    report: Callable[[KafkaError | None, Message], None]


def _unheard(_error: Exception | None, _offset: int, _log_append_time: int) -> None: ...


class KafkaAppender:
    """`Appender` over an idempotent producer. InvalidInput for a reserved setting in `client`.

    An error in a report, and StoreUnreachable from `flush`, leave open whether the record was stored. A producer that
    turned fatal (its sequence is broken, or it may not write) is replaced: what it had queued is reported as failed,
    and what comes next goes to its successor. Any thread may append; one at a time may poll or flush.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        linger_ms: int = 5,
        delivery_timeout_ms: int = 30_000,
    ) -> None:
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": linger_ms,
            "delivery.timeout.ms": delivery_timeout_ms,
            "message.max.bytes": RECORD_LIMIT,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "topic.metadata.propagation.max.ms": 2_500,
        }
        self._settings = settings(bootstrap, client or {}, own)
        with constructing():
            self._producer = Producer(self._settings)
        self._dying: list[Producer] = []
        """Producers that turned fatal, until all they had queued is reported."""
        self._death = ""
        """What the last of them died of."""
        self._renewing = threading.Lock()
        self._lost: Exception | None = None
        self._last = _Reporter("", _unheard, self._forgotten)

    def append(self, put: Put, done: Report | None = None) -> None:
        """StoreUnreachable if the queue is full and stays so. Quickest with the same `done` as the last time."""
        topic, partition, key, value, headers = put
        report = self._forgotten if done is None else self._reporter(topic, done)
        more = {} if headers is None else {"headers": headers}
        deadline = 0.0
        while True:
            producer = self._producer
            produce: Callable[..., None] = producer.produce
            try:
                produce(topic, value, key, partition, report, **more)
            except BufferError as full:
                deadline = deadline or time.monotonic() + PATIENCE_S
                if time.monotonic() >= deadline:
                    raise StoreUnreachable("records are queued faster than the store takes them") from full
                self._serve(producer, 0.05)
            except KafkaException as exception:
                error = error_of(exception)
                if not is_fatal(error):
                    self._not_queued(translate(error, topic), done)
                    return
                self._renew(producer, error)
            else:
                return

    def _not_queued(self, error: Exception, done: Report | None) -> None:
        """Refused at once: reported all the same, so that a caller looks in one place."""
        if done is None:
            raise error
        done(error, -1, -1)

    def _reporter(self, topic: str, done: Report) -> Callable[[KafkaError | None, Message], None]:
        """One for all records with the same `done`: what many records are made of must not be made for each."""
        last = self._last
        if done is not last.done or topic != last.topic:
            self._last = last = _Reporter(topic, done, partial(self._report, topic, done))
        return last.report

    def _report(self, topic: str, done: Report, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            done(self._failure(error, topic), -1, -1)
        else:
            done(None, message.offset() or 0, message.timestamp()[1])

    def _forgotten(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._lost = self._failure(error, message.topic() or "")

    def _failure(self, error: KafkaError, topic: str) -> DuelineError:
        if error.code() in PURGED and self._death:
            return DuelineError(f"{topic}: the producer turned fatal: {self._death}")
        return translate(error, topic)

    def poll(self, timeout_ms: int) -> None:
        self._serve(self._producer, timeout_ms / 1000)
        if self._dying:
            self._bury()

    def flush(self, timeout_ms: int) -> None:
        """Also raises the error of a record that was appended without `done`.

        By polls: the library's flush goes on to call reports after it has met a fatal error, with that error pending,
        so that they end in the middle.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        self.poll(0)
        while (left := len(self._producer) + sum(map(len, self._dying))) and time.monotonic() < deadline:
            self.poll(FLUSH_MS)
        if left:
            raise StoreUnreachable(f"{left} records were not acknowledged within {timeout_ms} ms")
        if self._lost is not None:
            error, self._lost = self._lost, None
            raise error

    def close(self) -> None:
        """Give up what is still queued; `flush` first."""
        for producer in (*self._dying, self._producer):
            try:
                producer.purge()
                producer.close()
            except CALLBACK_ERRORS as error:
                log.info("producer: %s", error, extra={"action": "producer.closed"})

    # -- a producer that turned fatal ------------------------------------------------------------------------

    def _serve(self, producer: Producer, timeout: float) -> None:
        try:
            producer.poll(timeout)
        except CALLBACK_ERRORS as exception:
            self._renew(producer, fatal_of(exception))

    def _renew(self, broken: Producer, error: KafkaError) -> None:
        """Another one takes over, once: several threads, and several calls, may find the same one broken. It is let go
        only when nobody uses it any more, so not closed here."""
        with self._renewing:
            if error.fatal() or broken is self._producer:  # poll knows why, produce only that it is so
                self._death = error.str()
            if broken is not self._producer:
                return
            log.warning("producer replaced: %s", error.str(), extra={"action": "producer.replaced"})
            self._producer = Producer(self._settings)
            self._dying.append(broken)
        broken.purge()

    def _bury(self) -> None:
        """Hand out the reports of those that died."""
        for producer in list(self._dying):
            self._serve(producer, 0)
        with self._renewing:
            self._dying = [producer for producer in self._dying if len(producer)]


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
        begin, end = _range(consumer, topic, partition, since_ms)
        return self._read(consumer, topic, partition, max(begin, start or 0), end)

    def _read(self, consumer: Consumer, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        if start < end:
            consumer.assign([TopicPartition(topic, partition, start)])
        position, silence = start, 0.0
        while position < end:
            batch = take(consumer, BATCH, WAIT_S)
            silence = _silence(silence, batch)
            for message in batch:
                position = _after(message)
                if position > end:
                    break
                if message.error() is None:
                    yield message
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
            _, end = _range(undecided, topic, partition, None)
        finally:
            undecided.close()
        consumer = self._consumer()
        while _range(consumer, topic, partition, None)[1] < end and time.monotonic() < deadline:
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
            silence = _silence(silence, self._pump(topic, partition, WAIT_S))
            tail = self._open.get((topic, partition), tail)  # it may have been begun anew
        records = [tail.buffer.popleft() for _ in range(min(limit, len(tail.buffer)))]
        if records:
            tail.following = records[-1].offset() + 1
        return records

    def _begin(self, topic: str, partition: int, start: int) -> _Tail:
        """From `start`, or from where the log begins or ends by now: what it keeps for a limited time may be gone, and
        a log that lost its tail ends earlier than it did."""
        low, high = _range(self._consumer, topic, partition, None)
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
            else:
                _after(message)
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


def _range(consumer: Consumer, topic: str, partition: int, since_ms: int | None) -> tuple[int, int]:
    """Where to begin, and the end as of now: the last stable offset, for a read_committed consumer."""
    place = TopicPartition(topic, partition)
    low, high = _ask(lambda: consumer.get_watermark_offsets(place, PATIENCE_S), f"{topic}/{partition}")
    if since_ms is None:
        return low, high
    place = TopicPartition(topic, partition, since_ms)
    (found,) = _ask(lambda: consumer.offsets_for_times([place], PATIENCE_S), f"{topic}/{partition}")
    if found.error is not None:
        raise translate(found.error, f"{topic}/{partition}")
    return (found.offset if found.offset >= 0 else high), high


def _ask(question: Callable[[], T], subject: str) -> T:
    """The broker's answer, asked again while a leader is being found (a new topic, a broker gone)."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return question()
        except KafkaException as exception:
            error = error_of(exception)
            if error.code() not in LEADERLESS or time.monotonic() >= deadline:
                raise translate(error, subject) from exception
            time.sleep(WAIT_S)


def _silence(silence: float, batch: list[Any]) -> float:
    """Seconds waited in vain so far, after one more wait; StoreUnreachable when they are too many."""
    if batch:
        return 0.0
    if silence > PATIENCE_S:
        raise StoreUnreachable(f"no broker answered for {PATIENCE_S:.0f} s")
    return silence + WAIT_S


def _after(message: Any) -> int:
    """The offset after a message or an end-of-partition event; raises what any other event means."""
    error: KafkaError | None = message.error()
    offset: int = message.offset()
    if error is None:
        return offset + 1
    if error.code() == END_OF_PARTITION:
        return offset
    if error.code() in NO_POSITION:
        raise NotFound(f"{message.topic()}/{message.partition()}: {error.str()}")
    raise translate(error, f"{message.topic()}/{message.partition()}")
