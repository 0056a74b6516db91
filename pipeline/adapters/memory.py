"""In-memory twins of the log ports over `MemoryCluster`, and a clock that a test moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum

from pipeline.adapters.memory_cluster import MemoryCluster, MemoryPartition, MemoryRecord, Outcome
from pipeline.core.errors import (
    InvalidInput,
    OutcomeUnknown,
    PoisonRecord,
    RebuildClients,
    RebuildPartition,
    RetryStep,
    StoreUnreachable,
)
from pipeline.ports import CommittedOffset, Membership, Put, RebalanceListener, Record


class MemoryClock:
    """A `Clock` that only `advance` moves; give `clock.now` to the cluster as its time."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._monotonic = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        return self._monotonic

    def error(self) -> int:
        return 0

    def close(self) -> None:
        return

    def advance(self, ms: int) -> None:
        self._now += ms
        self._monotonic += ms


class CommitFault(Enum):
    """What the next commit of a `MemoryGroupLog` does instead of succeeding."""

    REFUSED = "refused"
    UNKNOWN_COMMITTED = "unknown, committed"
    UNKNOWN_ABORTED = "unknown, aborted"


class MemoryGroupLog:
    """`GroupLog` in memory. `faults` is consumed by commits in order; `poll` never waits."""

    def __init__(
        self,
        cluster: MemoryCluster,
        topic: str,
        group: str,
        listener: RebalanceListener,
        transactional_ids: Sequence[str],
    ) -> None:
        self._cluster, self._topic, self._listener = cluster, topic, listener
        self._group = cluster.group(group, topic)
        self._ids = tuple(transactional_ids)
        self._epochs = {id_: cluster.init_transactions(id_) for id_ in self._ids}
        self._member = self._group.join()
        self._owned: set[int] = set()
        self._next: dict[int, int] = {}
        self._paused: set[int] = set()
        self._turn = 0
        self._problems: deque[RebuildPartition] = deque()
        self.faults: deque[CommitFault] = deque()

    @property
    def transactional_ids(self) -> tuple[str, ...]:
        return self._ids

    @property
    def member_id(self) -> str:
        return self._member

    def expire(self) -> None:
        """Fault: the coordinator ends this member's session, as after a freeze or a lost network."""
        self._group.leave(self._member)

    # -- reading -------------------------------------------------------------------------------------------

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        if not self._cluster.reachable:
            return []
        self._rebalance()
        self._check_positions()
        records: list[Record] = []
        self._turn += 1
        for partition in self._in_turn():
            log = self._cluster.partition(self._topic, partition)
            found, self._next[partition] = log.read(self._next[partition], limit - len(records))
            records += found
        return records

    def _check_positions(self) -> None:
        """Before anything is read: what a raising poll had read would be lost. One problem is raised a poll,
        but no partition that has one is read, or has a position, from now on."""
        for partition, offset in list(self._next.items()):
            log = self._cluster.partition(self._topic, partition)
            if not log.start <= offset <= log.end:
                del self._next[partition]
                problem = f"offset {offset} is not within {log.start} to {log.end}"
                self._problems.append(RebuildPartition(partition, problem))
        if self._problems:
            raise self._problems.popleft()

    def _in_turn(self) -> list[int]:
        """Fetching partitions, another one first at each poll: a full one must not starve the others."""
        fetching = sorted(self._next.keys() - self._paused)
        cut = self._turn % len(fetching) if fetching else 0
        return fetching[cut:] + fetching[:cut]

    def _rebalance(self) -> None:
        if self._member not in self._group.members:
            self._drop(self._owned.copy(), self._listener.lost)
            self._member = self._group.join()
        if unwanted := self._group.unwanted(self._member) & self._owned:
            self._drop(unwanted, self._listener.revoked)
            self._group.give_up(self._member, unwanted)
        if new := self._group.members.get(self._member, set()) - self._owned:
            self._owned |= new
            for partition, offset in self._listener.assigned(sorted(new)).items():
                self.start(partition, offset)

    def _drop(self, partitions: set[int], tell: Callable[[Sequence[int]], None]) -> None:
        if not partitions:
            return
        self._owned -= partitions
        self._paused -= partitions
        for partition in partitions:
            self._next.pop(partition, None)
        tell(sorted(partitions))

    def positions(self) -> Mapping[int, int]:
        return dict(self._next)

    def at_end(self) -> Set[int]:
        ends = {p: self._cluster.partition(self._topic, p).last_stable for p in self._next}
        return {p for p, offset in self._next.items() if offset >= ends[p]}

    def start(self, partition: int, offset: int) -> None:
        if partition in self._owned:
            log = self._cluster.partition(self._topic, partition)
            self._next[partition] = log.start if offset < 0 else offset

    def pause(self, partitions: Iterable[int]) -> None:
        self._paused.update(self._owned.intersection(partitions))

    def resume(self, partitions: Iterable[int], positions: Mapping[int, int]) -> None:
        for partition in partitions:
            self._paused.discard(partition)
            if partition in positions and partition in self._next:
                self._next[partition] = positions[partition]

    def committed(self, partitions: Sequence[int], timeout_ms: int) -> Mapping[int, CommittedOffset | None]:
        stable = [p for p in partitions if not self._group.pending.get(p)]
        return {p: self._group.committed.get(p) for p in stable} if self._cluster.reachable else {}

    # -- committing ----------------------------------------------------------------------------------------

    def membership(self) -> Membership:
        if self._member not in self._group.members:
            raise RetryStep("not a member of the group")
        generation = self._group.generation
        return Membership(generation, self._member, (self._member, generation), frozenset(self._owned))

    def commit(
        self, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        check_offsets(offsets, membership)
        if not self._cluster.reachable:
            raise RetryStep("no broker can be reached")
        id_ = self._ids[self._turn % len(self._ids)]
        self._cluster.begin(id_, self._epochs[id_])
        try:
            self._append(id_, puts, offsets, membership)
        except (RetryStep, PoisonRecord):
            self._cluster.end(id_, self._epochs[id_], Outcome.ABORTED)
            raise
        self._cluster.hook("commit", id_)
        self._end(id_)
        self._cluster.hook("committed", id_)

    def _append(
        self, id_: str, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        self._cluster.hook("append", id_)
        for put in puts:
            self._cluster.transactional_append(id_, self._epochs[id_], put)
        self._cluster.hook("offsets", id_)
        if self.faults and self.faults[0] is CommitFault.REFUSED:
            self.faults.popleft()
            raise RetryStep("refused by fault")
        self._cluster.send_offsets(id_, self._epochs[id_], self._group, dict(offsets), membership.opaque)

    def _end(self, id_: str) -> None:
        fault = self.faults.popleft() if self.faults else None
        outcome = Outcome.ABORTED if fault is CommitFault.UNKNOWN_ABORTED else Outcome.COMMITTED
        self._cluster.end(id_, self._epochs[id_], outcome)
        if fault is not None:
            self._epochs[id_] = self._cluster.init_transactions(id_)
            raise OutcomeUnknown("unknown by fault")

    def fence(self, *transactional_ids: str) -> None:
        if own := set(self._ids).intersection(transactional_ids):
            raise ValueError(f"{own} is our own")
        for transactional_id in transactional_ids:
            self._cluster.init_transactions(transactional_id)

    def close(self) -> None:
        """Leave; the partitions are dropped without a call of the listener, which asked for it."""
        self._group.leave(self._member)
        for id_ in self._ids:
            self._abort_own(id_)
        self._owned.clear()
        self._next.clear()

    def _abort_own(self, id_: str) -> None:
        try:
            self._cluster.end(id_, self._epochs[id_], Outcome.ABORTED)
        except RebuildClients:
            return  # another producer has the id: what we had open is already aborted


def check_offsets(offsets: Mapping[int, CommittedOffset], membership: Membership) -> None:
    """ValueError for offsets that would commit unfenced or for partitions not ours: the client would report
    success and send nothing (H4), the broker checks the member but not the partition (F3)."""
    if not offsets or any(offset.offset < 0 for offset in offsets.values()):
        raise ValueError(f"a commit needs a real offset for each partition, got {dict(offsets)}")
    if not offsets.keys() <= membership.owned:
        raise ValueError(f"offsets {sorted(offsets)} of partitions not in {sorted(membership.owned)}")


class MemoryAppender:
    """`BatchAppender` in memory. While the cluster is not reachable records wait, as in the real client."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._queue: deque[tuple[Put, Callable[[Exception | None, int, int], None] | None]] = deque()
        self._reports: deque[Callable[[], None]] = deque()

    def append(self, put: Put, done: Callable[[Exception | None, int, int], None] | None = None) -> None:
        self._queue.append((put, done))
        self._send()

    def append_all(self, puts: Sequence[Put], done: Callable[[Exception | None], None]) -> None:
        heard: list[Exception | None] = []

        def one(error: Exception | None, _offset: int, _at: int) -> None:
            heard.append(error)
            if len(heard) == len(puts):
                done(next((each for each in heard if each is not None), None))

        for put in puts:
            self.append(put, one)

    def _send(self) -> None:
        while self._queue and self._cluster.reachable:
            put, done = self._queue.popleft()
            error, offset, time = self._append_one(put)
            if done is not None:
                self._reports.append(lambda done=done, e=error, o=offset, t=time: done(e, o, t))  # type: ignore[misc]

    def _append_one(self, put: Put) -> tuple[Exception | None, int, int]:
        try:
            record = self._cluster.append(put)
        except PoisonRecord as error:
            return InvalidInput("record", str(error)), -1, -1
        except Exception as error:  # noqa: BLE001 - a delivery report carries the error, whatever it is
            return error, -1, -1
        return None, record.offset(), record.timestamp()[1]

    def poll(self, timeout_ms: int) -> None:
        self._send()
        while self._reports:
            self._reports.popleft()()

    def flush(self, timeout_ms: int) -> None:
        self.poll(timeout_ms)
        if self._queue:
            raise StoreUnreachable(f"{len(self._queue)} records are not durable")

    def close(self) -> None:
        self.poll(0)


class MemoryReader:
    """`Reader` in memory."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def _log(self, topic: str, partition: int) -> MemoryPartition:
        if not self._cluster.reachable:
            raise StoreUnreachable("no broker can be reached")
        return self._cluster.partition(topic, partition)

    def read(
        self, topic: str, partition: int, start: int | None = None, since_ms: int | None = None
    ) -> Iterator[Record]:
        log = self._log(topic, partition)
        end = log.last_stable
        first = max(start or 0, log.start)
        if since_ms is not None:
            young = (e.offset() for e in log.entries if e is not None and e.timestamp()[1] >= since_ms)
            first = max(first, next(young, end))
        records, _ = log.read(first, end, stop=end)
        return iter(records)

    def tail(self, topic: str, partition: int, start: int, limit: int) -> Sequence[MemoryRecord]:
        log = self._log(topic, partition)
        return log.read(max(start, log.start), limit)[0]

    def decided(self, topic: str, partition: int, timeout_ms: int) -> None:
        """Nothing is appended here while somebody waits."""

    def leave(self, topic: str, partition: int) -> None:
        """Nothing is kept for a tail."""

    def partitions(self, topic: str) -> int:
        if not self._cluster.reachable:
            raise StoreUnreachable("no broker can be reached")
        return self._cluster.partitions(topic)

    def close(self) -> None:
        return
