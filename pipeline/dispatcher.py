"""How one process multiplexes its partitions of `jobs`: poll and fold → take over → choose → commit → apply.

The order of a step is the protocol (DESIGN §5.3). One thread owns the log, the index and everything here;
`step` does a bounded amount of work and answers when it wants to be called again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pipeline.choice import THROTTLED_MS, Choice, Chosen, halves
from pipeline.core.errors import (
    OutcomeUnknown,
    OwnerError,
    PoisonRecord,
    RebuildPartition,
    Refused,
    RetryStep,
    StopPartition,
    StoreUnreachable,
)
from pipeline.core.identity import Identity
from pipeline.core.job import EARLIEST, LATEST, GroupGuard, Heartbeat, Owned, Takeover
from pipeline.core.rates import Rates
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.emission import Emission
from pipeline.fencing import Fencing
from pipeline.firing import condemn
from pipeline.guard import check_guards, guard_puts
from pipeline.heartbeat import Pulse, Seen
from pipeline.hold import Gate
from pipeline.partition import Partition
from pipeline.portion import weight
from pipeline.ports import (
    Action,
    Clock,
    CommittedOffset,
    Events,
    GroupLog,
    Index,
    Membership,
    Put,
    Random,
    RebalanceListener,
    Record,
)

POLL_LIMIT, LEAST_POLL = 20_000, 1_000
"""Records folded in a step at most. Fewer while that takes long and jobs wait to be fired meanwhile."""
FOLD_MS = 50
OVERDUE_LIMIT = 2_000
"""Overdue entries are counted up to this, once a second: counting a whole backlog would slow its draining."""
IDLE_MS = 250
"""Longest wait of a step: rebalances and heartbeats are served in it."""


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
        rates: Rates | None = None,
        fleet: Callable[[int], Sequence[Seen]] = lambda since: (),
        session_ms: int = 3_000,
        checkpoint: Callable[[str], None] = lambda step: None,
    ) -> None:
        self._index = index
        self._site = site
        self._clock = clock
        self._random = random
        self._identity = identity
        self._pulse = pulse
        self._events = events
        self._at = checkpoint
        self._partitions: dict[int, Partition] = {}
        self._choice = Choice(rates)
        self._gate = Gate(site, events)
        self._generation = 0
        self._poll_limit = POLL_LIMIT
        self._complain_at = 0
        self._log = open_log(self)
        self._fencing = Fencing(self._log, fleet, session_ms, clock, events)

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
        self._at("polled")
        self._pulse.take_report()
        self._ingest_in_time(records)
        self._at("ingested")
        self._take_over()
        self._fencing.undecided(self._partitions.values())
        fired = self._emit_due()
        self._beat()
        return 0 if fired else self._wait()

    def _poll(self, patience_ms: int) -> Sequence[Record]:
        try:
            return self._log.poll(self._poll_limit, patience_ms)
        except RebuildPartition as rebuild:
            self._events.on("index_rebuild", partition=rebuild.partition, reason=str(rebuild))
            partition = self._partitions.get(rebuild.partition)
            if partition is not None:
                self._log.start(partition.number, partition.rebuild())
            return []

    def _ingest_in_time(self, records: Sequence[Record]) -> None:
        started = self._clock.monotonic()
        self._ingest(records)
        slow = self._clock.monotonic() - started > FOLD_MS
        if slow and any(p.state is PartitionState.RUNNING for p in self._partitions.values()):
            self._poll_limit = max(LEAST_POLL, self._poll_limit // 2)
        else:
            self._poll_limit = min(POLL_LIMIT, self._poll_limit * 2)

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
            if partition.state is PartitionState.CLOSED:
                continue
            if news or position > partition.next_offset or partition.quiet(now):
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
            guards = self._site.read_guards() if self._site.read_guards is not None else None
            puts = [p.takeover(self._takeover_record(membership)) for p in new]
            if guards is not None:
                puts += self._guarded(guards, new, membership)
            self._at("takeover_chosen")
            self._commit(puts, new, membership)
            self._at("takeover_committed")
            self._gate.look(self._clock.monotonic())
        except (RetryStep, StoreUnreachable) as retry:
            if (
                self._clock.monotonic() >= self._complain_at
            ):  # it is tried again at once, for as long as it takes
                self._complain_at = self._clock.monotonic() + 1_000
                self._events.on("takeover_refused", partitions=[p.number for p in new], reason=str(retry))
        except OutcomeUnknown as unknown:
            self._events.on("outcome_unknown", partitions=[p.number for p in new], reason=str(unknown))
        else:
            for partition in new:
                partition.asked(self._clock.monotonic())

    def _guarded(
        self, guards: Mapping[int, GroupGuard], new: Sequence[Partition], membership: Membership
    ) -> list[Put]:
        """The guards to write with the takeover of these partitions (H20). Refused, which ends the process."""
        names, topic_id = self._site.names, self._site.topic_id
        group, numbers, generation = names.dispatcher_group, [p.number for p in new], membership.generation
        try:
            check_guards(guards, group=group, partitions=numbers, generation=generation, topic_id=topic_id)
        except Refused:
            # A member that was cut off and has not been told yet has a lower generation too. The coordinator
            # knows: it refuses the offsets of that one (RetryStep), and takes them of a group that began anew.
            self._commit([], new, membership)
            raise
        return guard_puts(names, group=group, partitions=numbers, generation=generation, topic_id=topic_id)

    def _takeover_record(self, membership: Membership) -> Takeover:
        return Takeover(
            process=self._identity.process,
            transactional_ids=self._log.transactional_ids,
            generation=membership.generation,
            nonce=f"{self._random.getrandbits(96):024x}",
            at=self._clock.now(),
        )

    def _emit_due(self) -> int:
        """Choose, commit, apply. Returns the number of entries settled."""
        if self._gate.held(self._clock.monotonic()):
            return 0
        chosen = self._choose()
        if not chosen:
            return 0
        self._at("chosen")
        size = sum(weight(entries) for _, entries in chosen)
        try:
            return self._settle(chosen)
        except RetryStep as retry:
            self._choice.refused(size)
            self._events.on("step_refused", reason=str(retry))
        except OutcomeUnknown as unknown:
            for partition, _ in chosen:
                partition.take_over_anew()
            self._events.on("outcome_unknown", partitions=[p.number for p, _ in chosen], reason=str(unknown))
        return 0

    def _settle(self, chosen: Chosen) -> int:
        """One transaction; if the log will not have one of its records, two of half the size, and so on until that
        record stands alone: it ends as dead (DESIGN §5.8)."""
        started = self._clock.monotonic()
        # Ownership and metadata are taken together, now; nothing polls before the commit (H2).
        membership = self._log.membership()
        chosen = [(p, entries) for p, entries in chosen if entries and p.number in membership.owned]
        now = self._clock.now()
        size, jobs = (sum(of(entries) for _, entries in chosen) for of in (len, weight))
        emissions = [(p, p.emit(entries, now)) for p, entries in chosen]
        puts = [put for _, emission in emissions for put in emission.puts]
        if not puts:
            return 0
        self._at("snapshot")
        try:
            self._commit(puts, [p for p, _ in emissions], membership, jobs)
        except PoisonRecord as poison:
            return self._bisect(chosen, size, poison)
        self._choice.took(jobs, self._clock.monotonic() - started, now)
        return self._settled(emissions)

    def _bisect(self, chosen: Chosen, size: int, poison: PoisonRecord) -> int:
        if size > 1:
            # What the first half did may have changed or ended what stands in the second.
            return sum(
                self._settle([(p, p.still(entries)) for p, entries in half])
                for half in halves(chosen, size // 2)
            )
        (partition, (entry,)) = chosen[0]
        if entry.action == Action.DEAD:  # not even its dead letter is taken: nothing else may wait for it
            self._events.on("unburied", partition=partition.number, offset=entry.offset, reason=str(poison))
            partition.postpone([entry._replace(fire_at=LATEST)])
            return 0
        self._events.on("condemned", partition=partition.number, offset=entry.offset, reason=str(poison))
        return self._settle([(partition, [condemn(entry, f"unappendable: {poison}")])])

    def _choose(self) -> Chosen:
        running = [p for p in self._partitions.values() if p.state is PartitionState.RUNNING]
        share = len(running) / self._site.layout.partitions
        return self._choice.next(running, self._clock.now(), share)

    def _commit(
        self, puts: Sequence[Put], touched: Sequence[Partition], membership: Membership, jobs: int = 0
    ) -> None:
        """Every touched partition sends a real offset: that is what fences a stale owner (H4)."""
        started, outcome = self._clock.monotonic(), "committed"
        try:
            self._log.commit(puts, {p.number: CommittedOffset(p.next_offset) for p in touched}, membership)
        except OwnerError as error:
            outcome = error.outcome
            raise
        finally:
            took = self._clock.monotonic() - started
            self._events.on("transaction", outcome=outcome, duration_ms=took, jobs=jobs)

    def _settled(self, emissions: Sequence[tuple[Partition, Emission]]) -> int:
        settled = 0
        for partition, emission in emissions:
            partition.applied(emission)
            settled += len(emission.view.delta.entries)
        self._at("applied")
        answered = [answer for _, emission in emissions for answer in emission.answered]
        self._events.on(
            "emitted",
            fired=sum(e.fired for _, e in emissions),
            dead=sum(e.dead for _, e in emissions),
            commands=len(answered),
            reasons=dict(Counter(reason for _, emission in emissions for reason in emission.reasons)),
            skipped=dict(sum((emission.skipped for _, emission in emissions), Counter())),
        )
        for answer, waited in answered:
            verb = answer.detail.get("verb")
            self._events.on("answered", verb=verb, outcome=answer.outcome, waited_ms=waited)
        return settled

    # -- waiting and telling --------------------------------------------------------------------------------

    def _wait(self) -> int:
        if any(
            p.state in (PartitionState.ASSIGNED, PartitionState.RESTORING) for p in self._partitions.values()
        ):
            return 20
        if self._gate.closed:
            return IDLE_MS
        if self._choice.throttled:
            return THROTTLED_MS
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
        self._tell_gauges()

    def _tell_gauges(self) -> None:
        now, mine = self._clock.now(), self._partitions.values()
        dues = [due for p in mine if (due := p.next_due()) is not None and due > EARLIEST]
        self._events.on(
            "gauges",
            pending=sum(p.size for p in mine),
            overdue=self._overdue(now),
            oldest_overdue_ms=max(0, now - min(dues)) if dues else 0,
            schedule_overdue_ms=max((p.schedule_overdue(now, OVERDUE_LIMIT) for p in mine), default=0),
            states=dict(Counter(p.state.name.lower() for p in mine)),
            generation=self._generation,
            index_bytes=self._index.footprint(),
        )

    def _overdue(self, now: int) -> int:
        found = 0
        for partition in self._partitions.values():
            found += partition.overdue(now, OVERDUE_LIMIT - found)
        return found

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
