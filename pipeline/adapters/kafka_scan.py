"""Partitions read in bulk, outside any group: for whoever looks at all that happened in a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipeline.adapters.kafka_io import (
    BATCH,
    READER_GROUP,
    WAIT_S,
    KafkaReader,
    longer,
    offset_after,
    range_of,
    take,
)
from pipeline.adapters.kafka_settings import constructing, error_of, settings, translate
from pipeline.ports import CommittedOffset, Record, Span

DECIDED_MS = 5_000
TIMEOUT_S = 8.0
AHEAD_KB = 32 * 1024
"""Fetched ahead of whoever reads: memory stays the same however long the reading is."""


class KafkaScan:
    """`Scan`. InvalidInput for a reserved setting in `client`."""

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        self._bootstrap, self._client = bootstrap, client or {}
        self._reader = KafkaReader(bootstrap, client)
        own = {
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": AHEAD_KB,
        }
        self._consumer = self._open(own)

    def _open(self, own: Mapping[str, Any]) -> Consumer:
        with constructing():
            return Consumer(settings(self._bootstrap, self._client, own))

    def span(self, topic: str, partition: int, since_ms: int | None = None) -> Span:
        low, _ = range_of(self._consumer, topic, partition, None)
        start, end = range_of(self._consumer, topic, partition, since_ms)
        return Span(low, max(start, low), max(end, low))

    def decided(self, topic: str, partition: int) -> None:
        self._reader.decided(topic, partition, DECIDED_MS)

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[Sequence[Record]]:
        if start >= end:
            return
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, partition, start)])
        try:
            position, silence = start, 0.0
            while position < end:
                batch = take(consumer, BATCH, WAIT_S)
                silence = longer(silence, batch)
                records = [message for message in batch if message.error() is None]
                if len(records) < len(batch):
                    position = max(position, *(offset_after(message) for message in batch))
                elif records:
                    position = offset_after(records[-1])
                if position > end:
                    records = [record for record in records if record.offset() < end]
                if records:
                    yield records
        finally:
            consumer.unassign()

    def committed(self, group: str, topic: str, partitions: int) -> Mapping[int, CommittedOffset]:
        own = {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",  # an open transaction must not keep the answer back
        }
        consumer = self._open(own)
        try:
            places = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], TIMEOUT_S)
        except KafkaException as exception:
            raise translate(error_of(exception), group) from exception
        finally:
            consumer.close()
        return {
            place.partition: CommittedOffset(place.offset, place.metadata or "")
            for place in places
            if place.offset >= 0
        }

    def partitions(self, topic: str) -> int:
        return self._reader.partitions(topic)

    def close(self) -> None:
        self._reader.close()
        self._consumer.close()
