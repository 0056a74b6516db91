"""`GroupLog` over a real Kafka: a consumer in a group, and the transactional producers that go with it.

One thread calls it; only a commit may be made by another, which touches no consumer. The client serialises every
consumer call behind one gate and can starve a second thread for ever; and everything here that is taken together
(owned partitions, group metadata) is only consistent because no rebalance callback can fall between two calls of the
same thread.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from pipeline.adapters.kafka_io import require_topic, take
from pipeline.adapters.kafka_settings import (
    CALLBACK_ERRORS,
    END_OF_PARTITION,
    NO_POSITION,
    error_of,
    is_fatal,
    settings,
)
from pipeline.adapters.kafka_txn import TransactionalProducer, transactional_settings
from pipeline.adapters.memory import check_offsets
from pipeline.core.errors import RebuildClients, RebuildPartition, RetryStep
from pipeline.ports import CommittedOffset, Membership, Put, RebalanceListener, Record

log = logging.getLogger(__name__)

MAX_POLL_INTERVAL_MS = 60_000
FENCE_S = 5.0
WATERMARK_S = 2.0
METADATA_LIMIT = 4_096
"""Bytes of offset metadata that a broker accepts by default."""
NEVER = 1 << 63
"""Above every offset: the next position of a partition that is not being read."""


class KafkaGroupLog:
    """Joins `group` on `topic` at construction; `listener` is called inside `poll`.

    `transactional_ids` is a ring: consecutive transactions take turns, since the coordinator may still be
    finishing the last one of a producer when its next begins. `client` are further librdkafka settings.
    Raises InvalidInput (a reserved setting), NotFound (no such topic), StoreUnreachable, RebuildClients.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        listener: RebalanceListener,
        transactional_ids: Sequence[str],
        session_timeout_ms: int,
        client: Mapping[str, str],
        protocol: str = "classic",
        producer: Callable[[dict[str, Any]], TransactionalProducer] = TransactionalProducer,
    ) -> None:
        self._topic, self._listener = topic, listener
        self._ids = tuple(transactional_ids)
        self._bootstrap, self._client = bootstrap, client
        own = consumer_settings(group, session_timeout_ms, protocol)
        self._owned: set[int] = set()
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """Where the end of a partition was last seen; records that came later lie beyond it."""
        self._waiting: dict[int, int] = {}
        self._broken: set[int] = set()
        self._problems: list[Exception] = []
        self._turn = 0
        self._closed = False
        self._committing = threading.Lock()
        self._suspect = False
        """Whether the membership was lost since the producers were made."""
        self._consumer = Consumer(settings(bootstrap, client, own))
        require_topic(self._consumer, topic)
        self._producers = [producer(transactional_settings(bootstrap, client, id_)) for id_ in self._ids]
        self._consumer.subscribe(
            [topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return self._ids

    # -- membership ----------------------------------------------------------------------------------------
    # A callback that raises loses the batch of the poll it runs in, so nothing may leave one: what goes
    # wrong is kept and raised by `poll`.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            new = sorted(p.partition for p in partitions)
            self._owned.update(new)
            self._assign(self._listener.assigned(new) if new else {}, new)  # others moved, nothing came here
        except Exception as error:  # noqa: BLE001 - see above
            self._problems.append(error)

    def _assign(self, starts: Mapping[int, int], new: list[int]) -> None:
        """Also of nothing: the client waits for the call. Each partition gets an explicit offset, without
        which the client would fetch the group's. Those without a start are paused at once, and what may slip
        through before that is dropped by `_sift`."""
        starts = {p: offset for p, offset in starts.items() if self._holds(p, offset)}
        for partition, offset in starts.items():
            self._ends.pop(partition, None)
            self._next[partition] = max(offset, 0)
        self._consumer.incremental_assign([self._at(p, starts.get(p, OFFSET_BEGINNING)) for p in new])
        if paused := [self._at(p) for p in new if p not in starts]:
            self._consumer.pause(paused)
        # A pause of an earlier assignment can outlive it in the client.
        self._consumer.resume([self._at(p) for p in new if p in starts])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._give_up(partitions, self._listener.revoked)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._suspect = True
        self._give_up(partitions, self._listener.lost)

    def _give_up(self, partitions: list[TopicPartition], tell: Callable[[Sequence[int]], None]) -> None:
        try:
            gone = sorted(p.partition for p in partitions)
            self._owned.difference_update(gone)
            self._broken.difference_update(gone)
            for partition in gone:
                self._next.pop(partition, None)
                self._waiting.pop(partition, None)
            if not self._closed:
                tell(gone)
            self._consumer.incremental_unassign(partitions)
        except Exception as error:  # noqa: BLE001 - see above
            self._problems.append(error)

    def membership(self) -> Membership:
        try:
            opaque = self._consumer.consumer_group_metadata()
        except RuntimeError as error:
            raise RetryStep(f"no group metadata: {error}") from error
        generation, member_id = parse_group_metadata(opaque)
        if generation < 1 or not member_id:  # the broker would accept exactly this unfenced (H3)
            raise RetryStep(f"not a member of the group (generation {generation}, member {member_id!r})")
        return Membership(generation, member_id, opaque, frozenset(self._owned))

    # -- reading -------------------------------------------------------------------------------------------

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        self._raise_problem()
        for partition, offset in list(self._waiting.items()):
            self.start(partition, offset)
        try:
            return self._sift(take(self._consumer, limit, timeout_ms / 1000))
        except CALLBACK_ERRORS as error:
            raise RebuildClients(str(error.__cause__ or error)) from error

    def _raise_problem(self) -> None:
        """Before anything is taken: raised with records in hand, they would be lost, and with them jobs."""
        if self._problems:
            raise self._problems.pop(0)

    def _sift(self, batch: list[Any]) -> list[Record]:
        """Drop what is not ours any more or was delivered before (a batch may span a revoke, and the client
        can deliver again after a cooperative rebalance: H33); advance the positions."""
        following = self._next
        records: list[Record] = []
        for message in batch:
            if message.error() is not None:
                self._event(message)
                continue
            offset = message.offset()
            partition = message.partition()
            if offset >= following.get(partition, NEVER):
                following[partition] = offset + 1
                records.append(message)
        return records

    def _event(self, message: Any) -> None:
        error, partition = message.error(), message.partition()
        if error.code() == END_OF_PARTITION:
            if partition in self._next:  # it stands after the last marker, where no record leads (H15)
                self._next[partition] = max(self._next[partition], message.offset())
                self._ends[partition] = self._next[partition]
        elif is_fatal(error):
            self._problems.append(RebuildClients(error.str()))
        elif error.code() in NO_POSITION:
            if partition in self._next:
                self._broken.add(partition)
                self._lose(partition, error.str())
        else:
            extra = {"action": "kafka.consumer_error", "error": error.name(), "partition": partition}
            log.warning("consumer: %s", error.str(), extra=extra)

    def _lose(self, partition: int, problem: str) -> None:
        self._next.pop(partition, None)
        self._problems.append(RebuildPartition(partition, problem))

    def positions(self) -> Mapping[int, int]:
        return dict(self._next)

    def at_end(self) -> Set[int]:
        return {p for p, end in self._ends.items() if self._next.get(p) == end}

    def start(self, partition: int, offset: int) -> None:
        if partition not in self._owned:
            return
        if partition in self._broken:
            # The client refuses to seek then, and to assign the partition again from here could be taken
            # for the answer to a rebalance in progress.
            self._problems.append(RebuildClients(f"partition {partition} cannot be started again"))
            return
        if not self._holds(partition, offset):
            self._consumer.pause([self._at(partition)])
            return
        try:
            self._consumer.seek(self._at(partition, offset))
            self._consumer.resume([self._at(partition)])
        except KafkaException as error:
            log.debug("start put off: %s", error, extra={"action": "partition.start", "partition": partition})
            self._waiting[partition] = offset  # the client has not finished assigning it: `poll` tries again
            return
        self._waiting.pop(partition, None)
        self._ends.pop(partition, None)
        self._next[partition] = max(offset, 0)

    def _holds(self, partition: int, offset: int) -> bool:
        """Whether the log has that offset, else the problem is noted. Asked beforehand, because a partition
        whose fetch has failed for it cannot be started again. No answer leaves it to the fetch."""
        if offset < 0:
            return True
        try:
            low, high = self._consumer.get_watermark_offsets(self._at(partition), WATERMARK_S)
        except KafkaException as error:
            log.info("watermarks: %s", error, extra={"action": "partition.start", "partition": partition})
            return True
        if not low <= offset <= high:
            self._lose(partition, f"offset {offset} is not within {low} to {high}")
        return low <= offset <= high

    def pause(self, partitions: Iterable[int]) -> None:
        if places := [self._at(p) for p in partitions if p in self._next]:
            self._consumer.pause(places)

    def resume(self, partitions: Iterable[int], positions: Mapping[int, int]) -> None:
        for partition in partitions:
            if partition in positions:
                self.start(partition, positions[partition])
            elif (
                partition in self._next
            ):  # it goes on from where it stands: there is nothing to ask the broker
                self._consumer.resume([self._at(partition)])

    def committed(self, partitions: Sequence[int], timeout_ms: int) -> Mapping[int, CommittedOffset | None]:
        """The client asks for stable offsets because it reads read_committed; one unstable partition makes
        the whole question time out, so the others are then asked for one by one."""
        together = self._committed(partitions, timeout_ms / 1000)
        if together is not None or len(partitions) < 2:
            return together or {}
        each = timeout_ms / 1000 / len(partitions)
        return {p: offset for one in partitions for p, offset in (self._committed([one], each) or {}).items()}

    def _committed(
        self, partitions: Sequence[int], timeout: float
    ) -> dict[int, CommittedOffset | None] | None:
        try:
            answer = self._consumer.committed([self._at(p) for p in partitions], timeout)
        except KafkaException as exception:
            if is_fatal(error_of(exception)):
                raise RebuildClients(str(exception)) from exception
            return None
        return {p.partition: committed_offset(p) for p in answer if p.error is None}

    def _at(self, partition: int, offset: int = OFFSET_BEGINNING) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset if offset >= 0 else OFFSET_BEGINNING)

    # -- committing ----------------------------------------------------------------------------------------

    def commit(
        self, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        check_offsets(offsets, membership)
        if any(len(o.metadata.encode()) > METADATA_LIMIT for o in offsets.values()):
            raise ValueError(f"offset metadata of {sorted(offsets)} is over {METADATA_LIMIT} bytes")
        places = [TopicPartition(self._topic, p, o.offset, o.metadata) for p, o in offsets.items()]
        with self._committing:
            self._commit(puts, places, membership)

    def _commit(self, puts: Sequence[Put], places: list[TopicPartition], membership: Membership) -> None:
        self._renew_suspects()
        self._turn = (self._turn + 1) % len(self._producers)
        producer = self._producers[self._turn]
        try:
            producer.commit(puts, places, membership.opaque)
        finally:
            if producer.hung:  # the others lost the same connections, and would hang in their turn
                producer.hung = False
                for other in self._producers:
                    if other is not producer:
                        other.renew()

    def _renew_suspects(self) -> None:
        """A producer that knows a coordinator which is gone may hang for ever in send_offsets, whatever its
        time-out says (librdkafka#5456). A lost membership is how that is noticed: begin anew then."""
        if self._suspect:
            for producer in self._producers:
                producer.renew()
            self._suspect = False

    def fence(self, *transactional_ids: str) -> None:
        """All at once: each waits for a coordinator, and meanwhile nothing here fires."""
        if own := set(self._ids).intersection(transactional_ids):
            raise ValueError(f"{own} is our own")
        if transactional_ids:
            with ThreadPoolExecutor(len(transactional_ids)) as pool:
                list(pool.map(self._fence, transactional_ids))

    def _fence(self, transactional_id: str) -> None:
        producer = Producer(transactional_settings(self._bootstrap, self._client, transactional_id))
        extra = {"action": "producer.fence", "transactional_id": transactional_id}
        try:
            producer.init_transactions(FENCE_S)
        except KafkaException as error:
            log.warning("fence: %s", error, extra=extra)
        else:
            log.info("fenced", extra=extra)
        producer.close()

    def close(self) -> None:
        """Abort what is open, then leave: the others need not wait for the session to end.

        The listener, whose owner asked for it, is not told.
        """
        self._closed = True
        for producer in self._producers:
            producer.close()
        self._consumer.close()


def consumer_settings(group: str, session_timeout_ms: int, protocol: str) -> dict[str, Any]:
    """A group member's settings. With protocol `consumer` the session and heartbeat are the broker's."""
    member: dict[str, Any] = {
        "session.timeout.ms": session_timeout_ms,
        "heartbeat.interval.ms": session_timeout_ms // 6,
        "partition.assignment.strategy": "cooperative-sticky",
    }
    return {
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",  # the default skips jobs silently (H14)
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "check.crcs": True,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 50,
        "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
        **(member if protocol == "classic" else {}),
    }


def committed_offset(place: TopicPartition) -> CommittedOffset | None:
    return CommittedOffset(place.offset, place.metadata or "") if place.offset >= 0 else None


def parse_group_metadata(opaque: bytes) -> tuple[int, str]:
    """(generation, member id) of what `consumer_group_metadata()` returns; the client has no accessor.

    librdkafka's format "CGMDv2:" (rdkafka_cgrp.c): int32 in host byte order, group id NUL, member id NUL, one
    byte that says whether the instance id is null. RetryStep for anything else: fail closed.
    """
    fields = opaque[11:].split(b"\0")
    if not opaque.startswith(b"CGMDv2:") or len(fields) != 3 or fields[2] != b"\x01":
        raise RetryStep("unknown format of the group metadata, or a static member")
    return struct.unpack_from("=i", opaque, 7)[0], fields[1].decode(errors="replace")
