"""A worker on one queue: poll → take over → start → handle → one ack transaction → apply (DESIGN §7).

One thread owns consumer, producers and everything here and keeps polling; handlers run in an executor. An
attempt is durable on the acks topic before its handler starts; its outcome, what follows from it (a retry, a
dead letter) and the offset commit in one transaction, fenced by the group's generation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pipeline import codec
from pipeline.attempt import Means, Tray, call_handler
from pipeline.core.admission import MINUTE_MS, Limits, check_run, nobody_knows
from pipeline.core.errors import RebuildClients, RebuildPartition, TokenExhausted, Undecodable
from pipeline.core.handler import DeadEnd, Decision, Registry, decide, failure_of
from pipeline.core.identity import Identity
from pipeline.core.job import Failure, Heartbeat, InFlight, Owned, Run
from pipeline.core.states import PartitionState
from pipeline.core.token import make_token
from pipeline.heartbeat import Pulse
from pipeline.lane import Delivery, Desk, Flight, Lane
from pipeline.ledger import Ledger
from pipeline.ports import (
    Appender,
    Call,
    Clock,
    Done,
    Events,
    Executor,
    GroupLog,
    Put,
    Random,
    Reader,
    RebalanceListener,
    Record,
)
from pipeline.takeover import LaneTakeover

__all__ = ["Limits", "Worker"]

IDLE_MS = 100
BUSY_MS = 2
"""Longest wait for records while handlers run: results are looked for in between."""
LANE_LIMIT = 500
"""Runs waiting in one lane, and records of one poll; a lane that has as many is paused, so memory stays flat."""
PAYLOAD_LIMIT = 64 * 1024 * 1024
"""Bytes of payload waiting in this process, shared evenly by its lanes: a full one starves no other."""


class Worker:
    """The owner of some partitions of one work topic. Implements `ports.RebalanceListener` for its own log."""

    def __init__(
        self,
        *,
        open_log: Callable[[RebalanceListener], GroupLog],
        appender: Appender,
        reader: Reader,
        executor: Executor,
        registry: Registry,
        means: Means,
        desk: Desk,
        clock: Clock,
        random: Random,
        identity: Identity,
        pulse: Pulse,
        events: Events,
        era: int,
        limits: Limits,
        tickets: Iterator[int],
    ) -> None:
        """`tickets` number the calls of an executor that may outlive this object (a rebuild after a fatal error)."""
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
        self._airborne: dict[int, Flight] = {}
        """Calls in the executor by ticket; a flight of a closed lane stays until its handler returns."""
        self._cleared: list[Flight] = []
        """Flights whose started record is durable: their handlers may start."""
        self._starting, self._draining = 0, False
        self._suspects: deque[tuple[Lane, Delivery]] = deque()
        """Runs one worker death away from the limit; each waits until it can run alone."""
        self._alone = False
        self._letters: dict[tuple[int, int], Put] = {}
        """Dead letters of unreadable records by (partition, offset), until it is their turn."""
        self._told: tuple[int, set[str]] = (0, set())
        """The unknown handlers told of in this minute."""
        self._failure: Exception | None = None
        self._log = open_log(self)
        self._ledger = Ledger(log=self._log, desk=desk, clock=clock, events=events)
        self._takeover = LaneTakeover(
            log=self._log, appender=appender, reader=reader, desk=desk, clock=clock, random=random,
            identity=identity, events=events, heartbeat_timeout_ms=limits.heartbeat_timeout_ms,
            appended=self._appended,
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
        for number in partitions:
            lane = self._lanes.pop(number, None)
            if lane is not None:
                lane.close()
        self._letters = {place: put for place, put in self._letters.items() if place[0] in self._lanes}
        self._suspects = deque(s for s in self._suspects if s[0].state is not PartitionState.CLOSED)
        self._ledger.drop_closed()
        self._events.on(action, queue=self._desk.queue, partitions=sorted(partitions))

    # -- the step -------------------------------------------------------------------------------------------

    def step(self, patience_ms: int = IDLE_MS) -> int:
        """Do what can be done now; wait at most `patience_ms` for news first. Returns the ms to wait next."""
        self._receive(self._poll(patience_ms))
        self._takeover.advance(self._lanes.values())
        for lane in self._lanes.values():
            if lane.unsure and (covered := self._takeover.covered(lane)) is not None:
                self._ledger.reconcile(lane, covered)
        self._start_runs()
        self._appender.poll(0)
        if self._failure is not None:
            raise RebuildClients(f"a started record was not taken: {self._failure}")
        self._launch()
        self._collect()
        self._give_up_parked()
        self._ledger.commit()
        self._throttle()
        self._beat()
        return self._wait()

    def _poll(self, patience_ms: int) -> Sequence[Record]:
        try:
            # Arrivals can be outcomes at once (unreadable, nobody's handler): no faster in than out.
            return self._log.poll(1 if self._ledger.full else LANE_LIMIT, patience_ms)
        except RebuildPartition as expired:
            # Runs that nobody acked within the retention are gone: said loudly, and work goes on (H21).
            self._events.on(
                "work_expired", queue=self._desk.queue, partition=expired.partition, reason=str(expired)
            )
            self._log.start(expired.partition, -1)
            return []

    def _wait(self) -> int:
        if self._cleared or self._ledger.full:
            return 0
        soon = self.busy or self._suspects or any(lane.restless for lane in self._lanes.values())
        return BUSY_MS if soon else IDLE_MS

    # -- receiving and starting -----------------------------------------------------------------------------

    def _receive(self, records: Sequence[Record]) -> None:
        for record in records:
            lane = self._lanes.get(record.partition() or 0)
            offset = record.offset()
            if lane is None or offset is None or not lane.tracker.deliver(offset):
                continue  # finished before us, or delivered again within this assignment
            try:
                run = codec.RUN.decode(record.value() or b"")
                check_run(run, key=record.key(), queue=self._desk.queue)
            except Undecodable as problem:
                self._unreadable(lane, record, problem)
                continue
            self._admit(lane, Delivery(offset=offset, run=run, fired_at=record.timestamp()[1]))

    def _admit(self, lane: Lane, delivery: Delivery) -> None:
        """A few runs that nobody here can handle are parked; more would make the offset metadata too long."""
        known = self._registry.get(delivery.run.handler) is not None
        if not known:
            self._tell_unknown(delivery.run)
        outdated = self._limits.outdated(delivery.run)
        if not known and not outdated and lane.can_park(delivery.run):
            deadline = self._clock.monotonic() + self._limits.unknown_handler_ms
            lane.parked[delivery.offset] = (delivery, deadline)
        else:
            lane.wait(delivery)

    def _turn_away(self, lane: Lane, delivery: Delivery) -> None:
        """End what cannot be handled here; in its turn, since what ends early makes that metadata longer too."""
        letter = self._letters.pop((lane.number, delivery.offset), None)
        if letter is None:
            self._give_up(lane, delivery, self._limits.turned_away(delivery.run, self._clock.now()))
        else:
            flight = Flight(lane=lane, delivery=delivery, attempt=1, token=1, started_at=0)
            self._ledger.add(flight, [letter])

    def _tell_unknown(self, run: Run) -> None:
        minute = self._clock.monotonic() // MINUTE_MS
        if self._told[0] != minute:
            self._told = (minute, set())
        if run.handler not in self._told[1]:
            self._told[1].add(run.handler)
            self._events.on("unknown_handler", handler=run.handler, job=run.job_id)

    def _unreadable(self, lane: Lane, record: Record, problem: Undecodable) -> None:
        offset = record.offset() or 0
        letter = self._desk.unreadable(lane, record, str(problem), self._clock.now())
        self._letters[lane.number, offset] = letter
        blank = Run(
            job_id="", occurrence_id="", due_at=0, run=1, queue=self._desk.queue, handler="", created_at=0,
            nominal_at=0, idempotency_key="", payload=record.value() or b"",
        )  # fmt: skip
        lane.wait(Delivery(offset=offset, run=blank, fired_at=record.timestamp()[1]))
        self._events.on("unreadable", partition=lane.number, offset=offset, reason=str(problem))

    def _start_runs(self) -> None:
        running = len(self._airborne) + self._starting + len(self._cleared)
        self._alone = self._alone and running > 0
        if self._draining or self._alone:
            return
        free = self._limits.concurrency - running
        for lane in self._lanes.values():
            if free <= 0 or self._suspects:
                break
            for delivery in lane.startable(free):
                free -= 1
                if lane.tracker.starts(delivery.offset) == self._limits.max_worker_deaths - 1:
                    self._suspects.append((lane, delivery))
                else:
                    running += 1
                    self._start_run(lane, delivery)
        if self._suspects and running == 0:
            self._alone = True
            self._start_run(*self._suspects.popleft())

    def _start_run(self, lane: Lane, delivery: Delivery) -> None:
        """Write the started record; the handler starts when it is durable."""
        if self._registry.get(delivery.run.handler) is None:
            self._turn_away(lane, delivery)
            return
        starts = lane.tracker.starts(delivery.offset)
        # Our clock is a lower bound of the broker's, which has stamped the record already.
        now = max(self._clock.now(), delivery.fired_at)
        if starts >= self._limits.max_worker_deaths:
            problem = f"{starts} workers died while they ran this job"
            died = Failure(type="WorkerDied", message=problem)
            self._give_up(lane, delivery, DeadEnd(reason="max_worker_deaths", error=died))
            return
        try:
            token = make_token(self._era, delivery.run.run, self._takeover.generation, starts + 1)
        except TokenExhausted as exhausted:
            self._give_up(lane, delivery, DeadEnd(reason="token_exhausted", error=failure_of(exhausted)))
            return
        flight = Flight(lane=lane, delivery=delivery, attempt=starts + 1, token=token, started_at=now)
        lane.take_off(flight, self._identity.process)
        self._starting += 1
        self._appender.append(self._desk.started(flight), partial(self._started, flight))

    def _give_up(self, lane: Lane, delivery: Delivery, decision: Decision) -> None:
        """End a run without starting it; its ack stands for the attempt that was last started."""
        attempt = max(1, lane.tracker.starts(delivery.offset))
        flight = Flight(lane=lane, delivery=delivery, attempt=attempt, token=0, started_at=self._clock.now())
        self._end(flight, decision)

    def _started(self, flight: Flight, error: Exception | None, offset: int, _at: int) -> None:
        self._starting -= 1
        if error is not None:
            self._failure = error
        elif flight.lane.state is PartitionState.RUNNING:
            flight.lane.acks_next = max(flight.lane.acks_next, offset + 1)
            self._cleared.append(flight)

    def _appended(self, error: Exception | None, _offset: int, _at: int) -> None:
        if error is not None:
            self._failure = error

    def _launch(self) -> None:
        cleared, self._cleared = self._cleared, []
        for flight in cleared:
            if flight.lane.state is not PartitionState.RUNNING:
                continue
            spec = self._registry.get(flight.run.handler)
            assert spec is not None, "admitted only with a known handler"
            ticket, tray = next(self._tickets), Tray(self._means, partial(_closed, flight))
            self._airborne[ticket] = flight
            self._executor.submit(Call(ticket, partial(call_handler, spec, flight, tray), spec.asynchronous))

    # -- outcomes -------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for done in self._executor.completed():
            flight = self._airborne.pop(done.ticket, None)
            if flight is None or flight.lane.state is PartitionState.CLOSED:
                self._events.on("result_discarded", job=flight.run.job_id if flight is not None else None)
                continue
            self._end(flight, self._decide(flight, done))

    def _decide(self, flight: Flight, done: Done) -> Decision:
        spec = self._registry.get(flight.run.handler)
        assert spec is not None, "admitted only with a known handler"
        now = self._clock.now()
        return decide(spec, flight.run, value=done.value, error=done.error, now=now, random=self._random)

    def _end(self, flight: Flight, decision: Decision) -> None:
        flight.lane.flights[flight.delivery.offset] = flight
        self._ledger.add(flight, self._desk.settle(flight, decision, self._clock.now()))

    def _give_up_parked(self) -> None:
        """A handler that no worker has learnt within the limit ends its runs as dead."""
        monotonic = self._clock.monotonic()
        for lane in self._lanes.values():
            expired = [offset for offset, (_, deadline) in lane.parked.items() if monotonic >= deadline]
            for offset in expired:
                delivery, _ = lane.parked.pop(offset)
                self._give_up(lane, delivery, nobody_knows(delivery.run))

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
        monotonic = self._clock.monotonic()
        if self._pulse.due(monotonic):
            self._pulse.beat(self.heartbeat(), monotonic)

    def heartbeat(self) -> Heartbeat:
        me, topic = self._identity, self._desk.names.work(self._desk.queue)
        return Heartbeat(
            process=me.process, role="worker", version=me.version, host=me.host, pid=me.pid,
            started_at=me.started_at, generation=self._takeover.generation,
            owned=tuple(
                Owned(topic=topic, partition=number, state=state.name.lower())
                for number, state in self.states.items()
            ),
            transactional_ids=self._log.transactional_ids, handlers=self._registry.names(),
            queues=(self._desk.queue,),
            in_flight=tuple(_in_flight(flight) for flight in list(self._airborne.values())[:1000]),
        )  # fmt: skip

    @property
    def states(self) -> dict[int, PartitionState]:
        """Partitions owned and where they stand."""
        return {number: lane.state for number, lane in self._lanes.items()}

    @property
    def busy(self) -> bool:
        """Whether anything started here is not yet acked."""
        return bool(self._airborne or self._starting or self._cleared or len(self._ledger))

    def drain(self) -> None:
        """Take no further run; keep stepping until not `busy`, or the drain time-out is over."""
        self._draining = True

    def close(self, timeout_ms: int = 5_000) -> None:
        """Give back what did not finish, unspent, and leave the group politely."""
        now = self._clock.now()
        for flight in self._airborne.values():
            if flight.lane.state is not PartitionState.CLOSED:
                self._appender.append(self._desk.released(flight, now), self._appended)
        self._pulse.leave()
        self._appender.flush(timeout_ms)
        self._log.close()


def _closed(flight: Flight) -> bool:
    return flight.lane.state is PartitionState.CLOSED


def _in_flight(flight: Flight) -> InFlight:
    run = flight.run
    return InFlight(
        occurrence_id=run.occurrence_id, run=run.run, attempt=flight.attempt, token=flight.token,
        handler=run.handler, started_at=flight.started_at,
    )  # fmt: skip
