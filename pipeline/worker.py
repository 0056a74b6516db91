"""A worker on one queue: poll → take over → start → handle → one ack transaction → apply (DESIGN §7).

One thread owns consumer, producers and everything here and keeps polling; handlers run in an executor. An
attempt is durable on the acks topic before its handler starts; its outcome, what follows from it (a retry, a
dead letter, what the handler handed on) and the offset commit in one transaction, fenced by the group's generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial

from pipeline.attempt import Means, Tray, call_handler
from pipeline.beat import worker_heartbeat
from pipeline.core.admission import Limits, Quotas
from pipeline.core.errors import OwnerError, RebuildClients, RebuildPartition, TokenExhausted
from pipeline.core.handler import DeadEnd, Pool, Registry, Succeeded, decide, failure_of
from pipeline.core.identity import Identity
from pipeline.core.job import Heartbeat
from pipeline.core.states import PartitionState
from pipeline.core.token import make_token
from pipeline.core.verbs import Stopped
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.heartbeat import Pulse
from pipeline.hooks import DeadHooks
from pipeline.intake import Intake
from pipeline.lane import Delivery, Flight, Lane
from pipeline.leases import Leases
from pipeline.ledger import AtOnce, Ledger
from pipeline.liveness import Liveness
from pipeline.offers import OfferId
from pipeline.outbox import Outbox
from pipeline.ports import (
    Aside,
    BatchAppender,
    Call,
    Clock,
    Done,
    Events,
    Executor,
    Feed,
    GroupLog,
    Put,
    Random,
    Reader,
    RebalanceListener,
    Record,
    Task,
)
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
AHEAD_MS = 20
AHEAD_LIMIT = 4_000
"""Runs are started ahead of free places: twice as many as came to an end in the last 20 ms, the time that a start
takes to become durable and more. Slow handlers so have hardly any, quick ones never wait for the log."""


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
    ) -> None:
        """`tickets` number the calls of an executor, `airborne` holds those that run, by ticket, and `outbox` what was
        parted with: they outlive this object when the clients are built anew. `open_fleet` follows the heartbeats of
        others, `aside` makes the ack transactions."""
        self._appender = appender
        self._executor = executor
        self._registry = registry
        self._means = means
        self._desk = desk
        self._clock = clock
        self._random = random
        self._identity = identity
        self._pulse = pulse
        self._events = events
        self._era = era
        self._tickets = tickets
        self._limits = limits
        self._lanes: dict[int, Lane] = {}
        self._airborne = airborne
        self._quotas = Quotas(registry)
        self._starting = 0
        """Started records on their way."""
        self._cleared: list[Flight] = []
        """Flights whose started record is durable: their handlers may start."""
        self._dropped: list[Flight] = []
        """Flights of lanes that were lost in this poll."""
        self._gone: list[int] = []
        """Those lanes."""
        self._ended = self._ahead = self._counted_at = self._contested_at = 0
        self._draining = self._apart = False
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

    # -- rebalance: called inside poll, on this thread ------------------------------------------------------

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        """Nothing is fetched before the group's stable offset is known."""
        for number in partitions:
            self._lanes[number] = Lane(number)
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
        self._cleared = [flight for flight in self._cleared if not flight.orphan]
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
        self._start_runs()
        self._appender.poll(1 if self._starting and not self._airborne else 0)
        if self._failure is not None:
            raise RebuildClients(f"a record was not taken: {self._failure}")
        self._launch()
        self._collect()
        self._intake.give_up_parked(self._lanes.values())
        self._hooks.tell(self._ledger.advance(more=bool(self._airborne or self._starting)))
        self._throttle()
        self._beat()
        return self._wait()

    def _step_apart(self, patience_ms: int) -> int:
        """Out of the group: what runs here is finished, and offered."""
        self._appender.poll(patience_ms)
        self._follow()
        if self._failure is not None:
            raise RebuildClients(f"a record was not taken: {self._failure}")
        self._collect()
        self._beat()
        return self._wait()

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
        if self._cleared or self._starting or self._ledger.full:
            return 0
        soon = self.busy or any(lane.restless for lane in self._lanes.values())
        return BUSY_MS if soon else IDLE_MS

    def _follow(self) -> None:
        """News of the acks partitions: what others offer or give back, and stops."""
        taken, launched = self._leases.advance(self._lanes.values())
        for outcome in taken:
            self._ledger.add(outcome.flight, outcome.puts, outcome.dead)
        self._cleared += launched
        beaten, self._leases.beaten = self._leases.beaten, []
        for flight in beaten:
            self._quotas.count(flight.run, -1)
        self._leases.stop_orphans(self._stop)
        for lane in self._lanes.values():
            if lane.stops.news:
                lane.stops.news = False
                for flight in lane.flights.values():
                    if flight.ticket in self._airborne and lane.stops.hits(flight.run):
                        self._stop(flight)

    def _contest(self) -> None:
        usurped = [lane for lane in self._lanes.values() if lane.usurped and not lane.unsure]
        if usurped and (now := self._clock.monotonic()) - self._contested_at >= CONTEST_MS:
            self._contested_at = now
            self._hooks.tell(self._ledger.settle())
            for lane in usurped:
                self._ledger.contest(lane)

    def _stop(self, flight: Flight) -> None:
        flight.stopped = True
        self._executor.stop([flight.ticket])
        self._events.on("stopping", job=flight.run.job_id, handler=flight.run.handler)

    # -- receiving and starting -----------------------------------------------------------------------------

    def _start_runs(self) -> None:
        now = self._clock.monotonic()
        if now - self._counted_at >= AHEAD_MS:
            self._ahead, self._ended, self._counted_at = min(2 * self._ended, AHEAD_LIMIT), 0, now
        if self._draining:
            return
        free = self._limits.concurrency + self._ahead - self.in_flight
        busy, store_now = self._quotas.full if self._quotas.limited else None, self._clock.now()
        for lane in self._lanes.values():
            if free <= 0:
                break
            begun: list[Flight] = []
            for delivery in lane.startable(free, busy):
                free -= 1
                # Our clock is a lower bound of the broker's, which has stamped the record already.
                flight = self._start_run(lane, delivery, max(store_now, delivery.fired_at))
                if flight is not None:
                    begun.append(flight)
            if begun:
                starts = [self._desk.started(flight) for flight in begun]
                self._appender.append_all(starts, partial(self._started, begun))

    def _start_run(self, lane: Lane, delivery: Delivery, now: int) -> Flight | None:
        """The attempt that begins with this; its handler starts when that is durable. None if the run ends here, or its
        start is on its way already, alone."""
        run, earlier = delivery.run, lane.reclaimed_from(delivery)
        if earlier is not None and (won := self._leases.offered(lane, earlier)) is not None:
            self._ledger.add(won.flight, won.puts, won.dead)
            return None
        spec, starts = self._registry.get(run.handler), lane.tracker.starts(delivery.offset)
        if self._intake.ended(lane, delivery, spec, starts, now):
            return None
        return self._begin(lane, delivery, starts, now, earlier)

    def _begin(
        self, lane: Lane, delivery: Delivery, starts: int, now: int, replaces: OfferId | None
    ) -> Flight | None:
        run = delivery.run
        try:
            token = _token(self._era, run.run, self._takeover.generation, starts + 1)
        except TokenExhausted as exhausted:
            self._intake.give_up(
                lane, delivery, DeadEnd(reason="token_exhausted", error=failure_of(exhausted))
            )
            return None
        flight = Flight(
            lane=lane, delivery=delivery, attempt=starts + 1, token=token, started_at=now,
            replaces=replaces,
        )  # fmt: skip
        lane.take_off(flight, self._identity.process)
        self._starting += 1
        self._quotas.count(run, 1)
        if replaces is None:
            return flight
        self._appender.append(self._desk.started(flight), partial(self._replaced, flight, replaces))
        return None

    def _started(self, flights: Sequence[Flight], error: Exception | None) -> None:
        """The starts of runs of one lane are durable."""
        self._starting -= len(flights)
        if error is not None:
            self._failure = error
        elif not flights[0].orphan:  # else they were given back when their partition was lost
            self._cleared += flights

    def _replaced(
        self, flight: Flight, earlier: OfferId, error: Exception | None, offset: int, _at: int
    ) -> None:
        self._starting -= 1
        if error is not None:
            self._failure = error
        elif not flight.orphan:
            self._leases.restarted(flight, earlier, offset)

    def _appended(self, error: Exception | None, _offset: int, _at: int) -> None:
        if error is not None:
            self._failure = error

    def _launch(self) -> None:
        cleared, self._cleared = self._cleared, []
        for flight in cleared:
            if flight.orphan:
                continue
            self._submit(flight)
            if flight.lane.stops.hits(flight.run):  # it came while the start was on its way
                self._stop(flight)

    def _submit(self, flight: Flight) -> None:
        run = flight.run
        spec = self._registry.get(run.handler)
        assert spec is not None, "started only with a known handler"
        flight.ticket = next(self._tickets)
        flight.side = tray = Tray(self._means, partial(_should_end, flight))
        self._airborne[flight.ticket] = flight
        # The last attempt before the limit of worker deaths gets a process of its own, to kill no neighbour.
        apart = spec.pool is Pool.PROCESS or flight.attempt >= self._limits.max_worker_deaths
        fired_at = flight.delivery.fired_at
        task = Task(run, flight.attempt, flight.token, fired_at, tray) if apart else None
        timeout = spec.timeout_ms if run.timeout_ms is None else run.timeout_ms
        function = partial(call_handler, spec, flight, tray)
        self._executor.submit(
            Call(flight.ticket, function, spec.asynchronous, timeout, task, spec.name, fired_at)
        )

    # -- outcomes -------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        now = self._clock.now()
        for done in self._executor.completed():
            flight = self._airborne.pop(done.ticket, None)
            if self._hooks.landed(done):
                continue
            if flight is None:
                self._events.on("result_discarded", ticket=done.ticket)
                continue
            self._ended += 1
            self._quotas.count(flight.run, -1)
            self._land(flight, done, now)

    def _land(self, flight: Flight, done: Done, now: int) -> None:
        """What an attempt came to, as records: into the ledger, or offered if the partition is another's now."""
        tray = flight.side
        assert tray is not None, "set when it was launched"
        tray.close()
        if done.error is not None and (flight.stopped or isinstance(done.error, Stopped)):
            self._settle(flight, self._desk.stopped(flight, now, tray.tail()))
            return
        spec = self._registry.get(flight.run.handler)
        assert spec is not None, "started only with a known handler"
        decision = decide(spec, flight.run, value=done.value, error=done.error, now=now, random=self._random)
        puts = self._desk.settle(flight, decision, now, tray.tail())
        if tray.outputs and isinstance(decision, Succeeded):
            puts += tray.outputs
        self._settle(flight, puts, decision.reason if isinstance(decision, DeadEnd) else None)

    def _settle(self, flight: Flight, puts: list[Put], dead: str | None = None) -> None:
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
            self._identity, self._desk, self._registry, self._log.transactional_ids, self._takeover.generation,
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
        return len(self._airborne) + self._starting + len(self._cleared)

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


_token = lru_cache(maxsize=1024)(make_token)
"""Nearly all runs that start at the same time are first attempts of first runs."""


def _should_end(flight: Flight) -> bool:
    return flight.stopped
