"""A worker on one queue: poll → take over → start → handle → one ack transaction → apply (DESIGN §7).

One thread owns consumer, producers and everything here and keeps polling; handlers run in an executor. An
attempt is durable on the acks topic before its handler starts; its outcome, what follows from it (a retry, a
dead letter, what the handler handed on) and the offset commit in one transaction, fenced by the group's generation.
That one may be made aside meanwhile; when what is owned here changes, none is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from pipeline.attempt import Means
from pipeline.beat import worker_heartbeat
from pipeline.calls import Calls
from pipeline.core.admission import Limits, Quotas
from pipeline.core.errors import OwnerError, RebuildClients, RebuildPartition
from pipeline.core.handler import Registry
from pipeline.core.identity import Identity
from pipeline.core.job import Heartbeat
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.heartbeat import Pulse
from pipeline.hooks import DeadHooks
from pipeline.intake import Intake
from pipeline.lane import Flight, Lane
from pipeline.leases import Leases
from pipeline.ledger import AtOnce, Ledger
from pipeline.liveness import Liveness
from pipeline.outbox import Outbox
from pipeline.ports import (
    Aside,
    BatchAppender,
    Clock,
    Events,
    Executor,
    Feed,
    GroupLog,
    Put,
    Random,
    Reader,
    RebalanceListener,
    Record,
)
from pipeline.queues import QueueWatch
from pipeline.starts import Starts
from pipeline.takeover import LaneTakeover

__all__ = ["Limits", "Worker"]

IDLE_MS = 100
BUSY_MS = 2
"""Longest wait for records while handlers run: results are looked for in between."""
LANE_LIMIT = 500
"""Runs waiting in one lane; one that has as many is paused, so memory stays flat."""
POLL_LIMIT = 1_000
"""Records of one poll: as many as one ack transaction ends, which costs some milliseconds however few they are."""
PAYLOAD_LIMIT = 64 * 1024 * 1024
"""Bytes of payload waiting in this process, shared evenly by its lanes: a full one starves no other."""
CONTEST_MS = 1_000
"""How often a partition that somebody else claims is claimed back, until the group says whose it is."""


class Worker:
    """The owner of some partitions of one work topic. Implements `ports.RebalanceListener` for its own log."""

    def __init__(
        self,
        *,
        open_log: Callable[[RebalanceListener], GroupLog],
        open_fleet: Callable[[], Feed],
        appender: BatchAppender,
        reader: Reader,
        executor: Executor,
        registry: Registry,
        means: Means,
        desk: Desk,
        clock: Clock,
        random: Random,
        identity: Identity,
        pulse: Pulse,
        fleet_partitions: int,
        events: Events,
        era: int,
        limits: Limits,
        tickets: Iterator[int],
        airborne: dict[int, Flight],
        outbox: Outbox,
        guards: WorkGuards | None = None,
        announced: Callable[[str], bool] = lambda fingerprint: False,
        aside: Aside = AtOnce,
        queues: QueueWatch | None = None,
    ) -> None:
        """`tickets` number the calls of an executor, `airborne` holds those that run, by ticket, and `outbox` what was
        parted with: they outlive this object when the clients are built anew. `open_fleet` follows the heartbeats of
        others, `aside` makes the ack transactions. `queues` tells which are paused; workers of one thread share it."""
        self._appender = appender
        self._executor = executor
        self._registry = registry
        self._desk = desk
        self._clock = clock
        self._announced = announced
        self._identity = identity
        self._pulse = pulse
        self._events = events
        self._tickets = tickets
        self._lanes: dict[int, Lane] = {}
        self._airborne = airborne
        self._quotas = Quotas(registry)
        self._dropped: list[Flight] = []
        """Flights of lanes that were lost in this poll."""
        self._gone: list[int] = []
        """Those lanes."""
        self._contested_at = 0
        self._draining = self._apart = False
        self._queues = queues or QueueWatch(reader=reader, meta=desk.names.meta, clock=clock, events=events)
        self._gate = self._queues.gate(desk.queue, "" if guards is None else guards.topic_id)
        self._failure: Exception | None = None
        self._fatal: Exception | None = None
        """What ended a transaction that was waited for inside a poll."""
        for flight in airborne.values():
            self._quotas.count(flight.run, 1)
        self._log = open_log(self)
        self._ledger = Ledger(
            log=self._log, desk=desk, clock=clock, events=events, guards=guards, aside=aside
        )
        self._intake = Intake(
            ledger=self._ledger, desk=desk, registry=registry, limits=limits, clock=clock, events=events,
            announced=announced,
        )  # fmt: skip
        self._hooks = DeadHooks(
            executor=executor, registry=registry, dead=desk.names.dead, tickets=tickets, events=events
        )
        self._takeover = LaneTakeover(
            log=self._log, appender=appender, reader=reader, desk=desk, clock=clock, random=random,
            identity=identity, events=events, heartbeat_timeout_ms=limits.heartbeat_timeout_ms,
            guards=guards, appended=self._appended,
        )  # fmt: skip
        liveness = Liveness(
            open_feed=open_fleet, appender=appender, fleet=desk.names.fleet, partitions=fleet_partitions,
            clock=clock, timeout_ms=limits.heartbeat_timeout_ms, process=identity.process,
        )  # fmt: skip
        self._leases = Leases(
            desk=desk, outbox=outbox, reader=reader, liveness=liveness, clock=clock, events=events,
            airborne=airborne,
        )  # fmt: skip
        self._starts = Starts(
            appender=appender, desk=desk, registry=registry, intake=self._intake, ledger=self._ledger,
            leases=self._leases, clock=clock, limits=limits, quotas=self._quotas,
            generation=lambda: self._takeover.generation, era=era,
        )  # fmt: skip
        self._calls = Calls(
            executor=executor, registry=registry, means=means, desk=desk, hooks=self._hooks, clock=clock,
            random=random, events=events, limits=limits, tickets=tickets, airborne=airborne,
            quotas=self._quotas,
        )  # fmt: skip

    # -- rebalance: called inside poll, on this thread ------------------------------------------------------

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Nothing is fetched before the group's stable offset is known."""
        for number in partitions:
            self._lanes[number] = Lane(number, self._gate)
        self._events.on("assigned", queue=self._desk.queue, partitions=sorted(partitions))
        return {}

    def revoked(self, partitions: Sequence[int]) -> None:
        self._drop(partitions, "revoked")

    def lost(self, partitions: Sequence[int]) -> None:
        self._drop(partitions, "lost")

    def _drop(self, partitions: Sequence[int], action: str) -> None:
        self._settle_acks()
        for number in partitions:
            lane = self._lanes.pop(number, None)
            if lane is not None:
                self._dropped += lane.flights.values()
                self._gone.append(number)
                lane.close()
        self._intake.forget(partitions)
        self._events.on(action, queue=self._desk.queue, partitions=sorted(partitions))

    def _settle_acks(self) -> None:
        """What is owned here changes only between transactions: what is on its way is acked or refused then, and what
        is refused is known before anything of its partition is offered or given back."""
        try:
            self._hooks.tell(self._ledger.settle())
        except OwnerError as error:
            self._fatal = error  # inside a poll nothing may be raised

    def _part(self) -> None:
        """Of partitions that were lost: what runs goes on, its outcome is offered then; what has one already is
        offered now; what has not begun is given back."""
        ended = self._ledger.take_orphans()
        for outcome in ended:
            if outcome.flight.token:  # else it was never started, and its next owner ends it again
                self._leases.offer(outcome.flight, outcome.puts)
        settled = {id(outcome.flight) for outcome in ended}
        self._dropped = [flight for flight in self._dropped if id(flight) not in settled]
        self._starts.cleared = [flight for flight in self._starts.cleared if not flight.orphan]
        tickets = {flight.ticket for flight in self._dropped if flight.ticket in self._airborne}
        withdrawn = self._executor.withdraw(tickets)
        for flight in self._dropped:
            if flight.token and (flight.ticket not in tickets or flight.ticket in withdrawn):
                self._give_back(flight)
        self._leases.left(number for number in self._gone if number not in self._lanes)
        self._dropped, self._gone = [], []

    def _give_back(self, flight: Flight) -> None:
        self._airborne.pop(flight.ticket, None)
        self._quotas.count(flight.run, -1)
        self._leases.release(flight)

    # -- the step -------------------------------------------------------------------------------------------

    def step(self, patience_ms: int = IDLE_MS) -> int:
        """Do what can be done now; wait at most `patience_ms` for news first. Returns the ms to wait next."""
        if self._apart:
            return self._step_apart(patience_ms)
        self._intake.receive(self._poll(patience_ms), self._lanes)
        if self._fatal is not None:
            raise self._fatal
        if self._gone:
            self._part()
        self._takeover.advance(self._lanes.values())
        for lane in list(self._lanes.values()):
            if lane.unsure and (covered := self._takeover.covered(lane)) is not None:
                self._ledger.reconcile(lane, covered)
        self._follow()
        self._contest()
        if not self._draining:
            self._queues.look()
            if self._gate.ends:
                self._intake.purge(self._lanes.values())
            self._starts.write(self._lanes.values(), len(self._airborne))
        self._appender.poll(1 if self._starts.under_way and not self._airborne else 0)
        self._check_records()
        self._calls.launch(self._starts.take_cleared())
        self._starts.landed(self._calls.collect(self._settle))
        if not self._gate.closed:
            self._intake.give_up_parked(self._lanes.values())
        self._hooks.tell(self._ledger.advance(more=bool(self._airborne or self._starts.under_way)))
        self._throttle()
        self._beat()
        return self._wait()

    def _step_apart(self, patience_ms: int) -> int:
        """Out of the group: what runs here is finished, and offered."""
        self._appender.poll(patience_ms)
        self._follow()
        self._check_records()
        self._calls.collect(self._settle)
        self._beat()
        return self._wait()

    def _check_records(self) -> None:
        failure = self._failure or self._starts.failure
        if failure is not None:
            raise RebuildClients(f"a record was not taken: {failure}")

    def _poll(self, patience_ms: int) -> Sequence[Record]:
        try:
            # Arrivals can be outcomes at once (unreadable, nobody's handler): no faster in than out.
            return self._log.poll(1 if self._ledger.full else POLL_LIMIT, patience_ms)
        except RebuildPartition as expired:
            # Runs that nobody acked within the retention are gone: said loudly, and work goes on (H21).
            self._events.on(
                "work_expired", queue=self._desk.queue, partition=expired.partition, reason=str(expired)
            )
            self._log.start(expired.partition, -1)
            return []

    def _wait(self) -> int:
        if self._starts.cleared or self._starts.under_way or self._ledger.full:
            return 0
        soon = self.busy or any(lane.restless for lane in self._lanes.values())
        return BUSY_MS if soon else IDLE_MS

    def _follow(self) -> None:
        """News of the acks partitions: what others offer or give back, and stops."""
        taken, launched = self._leases.advance(self._lanes.values())
        for outcome in taken:
            self._ledger.add(outcome.flight, outcome.puts, outcome.dead)
        self._starts.cleared += launched
        beaten, self._leases.beaten = self._leases.beaten, []
        for flight in beaten:
            self._quotas.count(flight.run, -1)
        self._leases.stop_orphans(self._calls.stop)
        for lane in self._lanes.values():
            if lane.strange is not None:
                self._leave_to_newer(lane, lane.strange)
            if lane.stops.news:
                lane.stops.news = False
                for flight in lane.flights.values():
                    if flight.ticket in self._airborne and lane.stops.hits(flight.run):
                        self._calls.stop(flight)

    def _leave_to_newer(self, lane: Lane, fingerprint: str) -> None:
        """Its acks partition has a record that was written with this schema, unknown here. If a newer version has
        announced it, it may tell of an attempt that runs, or of an outcome that was offered: nothing is started beside
        that. What runs of it here is offered to its next owner, who can read all of them (docs/versions.md)."""
        lane.strange = None
        if lane.state is PartitionState.CLOSED or not self._announced(fingerprint):
            return
        self._settle_acks()
        self._dropped += lane.flights.values()
        self._gone.append(lane.number)
        lane.close()
        self._log.pause([lane.number])
        self._intake.forget([lane.number])
        reason = f"its acks partition holds a record of schema {fingerprint}, which was announced and is unknown here:"
        self._events.on(
            "partition_stopped", queue=self._desk.queue, partition=lane.number,
            reason=f"{reason} upgrade this process",
        )  # fmt: skip
        self._part()

    def _contest(self) -> None:
        usurped = [lane for lane in self._lanes.values() if lane.usurped and not lane.unsure]
        if usurped and (now := self._clock.monotonic()) - self._contested_at >= CONTEST_MS:
            self._contested_at = now
            self._hooks.tell(self._ledger.settle())
            for lane in usurped:
                self._ledger.contest(lane)

    def _appended(self, error: Exception | None, _offset: int, _at: int) -> None:
        if error is not None:
            self._failure = error

    def _settle(self, flight: Flight, puts: list[Put], dead: str | None) -> None:
        """What an attempt came to: into the ledger, or offered if the partition is another's now."""
        if flight.orphan:
            self._leases.offer(flight, puts)
        else:
            self._ledger.add(flight, puts, dead)

    # -- back-pressure, heartbeat, leaving ------------------------------------------------------------------

    def _throttle(self) -> None:
        """Pause fetching of a lane that is full, go on when it is half empty; never stop polling."""
        for number, lane in self._lanes.items():
            filled = max(
                len(lane.waiting) / LANE_LIMIT, lane.waiting_bytes * len(self._lanes) / PAYLOAD_LIMIT
            )
            if not lane.paused and filled >= 1:
                lane.paused = True
                self._log.pause([number])
            elif lane.paused and filled < 0.5:
                lane.paused = False
                self._log.resume([number], {})

    def _beat(self) -> None:
        """Once a second, and what else needs no more."""
        monotonic = self._clock.monotonic()
        if not self._pulse.due(monotonic):
            return
        self._pulse.beat(self.heartbeat(), monotonic)
        now, at_end = self._clock.now(), self._log.at_end()
        oldest = {number: found.fired_at for number, lane in self._lanes.items() if (found := lane.oldest())}
        for number, lane in self._lanes.items():
            if number in oldest or number in at_end:
                lane.stops.forget(oldest.get(number, now))
        lanes = self._lanes.values()
        self._events.on(
            "gauges", waiting=sum(len(lane.waiting) for lane in lanes), parked=self.parked,
            held=sum(len(lane.held) for lane in lanes), paused=sum(lane.paused for lane in lanes),
            oldest_gap_ms=max(0, now - min(oldest.values(), default=now)),
        )  # fmt: skip

    def heartbeat(self) -> Heartbeat:
        return worker_heartbeat(
            self._identity, self._desk, self._registry, self._log.transactional_ids, self._takeover.generation_now(),
            self._lanes.values(), list(self._airborne.values()), taking=not self._draining,
        )  # fmt: skip

    @property
    def states(self) -> dict[int, PartitionState]:
        """Partitions owned and where they stand."""
        return {number: lane.state for number, lane in self._lanes.items()}

    @property
    def busy(self) -> bool:
        """Whether anything started here is not yet acked."""
        return bool(self.in_flight or self._hooks.busy or len(self._ledger) or self._leases.busy)

    @property
    def in_flight(self) -> int:
        """Attempts started here whose handlers have not come back."""
        return len(self._airborne) + self._starts.under_way + len(self._starts.cleared)

    @property
    def parked(self) -> int:
        """Runs kept here whose handlers nobody here knows."""
        return sum(len(lane.parked) for lane in self._lanes.values())

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is in flight or is unread, as far as the last poll knows; parked runs do not count."""
        open_lanes = {n: lane for n, lane in self._lanes.items() if lane.state is not PartitionState.CLOSED}
        settled = not any(lane.restless for lane in open_lanes.values())
        return settled and not self.busy and open_lanes.keys() <= self._log.at_end()

    def drain(self) -> None:
        """Take no further run, give back what has not begun, and keep stepping until not `busy`, or the drain
        time-out is over."""
        self._draining = True
        for ticket in self._executor.withdraw(list(self._airborne)):
            flight = self._airborne[ticket]
            flight.lane.released_own(flight)
            self._give_back(flight)
        self._pulse.beat(self.heartbeat(), self._clock.monotonic())

    def hand_over(self) -> None:
        """While draining: leave the group now, for others who start at once what waits on the partitions of this
        worker. What runs here is finished without them and offered, as after any other loss of a partition."""
        with suppress(OwnerError):  # what is not acked is offered
            self._hooks.tell(self._ledger.commit())
        self._drop(list(self._lanes), "handed_over")
        self._part()
        self._apart = True
        self._log.close()

    def leave(self, timeout_ms: int) -> None:
        """This process ends: what can be ended is ended, outcomes are acked or offered, and what did not finish is
        given back, unspent."""
        for flight in self._airborne.values():
            flight.stopped = True
        self._executor.stop(list(self._airborne))
        with suppress(OwnerError):  # the clients may be dead: what is not acked is offered below
            self._ledger.commit()
        self._drop(list(self._lanes), "leaving")
        self._part()
        for flight in self._airborne.values():
            self._leases.release(flight)
        self._airborne.clear()
        self._leases.flush(timeout_ms)

    def close(self) -> None:
        """Leave the group politely. What runs goes on and is offered by whoever comes after us in this process."""
        self._drop(list(self._lanes), "closed")
        self._part()
        self._leases.close()
        if not self._apart:
            self._log.close()
