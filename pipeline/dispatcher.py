"""How one process multiplexes its partitions of `jobs`: poll and fold → take over → choose → commit → apply.

The order of a step is the protocol (DESIGN §5.3). One thread owns the log, the index and everything here;
`step` does a bounded amount of work and answers when it wants to be called again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.core.errors import OutcomeUnknown, PoisonRecord, RebuildPartition, RetryStep, StopPartition
from pipeline.core.identity import Identity
from pipeline.core.job import Heartbeat, Owned, Takeover
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.heartbeat import REPORT_MS, Pulse
from pipeline.partition import Emission, Partition
from pipeline.ports import (
    Clock,
    CommittedOffset,
    Entry,
    Events,
    GroupLog,
    Index,
    Membership,
    Put,
    Random,
    RebalanceListener,
    Record,
)

POLL_LIMIT = 5_000
BATCH_LIMIT = 4_000
"""Jobs of one transaction at most: it is held open for tens of milliseconds, and readers wait behind it."""
BATCH_BYTES = 8 * 1024 * 1024
"""And this many bytes: a transaction that a slow link cannot take within its time would be tried for ever."""
IDLE_MS = 250
"""Longest wait of a step: rebalances and heartbeats are served in it."""
UNDECIDED_MS = 1_000
"""A takeover record not back after this long waits behind somebody's open transaction."""


class Dispatcher:
    """The owner of some partitions of `jobs`. Implements `ports.RebalanceListener` for its own log."""

    def __init__(
        self,
        *,
        open_log: Callable[[RebalanceListener], GroupLog],
        index: Index,
        site: Site,
        clock: Clock,
        random: Random,
        identity: Identity,
        pulse: Pulse,
        events: Events,
    ) -> None:
        self._index = index
        self._site = site
        self._clock = clock
        self._random = random
        self._identity = identity
        self._pulse = pulse
        self._events = events
        self._partitions: dict[int, Partition] = {}
        self._limit = BATCH_LIMIT
        self._turn = 0
        self._generation = 0
        self._log = open_log(self)

    # -- rebalance: called inside poll, on this thread ------------------------------------------------------

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        now = self._clock.now()
        starts = {}
        for number in partitions:
            self._partitions[number] = Partition(number, site=self._site, index=self._index)
            starts[number] = self._partitions[number].open(now)
        self._events.on("assigned", partitions=sorted(partitions))
        return starts

    def revoked(self, partitions: Sequence[int]) -> None:
        self._drop(partitions, "revoked")

    def lost(self, partitions: Sequence[int]) -> None:
        self._drop(partitions, "lost")

    def _drop(self, partitions: Sequence[int], action: str) -> None:
        # No batch is ever open here: a transaction begins and ends inside one step, between two polls.
        for number in partitions:
            partition = self._partitions.pop(number, None)
            if partition is not None:
                partition.close()
        self._events.on(action, partitions=sorted(partitions))

    # -- the step -------------------------------------------------------------------------------------------

    def step(self, patience_ms: int = IDLE_MS) -> int:
        """Do what can be done now; wait at most `patience_ms` for news first. Returns the ms to wait next."""
        records = self._poll(patience_ms)
        self._pulse.take_report()
        self._ingest(records)
        self._take_over()
        self._fence_undecided()
        fired = self._emit_due()
        self._beat()
        return 0 if fired else self._wait()

    def _poll(self, patience_ms: int) -> Sequence[Record]:
        try:
            return self._log.poll(POLL_LIMIT, patience_ms)
        except RebuildPartition as rebuild:
            self._events.on("index_rebuild", partition=rebuild.partition, reason=str(rebuild))
            partition = self._partitions.get(rebuild.partition)
            if partition is not None:
                self._log.start(partition.number, partition.rebuild())
            return []

    def _ingest(self, records: Sequence[Record]) -> None:
        by_partition: dict[int, list[Record]] = {}
        for record in records:
            by_partition.setdefault(record.partition() or 0, []).append(record)
        positions = self._log.positions()
        now = self._clock.now()
        restoring = [p for p in self._partitions.values() if p.state is PartitionState.RESTORING]
        for number, partition in self._partitions.items():
            news = by_partition.get(number, [])
            position = positions.get(number, 0)
            if partition.state is not PartitionState.CLOSED and (news or position > partition.next_offset):
                self._fold(partition, news, position, now)
        running = [p.number for p in restoring if p.state is PartitionState.RUNNING]
        if running:
            self._events.on("running", partitions=running)

    def _fold(self, partition: Partition, news: Sequence[Record], position: int, now: int) -> None:
        try:
            partition.ingest(news, position, now)
        except StopPartition as stop:
            partition.close()
            self._log.pause([partition.number])
            self._events.on("partition_stopped", partition=partition.number, reason=str(stop))

    def _take_over(self) -> None:
        """Write the takeover records of all newly assigned partitions in one fenced transaction (DESIGN §5.2)."""
        # A partition without a position is not read: its index may be about to turn out to be of another log,
        # and a record appended below that position would never come back.
        read = self._log.positions()
        new = [
            p for p in self._partitions.values() if p.state is PartitionState.ASSIGNED and p.number in read
        ]
        if not new:
            return
        try:
            membership = self._log.membership()
            puts = [p.takeover(self._takeover_record(membership)) for p in new]
            self._commit(puts, new, membership)
        except RetryStep as retry:
            self._events.on("takeover_refused", partitions=[p.number for p in new], reason=str(retry))
        except OutcomeUnknown as unknown:
            self._events.on("outcome_unknown", partitions=[p.number for p in new], reason=str(unknown))
        else:
            for partition in new:
                partition.asked(self._clock.monotonic())

    def _takeover_record(self, membership: Membership) -> Takeover:
        return Takeover(
            process=self._identity.process,
            transactional_ids=self._log.transactional_ids,
            generation=membership.generation,
            nonce=f"{self._random.getrandbits(96):024x}",
            at=self._clock.now(),
        )

    def _fence_undecided(self) -> None:
        """Once per takeover: end the transactions of earlier owners that keep our record from coming back."""
        for partition in self._partitions.values():
            if partition.state is not PartitionState.RESTORING or partition.fenced_earlier:
                continue
            if self._clock.monotonic() - partition.asked_at < UNDECIDED_MS:
                continue
            partition.fenced_earlier = True
            for transactional_id in partition.earlier_ids():
                if transactional_id not in self._log.transactional_ids:
                    self._events.on("fencing", partition=partition.number, transactional_id=transactional_id)
                    self._log.fence(transactional_id)

    def _emit_due(self) -> int:
        """Choose, commit, apply. Returns the number of entries settled."""
        chosen = self._choose()
        if not chosen:
            return 0
        try:
            # Ownership and metadata are taken together, now; nothing polls before the commit (H2).
            membership = self._log.membership()
            chosen = [(p, entries) for p, entries in chosen if p.number in membership.owned]
            now = self._clock.now()
            emissions = [(p, p.emit(entries, now)) for p, entries in chosen]
            puts = [put for _, emission in emissions for put in emission.puts]
            if not puts:
                return 0
            self._commit(puts, [p for p, _ in emissions], membership)
        except RetryStep as retry:
            # A smaller batch next time: this one may have been too much for its time-out.
            self._limit = max(1, sum(len(entries) for _, entries in chosen) // 2)
            self._events.on("step_refused", reason=str(retry))
            return 0
        except PoisonRecord as poison:
            return self._bisect(chosen, poison)
        except OutcomeUnknown as unknown:
            for partition, _ in chosen:
                partition.take_over_anew()
            self._events.on("outcome_unknown", partitions=[p.number for p, _ in chosen], reason=str(unknown))
            return 0
        return self._settled(emissions)

    def _choose(self) -> list[tuple[Partition, list[Entry]]]:
        running = [p for p in self._partitions.values() if p.state is PartitionState.RUNNING]
        running = (
            running[self._turn % len(running) :] + running[: self._turn % len(running)] if running else []
        )
        self._turn += 1  # another one first each time: a full one must not starve the others
        now, left, room = self._clock.now(), self._limit, BATCH_BYTES
        chosen = []
        for i, partition in enumerate(running):
            if left <= 0 or room <= 0:
                break
            entries = partition.due(now, max(1, left // (len(running) - i)), room)
            if entries:
                chosen.append((partition, entries))
                left -= len(entries)
                room -= sum(len(entry.value) for entry in entries)
        return chosen

    def _commit(self, puts: Sequence[Put], touched: Sequence[Partition], membership: Membership) -> None:
        """Every touched partition sends a real offset: that is what fences a stale owner (H4)."""
        self._log.commit(puts, {p.number: CommittedOffset(p.next_offset) for p in touched}, membership)

    def _bisect(self, chosen: list[tuple[Partition, list[Entry]]], poison: PoisonRecord) -> int:
        """Some record can never be appended. Halve the batch until it stands alone, then bury it (DESIGN §5.8)."""
        size = sum(len(entries) for _, entries in chosen)
        if size > 1:
            self._limit = max(1, size // 2)
            return size
        (partition, (entry,)) = chosen[0]
        self._events.on("condemned", partition=partition.number, offset=entry.offset, reason=str(poison))
        self._bury(partition, partition.condemn(entry, f"unappendable: {poison}"))
        return 1

    def _bury(self, partition: Partition, entry: Entry) -> None:
        emission = partition.emit([entry], self._clock.now())
        try:
            self._commit(emission.puts, [partition], self._log.membership())
        except (RetryStep, OutcomeUnknown) as interrupted:
            partition.take_over_anew()
            self._events.on("step_refused", reason=str(interrupted))
        else:
            self._settled([(partition, emission)])

    def _settled(self, emissions: Sequence[tuple[Partition, Emission]]) -> int:
        settled = 0
        for partition, emission in emissions:
            partition.applied(emission)
            settled += len(emission.delta.entries)
        self._limit = min(BATCH_LIMIT, self._limit * 2)
        self._events.on(
            "emitted", fired=sum(e.fired for _, e in emissions), dead=sum(e.dead for _, e in emissions)
        )
        return settled

    # -- waiting and telling --------------------------------------------------------------------------------

    def _wait(self) -> int:
        return min(self._until_due(), REPORT_MS) if self._pulse.waiting else self._until_due()

    def _until_due(self) -> int:
        if any(
            p.state in (PartitionState.ASSIGNED, PartitionState.RESTORING) for p in self._partitions.values()
        ):
            return 20
        dues = [due for p in self._partitions.values() if (due := p.next_due()) is not None]
        return max(0, min(IDLE_MS, min(dues) - self._clock.now())) if dues else IDLE_MS

    def _beat(self) -> None:
        monotonic = self._clock.monotonic()
        if not self._pulse.due(monotonic):
            return
        try:
            self._generation = self._log.membership().generation
        except RetryStep:
            self._generation = 0
        self._pulse.beat(self.heartbeat(), monotonic)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            process=self._identity.process,
            role="dispatcher",
            version=self._identity.version,
            host=self._identity.host,
            pid=self._identity.pid,
            started_at=self._identity.started_at,
            generation=self._generation,
            owned=tuple(
                Owned(topic=self._site.names.jobs, partition=p.number, state=p.state.name.lower())
                for p in self._partitions.values()
            ),
            transactional_ids=self._log.transactional_ids,
        )

    @property
    def states(self) -> dict[int, PartitionState]:
        """Partitions owned and where they stand."""
        return {number: p.state for number, p in self._partitions.items()}

    def close(self) -> None:
        """Leave politely: the group moves the partitions at once."""
        self._pulse.leave()
        self._log.close()
