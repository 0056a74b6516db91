"""One transactional producer, and the order and error handling of a transaction on it (DESIGN §5.3, §5.6).

The client library lacks KIP-890 part 2: a delayed EndTxn can end a *later* transaction of the same producer
epoch (KAFKA-17754). So a producer whose EndTxn was not answered cleanly and at once is replaced: the new
one's `init_transactions` raises the epoch and so fences the stray request.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from pipeline.adapters.aside import Apart
from pipeline.adapters.kafka_settings import (
    CALLBACK_ERRORS,
    FENCED,
    RECORD_LIMIT,
    UNAPPENDABLE,
    error_of,
    settings,
)
from pipeline.core.errors import OutcomeUnknown, OwnerError, PoisonRecord, RebuildClients, RetryStep
from pipeline.ports import Put

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 10_000
"""After this the coordinator aborts: until then an abandoned transaction hides all behind it (H18)."""
DELIVERY_TIMEOUT_MS = 5_000
INIT_S = 30.0
STEP_S = 9.0
"""Begin, appends and offsets together: less than the coordinator waits."""
OFFSETS_S = 3.0
"""A broker answers in milliseconds; the client can wait for a coordinator for ever (librdkafka#5456)."""
COMMIT_S = 10.0
"""After a local time-out the only legal call would be the same commit again: the producer is replaced instead."""
ABORT_S = 5.0
CLOSE_S = 5.0
"""While the broker stands still it may not return at all; what it leaves open its successor's initialisation ends."""
RENEW_S = 5.0
"""How long a new producer may take inside a step, which the watchdog ends after 60 s: with flush and abort, or with
the commit, far less. One that takes longer is built with all else that is built anew."""
SUSPECT_S = 1.0
"""An EndTxn that took longer may have been sent twice."""
PAUSE_S = 0.01


def transactional_settings(
    bootstrap: str, client: Mapping[str, str], transactional_id: str
) -> dict[str, Any]:
    own = {
        "compression.type": "lz4",
        "linger.ms": 0,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 200,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_048_576,
        "message.max.bytes": RECORD_LIMIT,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "socket.timeout.ms": DELIVERY_TIMEOUT_MS,
        "topic.metadata.propagation.max.ms": DELIVERY_TIMEOUT_MS // 2,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "transactional.id": transactional_id,
        "acks": "all",
        "delivery.report.only.error": True,
    }
    return settings(bootstrap, client, own)


_left_behind: list[Producer] = []
"""Producers with a call that never returned: their destructors would wait for it."""


class Unusable(Exception):
    """The transaction cannot go on and the library allows no abort: only a new producer helps."""


class Hung(Exception):
    """The call does not return, whatever time-out it was given: its producer must never be called again."""


class Failed(Exception):
    """The transaction must be aborted."""


class TransactionalProducer:
    """A producer with one transactional.id. One thread at a time, one transaction at a time.

    Constructing it ends what an earlier producer with the id left open. `checkpoint` is told each step that
    a transaction has passed. Raises RebuildClients if construction does not succeed in time.
    """

    def __init__(self, config: dict[str, Any], checkpoint: Callable[[str], None] = lambda step: None) -> None:
        self._at = checkpoint
        self._config = {**config, "on_delivery": self._undelivered}
        self._id: str = config["transactional.id"]
        self.hung = False
        """Whether its predecessor had to be left behind with a call that never returned."""
        self._failure: KafkaError | None = None
        self._ended = False
        """Whether the producer was closed, or left behind, and no other has taken its place: it must not be called."""
        self._producer = self._create()

    def _create(self, seconds: float = INIT_S) -> Producer:
        producer = Producer(self._config)
        try:
            _repeat(lambda: producer.init_transactions(seconds), time.monotonic() + seconds)
        except (Unusable, Failed, OwnerError) as error:
            raise RebuildClients(f"{self._id}: {error}") from error
        self._ended = False
        return producer

    def _undelivered(self, error: KafkaError | None, message: Message) -> None:
        """Only failures are reported. A poisonous one outranks the others, which may just follow from it."""
        if error is not None and (self._failure is None or error.code() in UNAPPENDABLE):
            self._failure = error

    def commit(self, puts: Sequence[Put], offsets: list[TopicPartition], group_metadata: Any) -> None:
        """Begin, append all, flush to zero, send offsets, commit. The order is the proof: all records stand
        in the log before the coordinator checks the generation (H5). Raises as `GroupLog.commit`."""
        deadline = time.monotonic() + STEP_S
        self._failure = None
        try:
            _repeat(self._producer.begin_transaction, deadline)
            self._at("begun")
            self._fill(puts, offsets, group_metadata, deadline)
        except Hung as error:
            self._abandon(str(error))
        except Unusable as error:
            self.renew()
            raise RetryStep(f"{self._id}: {error}") from error
        except Failed as error:
            self._abort(str(error))
        self._end()
        self._at("committed")

    def _fill(
        self, puts: Sequence[Put], offsets: list[TopicPartition], group_metadata: Any, deadline: float
    ) -> None:
        self._append(puts, deadline)
        self._at("produced")
        self._flush(deadline)
        self._at("flushed")
        self._send_offsets(offsets, group_metadata, deadline)
        self._at("offsets_sent")

    def _append(self, puts: Sequence[Put], deadline: float) -> None:
        produce: Callable[..., None] = self._producer.produce
        for topic, partition, key, value, headers in puts:
            while True:
                try:
                    if headers is None:  # as of every run: to parse a name costs half as much as all the rest
                        produce(topic, value, key, partition)
                    else:
                        produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:
                    self._make_room(deadline)
                except KafkaException as error:
                    self._not_appended(error)

    def _make_room(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise Failed("the producer's queue stayed full")
        self._producer.poll(PAUSE_S)

    def _not_appended(self, exception: KafkaException) -> NoReturn:
        error = error_of(exception)
        if error.fatal():
            raise RebuildClients(f"{self._id}: {error.str()}") from exception
        if self._failure is None or error.code() in UNAPPENDABLE:
            self._failure = error
        raise Failed(error.str()) from exception

    def _flush(self, deadline: float) -> None:
        try:
            left = self._producer.flush(max(deadline - time.monotonic(), 0.0))
        except CALLBACK_ERRORS as error:
            raise RebuildClients(f"{self._id}: {error.__cause__ or error}") from error
        if left:
            raise Failed(f"{left} records were not acknowledged in time")
        if self._failure is not None:  # flush counts a failed record as done
            raise Failed(self._failure.str())

    def _send_offsets(self, offsets: list[TopicPartition], group_metadata: Any, deadline: float) -> None:
        def send() -> None:
            left = max(deadline - time.monotonic(), PAUSE_S)
            self._producer.send_offsets_to_transaction(offsets, group_metadata, left)

        in_time(lambda: _repeat(send, deadline), OFFSETS_S)

    def _abort(self, reason: str) -> NoReturn:
        """Abort, then say what the caller has to do. Nothing of this transaction can commit any more."""
        started = time.monotonic()
        try:
            repeated = _repeat(lambda: self._producer.abort_transaction(ABORT_S), started + ABORT_S)
        except (Unusable, Failed):
            repeated = True
        if repeated or time.monotonic() - started > SUSPECT_S:
            self.renew()
        if self._failure is not None and self._failure.code() in UNAPPENDABLE:
            raise PoisonRecord(f"{self._id}: {self._failure.str()}")
        raise RetryStep(f"{self._id}: {reason}")

    def _end(self) -> None:
        """EndTxn. Raised, repeated or slow: what became of it is not known here (H16), and a stray copy of
        it may still arrive (H6). A slow success is known to have committed; it is reported as unknown all
        the same, because the takeover that follows is the one path that is always right."""
        started = time.monotonic()
        try:
            self._producer.commit_transaction(COMMIT_S)
        except KafkaException as exception:
            error = error_of(exception)
            if error.fatal():
                raise RebuildClients(f"{self._id}: {error.str()}") from exception
            self.renew()
            raise OutcomeUnknown(f"{self._id}: {error.str()}") from exception
        if time.monotonic() - started > SUSPECT_S:
            self.renew()
            raise OutcomeUnknown(f"{self._id}: the commit took over {SUSPECT_S:.0f} s")

    def renew(self) -> None:
        """A new producer with the same id; its initialisation decides whatever the old one left open."""
        log.warning("producer replaced", extra={"action": "producer.replaced", "transactional_id": self._id})
        self.close()
        self._producer = self._create(RENEW_S)

    def _abandon(self, reason: str) -> NoReturn:
        """Nothing of this transaction can commit: its offsets were not answered, and the new producer's
        initialisation ends it. The old one is neither closed nor let go, which would wait for its call."""
        log.warning(
            "producer left behind: %s",
            reason,
            extra={"action": "producer.hung", "transactional_id": self._id},
        )
        _left_behind.append(self._producer)
        self.hung = self._ended = True
        self._producer = self._create(RENEW_S)
        raise RetryStep(f"{self._id}: {reason}")

    def close(self) -> None:
        """Drop what is queued and abort what is open. Nothing is left to be done where a renewal has failed."""
        if self._ended:
            return
        self._ended = True
        try:
            self._producer.purge()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # that a fenced producer cannot abort
                in_time(self._producer.close, CLOSE_S)
        except Hung as error:
            log.warning(
                "producer left behind at its end: %s",
                error,
                extra={"action": "producer.hung", "transactional_id": self._id},
            )
            _left_behind.append(self._producer)
        except CALLBACK_ERRORS as error:
            log.info("producer: %s", error, extra={"action": "producer.closed", "transactional_id": self._id})


def in_time(call: Callable[[], object], seconds: float) -> None:
    """Make the call in a thread of its own and wait for it: what it raises is raised here, Hung if it is not back in
    time. The thread is left behind then."""
    apart = Apart(call)
    if not apart.wait(seconds):
        raise Hung(f"no answer within {seconds:.0f} s")
    apart.result()


def _repeat(call: Callable[[], None], deadline: float) -> bool:
    """Make one transactional call, again while it is retriable and there is time. Whether it was repeated.

    Raises RebuildClients for a fatal error or a fenced producer, Failed if the transaction must be aborted,
    Unusable for anything else: by the library's rules the producer is then good for nothing.
    """
    repeated = False
    while True:
        try:
            call()
        except KafkaException as exception:
            error = error_of(exception)
            if error.fatal() or error.code() == FENCED:  # fenced comes with "abort", but in vain
                raise RebuildClients(error.str()) from exception
            if error.txn_requires_abort():
                raise Failed(error.str()) from exception
            if not error.retriable() or time.monotonic() >= deadline:
                raise Unusable(error.str()) from exception
            repeated = True
            time.sleep(PAUSE_S)
        else:
            return repeated
