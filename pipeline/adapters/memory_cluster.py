"""A Kafka cluster in memory, as far as the protocol depends on one: for simulation and fast tests.

Modelled because a double or a loss hangs on it: offsets that transaction markers take too, the last stable
offset, producer epochs, the coordinator's check of member and generation and of nothing else (F1-F4 of the
protocol notes), pending group offsets, cooperative rebalances in two generations. Not modelled: replication,
time-outs (call `expire` or `time_out`), batching. It makes no correctness claim of its own: it passes the
conformance suite of the real adapters (DESIGN §10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from pipeline.core.errors import NotFound, PoisonRecord, RebuildClients, RetryStep
from pipeline.ports import CommittedOffset, Headers, Put

LOG_APPEND_TIME = 2
"""Kind of a record's timestamp, as in the Kafka clients."""
MESSAGE_LIMIT = 2 * 1024 * 1024
"""Largest record in bytes, as configured on the topics (DESIGN §3)."""


class Outcome(Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Transaction:
    """What one transaction did: the first offset on each partition it touched, and offsets by group."""

    __slots__ = ("first", "offsets", "outcome", "records")

    def __init__(self) -> None:
        self.outcome = Outcome.OPEN
        self.records: list[MemoryRecord] = []
        self.first: dict[MemoryPartition, int] = {}
        self.offsets: dict[MemoryGroup, dict[int, CommittedOffset]] = {}


class MemoryRecord:
    """A record with the methods of the real client's messages; a tombstone is falsy, as there."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_time", "_topic", "_value", "transaction")

    def __init__(self, put: Put, offset: int, time: int, transaction: Transaction | None) -> None:
        self._topic, self._partition, self._key, self._value = put.topic, put.partition, put.key, put.value
        self._headers: Headers | None = list(put.headers) if put.headers else None
        self._offset, self._time, self.transaction = offset, time, transaction

    def __len__(self) -> int:
        return len(self._value or b"")

    @property
    def committed(self) -> bool:
        return self.transaction is None or self.transaction.outcome is Outcome.COMMITTED

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int:
        return 0

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Headers | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return LOG_APPEND_TIME, self._time


class MemoryPartition:
    """One partition's log. An entry None is a transaction marker or what compaction left: nothing is
    delivered for it, but its offset is passed."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[MemoryRecord | None] = []
        self.open: set[Transaction] = set()
        self._horizons: dict[int, int] = {}
        """By offset of a tombstone: from when on the cleaner removes it (F8)."""

    @property
    def end(self) -> int:
        return len(self.entries)

    @property
    def last_stable(self) -> int:
        """Where a read_committed reader has to stop: the first record of the oldest open transaction (F6)."""
        return min((transaction.first[self] for transaction in self.open), default=self.end)

    def append(self, put: Put, time: int, transaction: Transaction | None) -> MemoryRecord:
        record = MemoryRecord(put, self.end, time, transaction)
        if transaction is not None:
            transaction.records.append(record)
            transaction.first.setdefault(self, self.end)
            self.open.add(transaction)
        self.entries.append(record)
        return record

    def mark(self, transaction: Transaction) -> None:
        """Append the marker that makes the transaction's end visible here."""
        self.open.discard(transaction)
        self.entries.append(None)

    def read(self, offset: int, limit: int, stop: int | None = None) -> tuple[list[MemoryRecord], int]:
        """Up to `limit` committed records from `offset`, and the offset to go on from."""
        records: list[MemoryRecord] = []
        stop = self.last_stable if stop is None else min(stop, self.last_stable)
        while offset < stop and len(records) < limit:
            record = self.entries[offset]
            offset += 1
            if record is not None and record.committed:
                records.append(record)
        return records, offset

    def compact(self, *, before: int | None = None, drop_tombstones: bool = False) -> None:
        """Keep the last record of each key below the last stable offset, as the cleaner would (F8); `before`
        is where min.compaction.lag ends: what was appended later is neither cleaned nor looked at."""
        self._clean(before, lambda _: drop_tombstones)

    def clean(self, now: int, *, lag_ms: int, retention_ms: int) -> None:
        """One pass of the cleaner: as `compact`, and a tombstone goes `retention_ms` (delete.retention) after the
        first pass that met it (F8)."""

        def expired(tombstone: MemoryRecord) -> bool:
            return now >= self._horizons.setdefault(tombstone.offset(), now + retention_ms)

        self._clean(now - lag_ms, expired)

    def _clean(self, before: int | None, expired: Callable[[MemoryRecord], bool]) -> None:
        seen: set[bytes] = set()
        for offset in range(self._cleanable(before) - 1, -1, -1):
            record = self.entries[offset]
            if record is None or not record.committed:
                continue
            if record.key() in seen or (record.value() is None and expired(record)):
                self.entries[offset] = None
                self._horizons.pop(offset, None)
            seen.add(record.key())

    def _cleanable(self, before: int | None) -> int:
        young = (
            e.offset()
            for e in self.entries
            if e is not None and before is not None and e.timestamp()[1] >= before
        )
        return min(self.last_stable, next(young, self.end))


class MemoryGroup:
    """The coordinator of one consumer group: cooperative, balanced, sticky.

    A partition that has to move is first taken from its holder (at the holder's next poll) and given to the
    new one in the next generation, as with cooperative-sticky.
    """

    def __init__(self, partitions: int) -> None:
        self.generation = 0
        self.partitions = partitions
        self.members: dict[str, set[int]] = {}
        self.target: dict[int, str] = {}
        self.committed: dict[int, CommittedOffset] = {}
        self.pending: dict[int, set[Transaction]] = {}
        self._joined = 0

    def join(self) -> str:
        self._joined += 1
        member = f"member-{self._joined}"
        self.members[member] = set()
        self._rebalance()
        return member

    def leave(self, member: str) -> None:
        """The member left, or its session expired: what it held is given to the others at once."""
        if self.members.pop(member, None) is not None:
            self._rebalance()

    def unwanted(self, member: str) -> set[int]:
        """What the member has to give up at its next poll."""
        return {p for p in self.members[member] if self.target[p] != member}

    def give_up(self, member: str, partitions: Iterable[int]) -> None:
        """Unless its session ran out while it was told: then it has nothing left."""
        if member in self.members:
            self.members[member].difference_update(partitions)
            self._rebalance()

    def check(self, member: str, generation: int) -> None:
        """What TxnOffsetCommit checks, and all that it checks: not who owns the partitions (F3), and an old
        client's empty member is let through (F4)."""
        if member == "" and generation < 0:
            return
        if member not in self.members or generation != self.generation:
            raise RetryStep(f"generation {generation} of {member!r} is stale")

    def _rebalance(self) -> None:
        self.generation += 1
        self.target = {}
        if not self.members:
            return
        keep = dict(self._kept())
        share, larger = divmod(self.partitions, len(self.members))
        room = {m: share + (i < larger) - len(keep[m]) for i, m in enumerate(self._by_size())}
        free = sorted(set(range(self.partitions)).difference(*keep.values()))
        for member, kept in keep.items():
            self.target.update(dict.fromkeys(kept, member))
        held = {p for granted in self.members.values() for p in granted}
        for partition in free:
            member = next(m for m in self.members if room[m] > 0)
            room[member] -= 1
            self.target[partition] = member
            if partition not in held:
                self.members[member].add(partition)

    def _by_size(self) -> list[str]:
        return sorted(self.members, key=lambda m: -len(self.members[m]))

    def _kept(self) -> Iterator[tuple[str, list[int]]]:
        share, larger = divmod(self.partitions, len(self.members))
        for i, member in enumerate(self._by_size()):
            yield member, sorted(self.members[member])[: share + (i < larger)]


class MemoryCluster:
    """Topics, groups and transactional ids. `time` gives the LogAppendTime.

    Faults: `reachable = False`; `expire` a member; `time_out` a transactional id; `hook(stage, id)`, called
    by a group log's commit at "append", "offsets" and "commit" (before each) and at "committed": it may run the
    other processes while this one counts as frozen, raise what ends this one, or change anything here.
    `saw(records)` is told what has become readable for good, in the order of the commits.
    """

    def __init__(self, time: Callable[[], int]) -> None:
        self.time = time
        self.reachable = True
        self.hook: Callable[[str, str], None] = lambda stage, transactional_id: None
        self.saw: Callable[[Sequence[MemoryRecord]], None] = lambda records: None
        self._topics: dict[str, list[MemoryPartition]] = {}
        self._groups: dict[str, MemoryGroup] = {}
        self._epochs: dict[str, int] = {}
        self._current: dict[str, Transaction] = {}

    def create_topic(self, topic: str, partitions: int) -> None:
        self._topics.setdefault(topic, [MemoryPartition() for _ in range(partitions)])

    def partitions(self, topic: str) -> int:
        return len(self._topics.get(topic, ()))

    def partition(self, topic: str, partition: int) -> MemoryPartition:
        """NotFound if there is none."""
        partitions = self._topics.get(topic, [])
        if not 0 <= partition < len(partitions):
            raise NotFound(f"{topic}/{partition} does not exist")
        return partitions[partition]

    def group(self, group: str, topic: str) -> MemoryGroup:
        return self._groups.setdefault(group, MemoryGroup(self.partitions(topic)))

    def append(self, put: Put, transaction: Transaction | None = None) -> MemoryRecord:
        """NotFound for an unknown place, PoisonRecord for a record over the limit."""
        if len(put.key) + len(put.value or b"") > MESSAGE_LIMIT:
            raise PoisonRecord(f"record of {put.topic}/{put.partition} is over {MESSAGE_LIMIT} bytes")
        record = self.partition(put.topic, put.partition).append(put, self.time(), transaction)
        if transaction is None:
            self.saw((record,))
        return record

    # -- transactions: every call names the id and the epoch its producer got ------------------------------

    def init_transactions(self, transactional_id: str) -> int:
        """A new epoch for the id; what an older producer has open is aborted, and that producer is fenced."""
        self.time_out(transactional_id)
        return self._epochs[transactional_id]

    def time_out(self, transactional_id: str) -> None:
        """The coordinator ends an overdue transaction: aborted, epoch raised."""
        self._end(self._current.pop(transactional_id, None), Outcome.ABORTED)
        self._epochs[transactional_id] = self._epochs.get(transactional_id, -1) + 1

    def begin(self, transactional_id: str, epoch: int) -> Transaction:
        self._check_epoch(transactional_id, epoch)
        transaction = self._current[transactional_id] = Transaction()
        return transaction

    def transactional_append(self, transactional_id: str, epoch: int, put: Put) -> None:
        """PoisonRecord also for an unknown place: no delivery will ever succeed."""
        self._check_epoch(transactional_id, epoch)
        try:
            self.append(put, self._current[transactional_id])
        except NotFound as error:
            raise PoisonRecord(str(error)) from error

    def send_offsets(
        self,
        transactional_id: str,
        epoch: int,
        group: MemoryGroup,
        offsets: dict[int, CommittedOffset],
        identity: tuple[str, int],
    ) -> None:
        """TxnOffsetCommit. RetryStep if (member, generation) `identity` is stale."""
        self._check_epoch(transactional_id, epoch)
        group.check(*identity)
        transaction = self._current[transactional_id]
        transaction.offsets.setdefault(group, {}).update(offsets)
        for partition in offsets:
            group.pending.setdefault(partition, set()).add(transaction)

    def end(self, transactional_id: str, epoch: int, outcome: Outcome) -> None:
        """EndTxn: nothing but the epoch is checked any more (F2)."""
        self._check_epoch(transactional_id, epoch)
        self._end(self._current.pop(transactional_id, None), outcome)

    def _check_epoch(self, transactional_id: str, epoch: int) -> None:
        if self._epochs[transactional_id] != epoch:
            raise RebuildClients(f"{transactional_id} is fenced")

    def _end(self, transaction: Transaction | None, outcome: Outcome) -> None:
        if transaction is None:
            return
        transaction.outcome = outcome
        for partition in transaction.first:
            partition.mark(transaction)
        for group, offsets in transaction.offsets.items():
            for partition_number, offset in offsets.items():
                group.pending[partition_number].discard(transaction)
                if outcome is Outcome.COMMITTED:
                    group.committed[partition_number] = offset
        if outcome is Outcome.COMMITTED:
            self.saw(transaction.records)
