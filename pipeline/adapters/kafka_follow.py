"""Any number of partitions followed from given offsets, read_committed, outside any group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from pipeline.adapters.kafka_io import READER_GROUP, require_topic, take
from pipeline.adapters.kafka_settings import (
    END_OF_PARTITION,
    NO_POSITION,
    constructing,
    error_of,
    is_fatal,
    settings,
    translate,
)
from pipeline.core.errors import NotFound, RebuildPartition, StoreUnreachable
from pipeline.ports import Record

Place = tuple[str, int]
Start = tuple[int, int | None]
ANSWER_S = 5.0
PROBE_S = 1.0
AGAIN_S = 2.0
"""How often a store that went silent is asked whether it is back."""
QUIET_S = 5.0
"""After so long without a record it is asked whether it is there at all: a broker that stands still closes no
connection."""


class KafkaFollow:
    """`readmodel.source.Follow`. One thread. InvalidInput for a reserved setting in `client`."""

    def __init__(self, bootstrap: str, client: Mapping[str, str] | None = None) -> None:
        own = {
            "group.id": READER_GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": 8 * 1024,
            "fetch.message.max.bytes": 256 * 1024,
            "fetch.max.bytes": 8 * 1024 * 1024,  # however many partitions there are, memory stays the same
            "receive.message.max.bytes": 16 * 1024 * 1024,
            "error_cb": self._noticed,
        }
        config = {**settings(bootstrap, client or {}, own), "error_cb": self._noticed}
        with constructing():
            self._consumer = Consumer(config)
        self._next: dict[Place, int] = {}
        self._at_end: set[Place] = set()
        self._silent: str | None = None
        self._asked = 0.0
        self._heard = time.monotonic()

    def _noticed(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 -- that is its name
            self._silent = error.str()

    def since(self, topic: str, partition: int, at_ms: int) -> int:
        """The first offset at or after that LogAppendTime; the end if there is none. StoreUnreachable, NotFound."""
        place = TopicPartition(topic, partition, at_ms)
        try:
            (found,) = self._consumer.offsets_for_times([place], ANSWER_S)
            if found.error is None and found.offset >= 0:
                return int(found.offset)
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), ANSWER_S)
        except KafkaException as exception:
            raise translate(error_of(exception), f"{topic}/{partition}") from exception
        if min(low, high) < 0:
            raise StoreUnreachable(f"{topic}/{partition}: no broker told its end")
        return int(high)

    def partitions(self, topic: str) -> int:
        """0 if there is no such topic. StoreUnreachable."""
        try:
            require_topic(self._consumer, topic)
            return len(self._consumer.list_topics(topic, ANSWER_S).topics[topic].partitions)
        except NotFound:
            return 0
        except KafkaException as exception:
            raise translate(error_of(exception), topic) from exception

    def follow(self, starts: Mapping[Place, Start]) -> None:
        """These too, each from its offset; one that the log does not hold is told by `poll`."""
        if starts:
            places = []
            for (topic, partition), (offset, epoch) in starts.items():
                place = TopicPartition(topic, partition, OFFSET_BEGINNING if offset < 0 else offset)
                if (
                    epoch is not None and offset >= 0
                ):  # so that a log that was cut, and has grown again, is noticed
                    place = TopicPartition(topic, partition, offset, leader_epoch=epoch)
                places.append(place)
                self._next[topic, partition] = offset
            self._consumer.incremental_assign(places)

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        """What has come, waiting at most `timeout_ms` for the first.

        Raises RebuildPartition if the log does not hold a position; StoreUnreachable while no broker answers.
        """
        records = []
        following, at_end = self._next, self._at_end
        for message in take(self._consumer, limit, timeout_ms / 1000):
            if message.error() is not None:
                self._event(message)
                continue
            place = message.topic(), message.partition()
            offset = message.offset()
            if offset >= following[place]:  # the client may deliver again
                following[place] = offset + 1
                at_end.discard(place)
                records.append(message)
        if records:
            self._answered()
        elif self._silent is not None or time.monotonic() > self._heard + QUIET_S:
            self._ask()
        return records

    def _answered(self) -> None:
        self._silent, self._heard = None, time.monotonic()

    def _event(self, message: Any) -> None:
        error, place = message.error(), (message.topic(), message.partition())
        if error.code() == END_OF_PARTITION:
            self._next[place] = max(self._next[place], message.offset())
            self._at_end.add(place)
            self._answered()
        elif error.code() in NO_POSITION:
            raise RebuildPartition(place[1], f"of {place[0]}: {error.str()}")
        elif is_fatal(error):
            raise StoreUnreachable(f"the client is dead: {error.str()}")

    def _ask(self) -> None:
        """Whether the store is back: where nothing is appended no record will tell."""
        if time.monotonic() < self._asked + AGAIN_S:
            return
        self._asked = time.monotonic()
        try:
            self._consumer.list_topics(timeout=PROBE_S)
        except KafkaException as exception:
            raise StoreUnreachable(f"no broker answers: {error_of(exception).str()}") from exception
        self._answered()

    def positions(self) -> Mapping[Place, int]:
        """The next offset of each, behind the markers that were passed."""
        return self._next

    def left(self) -> Mapping[Place, int | None]:
        """How much is left to read of those that are not at their end; None: the client has not heard."""
        left: dict[Place, int | None] = {}
        for place, position in self._next.items():
            if place not in self._at_end:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                left[place] = None if high < 0 else max(1, high - max(position, 0))
        return left

    def close(self) -> None:
        self._consumer.close()
