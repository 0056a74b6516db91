"""Partitions read in bulk, outside any group: for whoever looks at all that happened in a while."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipeline.adapters.kafka_io import (
    BATCH,
    PATIENCE_S,
    READER_GROUP,
    WAIT_S,
    longer,
    offset_after,
    partition_count,
    range_of,
    take,
)
from pipeline.adapters.kafka_settings import constructing, error_of, settings, translate
from pipeline.ports import CommittedOffset, Record, Span

DECIDED_S = 5.0
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
READING: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 1,  # each end of a partition, and the question after it, waits that long: there are many
    "fetch.queue.backoff.ms": 20,
    "queued.max.messages.kbytes": 32 * 1024,  # fetched ahead: however much is read, memory stays the same
}


class KafkaScan:
    """`Scan`. InvalidInput for a reserved setting in `client`."""

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        self._bootstrap, self._client = bootstrap, client or {}
        self._consumer = self._open(isolation=COMMITTED, **READING)
        self._undecided = self._open(isolation=UNCOMMITTED)
        self._groups: dict[str, Consumer] = {}

    def _open(self, isolation: str, group: str = READER_GROUP, **more: Any) -> Consumer:
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation, **more}
        with constructing():
            return Consumer(settings(self._bootstrap, self._client, own))

    def span(self, topic: str, partition: int, since_ms: int | None = None) -> Span:
        low, end = range_of(self._consumer, topic, partition, None)
        if since_ms is None:
            return Span(low, low, max(end, low))
        start, end = range_of(self._consumer, topic, partition, since_ms)
        return Span(low, max(start, low), max(end, low))

    def decided(self, topic: str, partition: int) -> None:
        _, end = range_of(self._undecided, topic, partition, None)
        deadline = time.monotonic() + DECIDED_S
        while range_of(self._consumer, topic, partition, None)[1] < end and time.monotonic() < deadline:
            time.sleep(WAIT_S / 5)

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
        if group not in self._groups:  # an open transaction must not keep the answer back
            self._groups[group] = self._open(isolation=UNCOMMITTED, group=group)
        wanted = [TopicPartition(topic, n) for n in range(partitions)]
        try:
            places = self._groups[group].committed(wanted, PATIENCE_S)
        except KafkaException as exception:
            raise translate(error_of(exception), group) from exception
        failed = next((place.error for place in places if place.error is not None), None)
        if failed is not None:
            raise translate(failed, group)
        return {
            place.partition: CommittedOffset(place.offset, place.metadata or "")
            for place in places
            if place.offset >= 0
        }

    def partitions(self, topic: str) -> int:
        return partition_count(self._consumer, topic)

    def close(self) -> None:
        for consumer in (self._consumer, self._undecided, *self._groups.values()):
            consumer.close()
