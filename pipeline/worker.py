"""A worker on one queue: poll → take over → start → handle → one ack transaction → apply (DESIGN §7).

One thread owns consumer, producers and everything here and keeps polling; handlers run in an executor. An
attempt is durable on the acks topic before its handler starts; its outcome, what follows from it (a retry, a
dead letter) and the offset commit in one transaction, fenced by the group's generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pipeline import codec
from pipeline.attempt import call_handler
from pipeline.core.errors import (
    RebuildClients,
    RebuildPartition,
    TokenExhausted,
    Undecodable,
)
from pipeline.core.handler import DeadEnd, Decision, Registry, decide, failure_of
from pipeline.core.identity import Identity
from pipeline.core.job import Failure, Heartbeat, InFlight, Owned, Run
from pipeline.core.states import PartitionState
from pipeline.core.token import make_token
from pipeline.heartbeat import REPORT_MS, Pulse
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
    Random,
    Reader,
    RebalanceListener,
    Record,
)
from pipeline.takeover import LaneTakeover

IDLE_MS = 100
BUSY_MS = 2
"""Longest wait for records while handlers run: results are looked for in between."""
BUFFER_LIMIT = 2_000
"""Runs waiting in this process; above it the partitions are paused, so memory stays flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a worker takes on, and how long it is patient. Durations in ms."""

    concurrency: int = 16
    heartbeat_timeout_ms: int = 3_000
    max_worker_deaths: int = 3
    unknown_handler_ms: int = 3_600_000


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
        self._starting = 0
        self._paused = False
        self._draining = False
        self._failure: Exception | None = None
        self._log = open_log(self)
        self._ledger = Ledger(log=self._log, desk=desk, clock=clock, events=events)
        self._takeover = LaneTakeover(
            log=self._log,
            appender=appender,
            reader=reader,
            desk=desk,
            clock=clock,
            random=random,
            identity=identity,
            events=events,
            heartbeat_timeout_ms=limits.heartbeat_timeout_ms,
            appended=self._appended,
        )

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
            return self._log.poll(BUFFER_LIMIT, patience_ms)
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
        restoring = any(lane.state is not PartitionState.RUNNING for lane in self._lanes.values())
        if self.busy or restoring:
            return BUSY_MS
        return REPORT_MS if self._pulse.waiting else IDLE_MS

    # -- receiving and starting -----------------------------------------------------------------------------

    def _receive(self, records: Sequence[Record]) -> None:
        for record in records:
            lane = self._lanes.get(record.partition() or 0)
            offset = record.offset()
            if lane is None or offset is None or not lane.tracker.deliver(offset):
                continue  # finished before us, or delivered again within this assignment
            try:
                run = codec.RUN.decode(record.value() or b"")
            except Undecodable as problem:
                self._unreadable(lane, record, problem)
                continue
            self._admit(lane, Delivery(offset=offset, run=run, fired_at=record.timestamp()[1]))

    def _admit(self, lane: Lane, delivery: Delivery) -> None:
        if self._registry.get(delivery.run.handler) is not None:
            lane.waiting.append(delivery)
            return
        deadline = self._clock.monotonic() + self._limits.unknown_handler_ms
        lane.parked[delivery.offset] = (delivery, deadline)
        self._events.on("unknown_handler", handler=delivery.run.handler, job=delivery.run.job_id)

    def _unreadable(self, lane: Lane, record: Record, problem: Undecodable) -> None:
        offset = record.offset() or 0
        put = self._desk.unreadable(lane, record, str(problem), self._clock.now())
        blank = Run(
            job_id="", occurrence_id="", due_at=0, run=1, queue=self._desk.queue, handler="", created_at=0,
            nominal_at=0, idempotency_key="", payload=b"",
        )  # fmt: skip
        delivery = Delivery(offset=offset, run=blank, fired_at=record.timestamp()[1])
        flight = Flight(lane=lane, delivery=delivery, attempt=1, token=1, started_at=0)
        self._ledger.add(flight, [put])
        self._events.on("unreadable", partition=lane.number, offset=offset, reason=str(problem))

    def _start_runs(self) -> None:
        if self._draining:
            return
        free = self._limits.concurrency - len(self._airborne) - self._starting - len(self._cleared)
        for lane in self._lanes.values():
            if free <= 0:
                return
            for delivery in lane.startable(free):
                free -= 1
                self._start_run(lane, delivery)

    def _start_run(self, lane: Lane, delivery: Delivery) -> None:
        """Write the started record; the handler starts when it is durable."""
        starts = lane.tracker.starts(delivery.offset)
        # Our clock is a lower bound of the broker's, which has stamped the record already.
        now = max(self._clock.now(), delivery.fired_at)
        if starts >= self._limits.max_worker_deaths:
            problem = f"{starts} workers died while they ran this job"
            self._give_up(lane, delivery, "max_worker_deaths", Failure(type="WorkerDied", message=problem))
            return
        try:
            token = make_token(self._era, delivery.run.run, self._takeover.generation, starts + 1)
        except TokenExhausted as exhausted:
            self._give_up(lane, delivery, "token_exhausted", failure_of(exhausted))
            return
        flight = Flight(lane=lane, delivery=delivery, attempt=starts + 1, token=token, started_at=now)
        lane.take_off(flight, self._identity.process)
        self._starting += 1
        self._appender.append(self._desk.started(flight), partial(self._started, flight))

    def _give_up(self, lane: Lane, delivery: Delivery, reason: str, error: Failure) -> None:
        """End a run as dead without starting it; its ack stands for the attempt that was last started."""
        attempt = max(1, lane.tracker.starts(delivery.offset))
        flight = Flight(lane=lane, delivery=delivery, attempt=attempt, token=0, started_at=self._clock.now())
        self._end(flight, DeadEnd(reason=reason, error=error))

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
            ticket = next(self._tickets)
            self._airborne[ticket] = flight
            self._executor.submit(Call(ticket, partial(call_handler, spec, flight), spec.asynchronous))

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
        return decide(
            spec,
            flight.run,
            value=done.value,
            error=done.error,
            now=self._clock.now(),
            random=self._random,
        )

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
                problem = f"no worker knows {delivery.run.handler}"
                self._give_up(
                    lane, delivery, "unknown_handler", Failure(type="UnknownHandler", message=problem)
                )

    # -- back-pressure, heartbeat, leaving ------------------------------------------------------------------

    def _throttle(self) -> None:
        """Pause fetching above the buffer limit, go on below half of it; never stop polling."""
        waiting = sum(len(lane.waiting) for lane in self._lanes.values())
        running = [n for n, lane in self._lanes.items() if lane.state is PartitionState.RUNNING]
        if not self._paused and waiting >= BUFFER_LIMIT:
            self._paused = True
            self._log.pause(running)
        elif self._paused and waiting <= BUFFER_LIMIT // 2:
            self._paused = False
            self._log.resume(running, {})

    def _beat(self) -> None:
        monotonic = self._clock.monotonic()
        if self._pulse.due(monotonic):
            self._pulse.beat(self.heartbeat(), monotonic)

    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            process=self._identity.process,
            role="worker",
            version=self._identity.version,
            host=self._identity.host,
            pid=self._identity.pid,
            started_at=self._identity.started_at,
            generation=self._takeover.generation,
            owned=tuple(
                Owned(
                    topic=self._desk.names.work(self._desk.queue),
                    partition=lane.number,
                    state=lane.state.name.lower(),
                )
                for lane in self._lanes.values()
            ),
            transactional_ids=self._log.transactional_ids,
            handlers=self._registry.names(),
            queues=(self._desk.queue,),
            in_flight=tuple(
                InFlight(
                    occurrence_id=flight.run.occurrence_id,
                    run=flight.run.run,
                    attempt=flight.attempt,
                    token=flight.token,
                    handler=flight.run.handler,
                    started_at=flight.started_at,
                )
                for flight in list(self._airborne.values())[:1000]
            ),
        )

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
