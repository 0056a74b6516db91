"""The topic `meta`: the layout and the era of an installation, written once at a time (DESIGN §3)."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pipeline import codec
from pipeline.adapters.kafka_settings import bad_setting, constructing
from pipeline.core.errors import DuelineError, Refused, StoreUnreachable, Undecodable, UnknownFingerprint
from pipeline.core.keys import ERA_KEY, LAYOUT_KEY
from pipeline.core.layout import Layout
from pipeline.core.names import Names

FIRST_ERA = 1
WRITER_KEY = b"writer"
"""Tombstones by which a writer knows that it has read all that any writer before it can have written."""
_NONCE = "nonce"
# By name, as librdkafka spells them; a leading _ marks the client's own.
_FORBIDDEN = frozenset(
    {
        "TOPIC_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "POLICY_VIOLATION",
        "INVALID_CONFIG",
        "INVALID_REPLICATION_FACTOR",
        "INVALID_PARTITIONS",
    }
)
_UNREACHABLE = frozenset(
    {
        "_TRANSPORT",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_MSG_TIMED_OUT",
        "_RESOLVE",
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "REQUEST_TIMED_OUT",
    }
)


@contextmanager
def asking(what: str, config: Mapping[str, str]) -> Iterator[None]:
    """Turn the client library's errors into ours: what the caller must do, and what was being done."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise translated(error, what, config["bootstrap.servers"]) from error


def translated(error: Exception, what: str, servers: str) -> DuelineError:
    """What the caller must do about an error of the client library."""
    cause = error.args[0] if error.args and isinstance(error.args[0], KafkaError) else None
    if cause is None or cause.name() in _UNREACHABLE:
        return StoreUnreachable(
            f"cannot reach Kafka at {servers}: {what}: {cause.str() if cause else 'timed out'}"
        )
    if cause.name() == "_INVALID_ARG":
        return bad_setting(cause)
    if cause.name() in _FORBIDDEN:
        return Refused(f"Kafka refuses: {what}: {cause.str()}")
    return DuelineError(f"{what}: {cause.str()}")


def quiet(config: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """The client library logs a line for each refused connection; what it means is raised anyway."""
    return {**config} if "debug" in config else {"log_level": 2, **config}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What stands on the topic; None = not written yet."""

    layout: Layout | None = None
    era: int | None = None


class MetaTopic:
    """Reads and writes the layout and the era."""

    def __init__(self, config: Mapping[str, str], names: Names, *, timeout_ms: int) -> None:
        self._config = config
        self._topic = names.meta
        self._transactional_id = f"{names.prefix}.topics"
        self._timeout_s = timeout_ms / 1000

    def read(self) -> Meta:
        """What is committed now; StoreUnreachable if the end is not reached in time."""
        return self._read(None)

    def update(self, change: Callable[[Layout | None], Layout]) -> Layout:
        """Replace the layout by `change(layout)`, and begin the first era if none has begun.

        Writers exclude each other: one transactional.id, so each fences those before it (KIP-98), and each
        first reads back a record of its own, so it has seen all that they committed. Raises what `change`
        raises, with nothing written.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._update(change)
            except KafkaException as error:
                # Overtaken by another writer, or the outcome is unknown: read again, it may be done already.
                if time.monotonic() > deadline:
                    raise translated(
                        error, f"writing {self._topic}", self._config["bootstrap.servers"]
                    ) from error
                time.sleep(random.uniform(0.05, 0.25))

    def _update(self, change: Callable[[Layout | None], Layout]) -> Layout:
        with constructing():
            producer = Producer(
                {
                    **quiet(self._config),
                    "transactional.id": self._transactional_id,
                    "transaction.timeout.ms": 10_000,
                    "message.timeout.ms": min(10_000, int(self._timeout_s * 1000)),
                }
            )
        producer.init_transactions(self._timeout_s)
        nonce = uuid.uuid4().bytes
        self._commit(producer, {WRITER_KEY: None}, nonce)
        found = self._read(nonce)
        layout = change(found.layout)
        puts: dict[bytes, bytes | None] = {}
        if layout != found.layout:
            puts[LAYOUT_KEY] = codec.LAYOUT.encode(layout)
        if found.era is None:
            puts[ERA_KEY] = codec.ERA.encode(codec.Era(era=FIRST_ERA))
        if puts:
            self._commit(producer, puts, nonce)
        return layout

    def _commit(self, producer: Producer, puts: Mapping[bytes, bytes | None], nonce: bytes) -> None:
        producer.begin_transaction()
        for key, value in puts.items():
            producer.produce(self._topic, value, key, partition=0, headers=[(_NONCE, nonce)])
        producer.commit_transaction(self._timeout_s)

    def _read(self, nonce: bytes | None) -> Meta:
        """Fold the topic up to the record with `nonce`, or to its end. The end is the last stable offset: an
        undecided transaction hides what is after it, which is why a writer waits for a record of its own."""
        values: dict[bytes, bytes] = {}
        with asking(f"reading {self._topic}", self._config), self._consumer() as consumer:
            deadline = time.monotonic() + self._timeout_s
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.name() != "_PARTITION_EOF":
                        raise KafkaException(error)
                    if nonce is None:
                        return _meta(self._topic, values)
                    continue
                key, value = message.key(), message.value()
                if value is not None and key is not None:
                    values[key] = value
                if nonce is not None and (_NONCE, nonce) in (message.headers() or ()):
                    return _meta(self._topic, values)
            raise TimeoutError

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                **quiet(self._config),
                "group.id": f"{self._transactional_id}.reader",  # never joined: partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        try:
            # Not OFFSET_BEGINNING: asking where that is costs the client half a second, and it is 0 unless an
            # operator deleted records.
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            yield consumer
        finally:
            consumer.close()


def _meta(topic: str, values: Mapping[bytes, bytes]) -> Meta:
    """Raises Refused for a record that cannot be read: to guess a layout or an era would lose jobs."""
    layout, era = values.get(LAYOUT_KEY), values.get(ERA_KEY)
    with _refusing(topic, LAYOUT_KEY):
        found = None if layout is None else codec.LAYOUT.decode(layout)
    with _refusing(topic, ERA_KEY):
        return Meta(layout=found, era=None if era is None else codec.ERA.decode(era).era)


@contextmanager
def _refusing(topic: str, key: bytes) -> Iterator[None]:
    try:
        yield
    except Undecodable as error:
        remedy = (
            "upgrade this version of Dueline"
            if isinstance(error, UnknownFingerprint)
            else "append the last good record under this key again, or choose another DUELINE_PREFIX"
        )
        raise Refused(
            f"{topic}: the record under {key.decode()!r} cannot be read ({error}): {remedy}"
        ) from error
