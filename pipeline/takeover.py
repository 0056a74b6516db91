"""How a worker comes to own its partitions: the group's stable offsets, what an earlier owner started, and nobody's
open transaction in the way (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline.core.acks import AckTracker
from pipeline.core.errors import OutcomeUnknown, Refused, RetryStep, StopPartition, StoreUnreachable
from pipeline.core.identity import Identity
from pipeline.core.job import GroupGuard, Heartbeat, Takeover
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.heartbeat import read_fleet
from pipeline.lane import Lane
from pipeline.ports import Appender, Clock, CommittedOffset, Events, GroupLog, Membership, Random, Reader

ASK_MS = 250
"""How long one question for stable offsets may hold up the loop; it is asked again in the next step."""
STUCK_MS = 1_000
"""A takeover that takes longer than this waits behind an open transaction of somebody who may be gone."""
RECENT_MS = 60_000
"""How far back heartbeats are looked at, to find who held a partition before."""
ACKS_LIMIT = 2_000
"""Records read from an acks partition at a time."""


class LaneTakeover:
    """Takes lanes from ASSIGNED to RUNNING, a bounded piece at each `advance`. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        log: GroupLog,
        appender: Appender,
        reader: Reader,
        desk: Desk,
        clock: Clock,
        random: Random,
        identity: Identity,
        events: Events,
        heartbeat_timeout_ms: int,
        guards: WorkGuards | None,
        appended: Callable[[Exception | None, int, int], None],
    ) -> None:
        """`appended` is told how the takeover records fared."""
        self._log = log
        self._appender = appender
        self._reader = reader
        self._desk = desk
        self._clock = clock
        self._random = random
        self._identity = identity
        self._events = events
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._guards = guards
        self._appended = appended
        self._fenced: set[str] = set()
        self._look_again_at = 0
        self.generation = 0
        """Of the group, when a partition was last opened: part of the tokens of what starts from then on."""

    def advance(self, lanes: Iterable[Lane]) -> None:
        """Whatever can be done now for those of `lanes` that do not run yet."""
        lanes = [lane for lane in lanes if lane.state is not PartitionState.CLOSED]
        self._open_lanes([lane for lane in lanes if lane.state is PartitionState.ASSIGNED])
        restoring = [lane for lane in lanes if lane.state is PartitionState.RESTORING]
        running = [lane.number for lane in restoring if self._restore(lane)]
        if running:
            self._events.on("running", queue=self._desk.queue, partitions=running)
        waiting = (PartitionState.ASSIGNED, PartitionState.RESTORING)
        self._fence_stale([lane for lane in lanes if lane.state in waiting])

    def covered(self, lane: Lane) -> AckTracker | None:
        """After an unknown outcome: what the group's stable offset covers of `lane`; None = not stable yet."""
        committed = self._log.committed([lane.number], ASK_MS)
        if lane.number not in committed:
            return None
        try:
            return AckTracker.from_committed(*(committed[lane.number] or CommittedOffset(0)))
        except StopPartition as stop:
            self._stop(lane, stop)
            return None

    def _stop(self, lane: Lane, stop: StopPartition) -> None:
        """The worker's other partitions go on; this one stays closed until it is assigned anew."""
        lane.close()
        self._events.on("partition_stopped", queue=self._desk.queue, partition=lane.number, reason=str(stop))

    def _open_lanes(self, lanes: Sequence[Lane]) -> None:
        if not lanes:
            return
        try:
            membership = self._log.membership()
            # Before the offsets are asked for: what has a guard by now has an offset then (H20).
            guards = {} if self._guards is None else self._guards.read()
            committed = self._log.committed([lane.number for lane in lanes], ASK_MS)
            self._check_group(guards, committed, membership)
        except (RetryStep, OutcomeUnknown, StoreUnreachable):
            return
        self.generation = membership.generation
        acks = self._desk.names.acks(self._desk.queue)
        for lane in lanes:
            if lane.number in committed:
                self._open(lane, committed[lane.number], acks)

    def _check_group(
        self,
        guards: Mapping[int, GroupGuard],
        committed: Mapping[int, CommittedOffset | None],
        membership: Membership,
    ) -> None:
        """Refused, which ends the process, if the group was lost. RetryStep if it is we who are lost to the group."""
        if self._guards is None or not guards:
            return
        self._guards.check_offsets(guards, [number for number, offset in committed.items() if offset is None])
        try:
            self._guards.check(guards, partitions=committed, generation=membership.generation)
        except Refused:
            # A member that was cut off and has not been told yet has a lower generation too: the coordinator knows.
            known = {number: offset for number, offset in committed.items() if offset is not None}
            if known:
                self._log.commit([], known, membership)
            raise

    def _open(self, lane: Lane, committed: CommittedOffset | None, acks: str) -> None:
        try:
            lane.opened(committed)
        except StopPartition as stop:
            self._stop(lane, stop)
            return
        self._appender.append(lane.takeover(self._takeover_record(), acks), self._appended)

    def _fence_stale(self, lanes: Sequence[Lane]) -> None:
        """End the transactions that a dead holder of these partitions has left open: they keep the group's offsets
        unstable, or our takeover record from coming back, for the transaction time-out. Never those of a process
        that still beats. A holder may turn stale only while we wait, so this looks again every second."""
        monotonic = self._clock.monotonic()
        for lane in lanes:
            lane.stuck_since = lane.stuck_since if lane.stuck_since is not None else monotonic
        stuck = {lane.number for lane in lanes if monotonic - (lane.stuck_since or 0) >= STUCK_MS}
        if not stuck or monotonic < self._look_again_at:
            return
        self._look_again_at = monotonic + STUCK_MS
        now = self._clock.now()
        for seen in read_fleet(self._reader, self._desk.names.fleet, now - RECENT_MS):
            stale = seen.at < now - self._heartbeat_timeout_ms
            if stale and self._held(seen.heartbeat, stuck) and seen.heartbeat.process not in self._fenced:
                self._fence(seen.heartbeat)

    def _held(self, heartbeat: Heartbeat, stuck: set[int]) -> bool:
        work = self._desk.names.work(self._desk.queue)
        return any(owned.topic == work and owned.partition in stuck for owned in heartbeat.owned)

    def _fence(self, stale: Heartbeat) -> None:
        self._fenced.add(stale.process)
        foreign = [id_ for id_ in stale.transactional_ids if id_ not in self._log.transactional_ids]
        if foreign:
            self._events.on("fencing", process=stale.process, transactional_ids=foreign)
            self._log.fence(*foreign)

    def generation_now(self) -> int:
        """The group's generation, also of partitions that were kept through a rebalance; 0: no member of it."""
        try:
            return self._log.membership().generation
        except RetryStep:
            return 0

    def _takeover_record(self) -> Takeover:
        return Takeover(
            process=self._identity.process,
            transactional_ids=self._log.transactional_ids,
            generation=self.generation,
            nonce=f"{self._random.getrandbits(96):024x}",
            at=self._clock.now(),
        )

    def _restore(self, lane: Lane) -> bool:
        """Read on at the acks partition; True once the lane may fetch."""
        acks = self._desk.names.acks(self._desk.queue)
        if not lane.restore(self._reader.tail(acks, lane.number, lane.acks_next, ACKS_LIMIT)):
            return False
        mark = lane.tracker.mark
        self._log.start(lane.number, mark if mark > 0 else -1)
        return True
