"""Plain idempotent appends, outside any group and any transaction."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pipeline.adapters.kafka_settings import (
    CALLBACK_ERRORS,
    PURGED,
    RECORD_LIMIT,
    constructing,
    error_of,
    fatal_of,
    is_fatal,
    settings,
    translate,
)
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.ports import Put

log = logging.getLogger(__name__)

PATIENCE_S = 8.0
"""How long the client's queue may stay full."""
FLUSH_MS = 20

Report = Callable[[Exception | None, int, int], None]


_DeliveryReport = Callable[[KafkaError | None, Message], None]


class _Reporter(NamedTuple):
    """`report` tells `done` of records of `topic`."""

    topic: str
    done: Report | None
    report: _DeliveryReport


def _reporting(done: Report, failure: Callable[[KafkaError], DuelineError]) -> _DeliveryReport:
    """What tells `done`. A closure, since it is called for each record: a method bound to all this costs more."""

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            done(failure(error), -1, -1)
        else:
            offset = message.offset()  # None of a duplicate whose first answer was lost
            done(None, -1 if offset is None else offset, message.timestamp()[1])

    return report


class _Together:
    """Tells `done` once that `count` records were heard of, and of the last that was not stored."""

    __slots__ = ("_done", "_error", "_failure", "_left")

    def __init__(
        self,
        count: int,
        done: Callable[[Exception | None], None],
        failure: Callable[[KafkaError, str], DuelineError],
    ) -> None:
        self._left, self._done, self._failure = count, done, failure
        self._error: Exception | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        self.heard(None if error is None else self._failure(error, message.topic() or ""))

    def heard(self, error: Exception | None) -> None:
        self._left -= 1
        if error is not None:
            self._error = error
        if not self._left:
            self._done(self._error)


class KafkaAppender:
    """`BatchAppender` over an idempotent producer. InvalidInput for a reserved setting in `client`.

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
        self._last = _Reporter("", None, self._forgotten)

    def append(self, put: Put, done: Report | None = None) -> None:
        """StoreUnreachable if the queue is full and stays so. Quickest with the same `done` as the last time."""
        topic, partition, key, value, headers = put
        last = self._last
        report = last.report if done is last.done and topic == last.topic else self._reporter(topic, done)
        if headers is None:
            produce: Callable[..., None] = self._producer.produce
            try:  # a call less than below, for what nearly all records need
                produce(topic, value, key, partition, report)
            except (BufferError, KafkaException):
                pass
            else:
                return
        refused = self._queue(put, report)
        if refused is None:
            return
        if done is None:
            raise refused
        done(refused, -1, -1)  # reported all the same, so that a caller looks in one place

    def append_all(self, puts: Sequence[Put], done: Callable[[Exception | None], None]) -> None:
        """StoreUnreachable as `append`; then nothing is reported."""
        together = _Together(len(puts), done, self._failure)
        for put in puts:
            refused = self._queue(put, together.report)
            if refused is not None:
                together.heard(refused)

    def _queue(self, put: Put, report: _DeliveryReport) -> DuelineError | None:
        """Why the client does not take the record, if it is the record's fault."""
        topic, partition, key, value, headers = put
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
                    return translate(error, topic)
                self._renew(producer, error)
            else:
                return None

    def _reporter(self, topic: str, done: Report | None) -> _DeliveryReport:
        """One for all records that follow with the same `done`: what many are made of must not be made for each."""
        if done is None:
            return self._forgotten
        made = _reporting(done, partial(self._failure, topic=topic))
        self._last = _Reporter(topic, done, made)
        return made

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
