"""News of one topic as it comes, outside any group: for whoever waits for something about to be appended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition

from pipeline.adapters.kafka_io import READER_GROUP, take
from pipeline.adapters.kafka_settings import END_OF_PARTITION, NO_POSITION, constructing, settings
from pipeline.ports import Record

BATCH = 1_000
FETCHED_AHEAD_KB = 1024
CONNECT_S = 1.0
FETCH_WAIT_MS = 20
"""How long the broker may hold a fetch without news. News are answered at once; but a partition that is followed
anew waits for the end of the fetch that is under way."""


class KafkaFeed:
    """Follows partitions from their end (the last stable offset, which open transactions hold back, so it may be
    early and is never late). A partition is followed once the broker has told its end: until then what is
    appended may be missed.

    Errors of the broker are waited out: whoever waits for news has a deadline. InvalidInput for a reserved
    setting in `client`.
    """

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> None:
        own = {
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": FETCHED_AHEAD_KB,
        }
        with constructing():
            self._consumer = Consumer(settings(bootstrap, client or {}, own))
        self._topic = topic
        self._assigned: set[int] = set()
        self._following: frozenset[int] = frozenset()

    @property
    def following(self) -> frozenset[int]:
        return self._following

    def follow(self, partitions: frozenset[int]) -> None:
        if new := partitions - self._assigned:
            if not self._assigned:
                self._connect(min(new))
            self._consumer.incremental_assign(self._ends(new))
            self._assigned |= new

    def _connect(self, partition: int) -> None:
        """Ask for something and wait: a client that knows no leader yet looks again half a second later."""
        with suppress(KafkaException):
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), CONNECT_S)

    def _ends(self, partitions: frozenset[int] | set[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, number, OFFSET_END) for number in sorted(partitions)]

    def poll(self, timeout_ms: int) -> Sequence[Record]:
        messages = take(self._consumer, BATCH, timeout_ms / 1000)
        return [message for message in messages if self._is_news(message)]

    def _is_news(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            self._seen(message.partition())
            return True
        if error.code() == END_OF_PARTITION:
            self._seen(message.partition())
        elif error.code() in NO_POSITION and message.partition() in self._assigned:
            self._begin_anew(message.partition())
        return False

    def _seen(self, partition: int) -> None:
        if partition not in self._following:
            self._following |= {partition}

    def _begin_anew(self, partition: int) -> None:
        """What it stood at was deleted, or its topic was: what came meanwhile is lost to whoever waits."""
        self._following -= {partition}
        self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        self._assigned.discard(partition)

    def close(self) -> None:
        self._consumer.close()
