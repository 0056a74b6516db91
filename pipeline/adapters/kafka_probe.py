"""Probes of the brokers' clocks: tombstones on `fleet`, each on a partition that one broker leads (DESIGN §6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from pipeline.adapters.kafka_settings import constructing, error_of, settings, translate
from pipeline.core.errors import NotFound

PROBE_KEY = b"probe"
"""Record key of a probe: a tombstone of no process, which the readers of `fleet` pass over."""
METADATA_TIMEOUT_S = 2.0
OWN: Mapping[str, Any] = {
    # The leader's time stands in its answer whether or not anybody copies the record, and the answer comes sooner.
    "acks": 1,
    "enable.idempotence": False,
    "linger.ms": 0,
    "delivery.timeout.ms": 5_000,
    "queue.buffering.max.messages": 1_000,
}
"""A probe is worth something now or never; no setting of a user's producers may hold it back."""


class KafkaProber:
    """Appends probes and says who leads what. Used by one thread, the clock's; a producer of its own, so that a
    report is taken when it comes and not when an owner's loop comes round."""

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> None:
        """InvalidInput for a setting in `client` that the library refuses."""
        others = {key: value for key, value in (client or {}).items() if key not in OWN}
        with constructing():
            self._producer = Producer(settings(bootstrap, others, OWN))
        self.topic = topic

    def leaders(self) -> dict[int, int]:
        """The broker that leads each partition; a partition without one is absent. StoreUnreachable, NotFound."""
        try:
            found = self._producer.list_topics(self.topic, METADATA_TIMEOUT_S).topics[self.topic]
        except KafkaException as exception:
            raise translate(error_of(exception), self.topic) from exception
        if not found.partitions:
            raise NotFound(f"topic {self.topic} does not exist")
        return {n: partition.leader for n, partition in found.partitions.items() if partition.leader >= 0}

    def send(self, partition: int, done: Callable[[int], None]) -> None:
        """`done(LogAppendTime)` is called from `poll`, in epoch ms; never for a probe that is lost."""

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                done(message.timestamp()[1])

        try:
            self._producer.produce(self.topic, None, PROBE_KEY, partition, on_delivery=report)
        except (BufferError, KafkaException):
            return  # lost, as any probe may be

    def poll(self, timeout_ms: int) -> None:
        """Wait for a report, and take what there is."""
        self._producer.poll(timeout_ms / 1_000)

    def close(self) -> None:
        self._producer.purge()
        self._producer.close()
