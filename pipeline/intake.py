"""What arrives from the work topic: what waits for its start here, and what ends without one (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline import codec
from pipeline.core.admission import MINUTE_MS, Limits, check_run, killed, nobody_knows, too_old
from pipeline.core.errors import Undecodable, UnknownFingerprint
from pipeline.core.handler import Cancelled, DeadEnd, Decision
from pipeline.core.job import Run
from pipeline.core.registry import HandlerSpec, Registry
from pipeline.desk import Desk
from pipeline.lane import Delivery, Flight, Hold, Lane
from pipeline.leases import is_held
from pipeline.ledger import Ledger
from pipeline.ports import Clock, Events, Put, Record


class Intake:
    """Used by the worker's thread only."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        desk: Desk,
        registry: Registry,
        limits: Limits,
        clock: Clock,
        events: Events,
        announced: Callable[[str], bool],
    ) -> None:
        """`announced(fingerprint)`: whether a newer version has told of that schema. Raises StoreUnreachable."""
        self._announced = announced
        self._ledger = ledger
        self._desk = desk
        self._registry = registry
        self._limits = limits
        self._clock = clock
        self._events = events
        self._letters: dict[tuple[int, int], Put] = {}
        """Dead letters of unreadable records by (partition, offset), until it is their turn."""
        self._told: tuple[int, set[str]] = (0, set())
        """The unknown handlers told of in this minute."""

    def receive(self, records: Sequence[Record], lanes: Mapping[int, Lane]) -> None:
        for record in records:
            lane = lanes.get(record.partition() or 0)
            offset = record.offset()
            if lane is None or offset is None:
                continue
            earlier = lane.tracker.recovered(offset)
            if not lane.tracker.deliver(offset):
                continue  # finished before us, or delivered again within this assignment
            try:
                run = codec.RUN.decode(record.value() or b"")
                check_run(run, key=record.key(), queue=self._desk.queue)
            except Undecodable as problem:
                if not self._left_to_newer(lane, offset, problem):
                    self._unreadable(lane, record, problem)
                continue
            if lane.acked and lane.was_acked(offset, run):
                continue
            delivery = Delivery(offset, run, record.timestamp()[1])
            if earlier is not None and is_held(earlier.worker):
                lane.hold(Hold(delivery, earlier))
                self._events.on("held", partition=lane.number, job=run.job_id, worker=earlier.worker)
            else:
                self._admit(lane, delivery)

    def _admit(self, lane: Lane, delivery: Delivery) -> None:
        """A few runs that nobody here can handle are parked; more would make the offset metadata too long."""
        if self._registry.get(delivery.run.handler) is not None:
            lane.wait(delivery)
            return
        self._tell_unknown(delivery.run)
        if not self._limits.outdated(delivery.run) and lane.can_park(delivery.run):
            deadline = self._clock.monotonic() + self._limits.unknown_handler_ms
            lane.parked[delivery.offset] = (delivery, deadline)
        else:
            lane.wait(delivery)

    def _tell_unknown(self, run: Run) -> None:
        minute = self._clock.monotonic() // MINUTE_MS
        if self._told[0] != minute:
            self._told = (minute, set())
        if run.handler not in self._told[1]:
            self._told[1].add(run.handler)
            self._events.on("unknown_handler", handler=run.handler, job=run.job_id)

    def _left_to_newer(self, lane: Lane, offset: int, problem: Undecodable) -> bool:
        """Whether the record is of a version that was announced and is unknown here. Its offset is never called
        finished, so a worker that knows it will get it (DESIGN §3)."""
        if not isinstance(problem, UnknownFingerprint) or not self._announced(f"{problem.fingerprint:016x}"):
            return False
        reason = f"{problem}, which was announced: upgrade this process"
        self._events.on("schema_unknown", partition=lane.number, offset=offset, reason=reason)
        return True

    def _unreadable(self, lane: Lane, record: Record, problem: Undecodable) -> None:
        offset = record.offset() or 0
        letter = self._desk.unreadable(lane, record, str(problem), self._clock.now())
        self._letters[lane.number, offset] = letter
        blank = Run(
            job_id="", occurrence_id="", due_at=0, run=1, queue=self._desk.queue, handler="", created_at=0,
            nominal_at=0, idempotency_key="", payload=record.value() or b"",
        )  # fmt: skip
        lane.wait(Delivery(offset, blank, record.timestamp()[1]))
        self._events.on("unreadable", partition=lane.number, offset=offset, reason=str(problem))

    def forget(self, partitions: Sequence[int]) -> None:
        """These are somebody else's now: their next owner reads them again."""
        self._letters = {place: put for place, put in self._letters.items() if place[0] not in partitions}

    # -- runs that end without being started ----------------------------------------------------------------

    def ended(self, lane: Lane, delivery: Delivery, spec: HandlerSpec | None, starts: int, now: int) -> bool:
        """Whether this run, whose turn it is, ends here instead: nobody's handler, stopped, too old, or a killer of
        workers, which started it `starts` times. In its turn, since what ends early makes the offset metadata longer
        too."""
        run = delivery.run
        if spec is None:
            self._turn_away(lane, delivery)
        elif lane.stops.hits(run):
            self._events.on("stopped_run", job=run.job_id)
            flight = self._unstarted(lane, delivery)
            self._ledger.add(flight, self._desk.stopped(flight, now))
        elif (end := too_old(spec, run, now)) is not None:
            self.give_up(lane, delivery, end)
        elif starts >= self._limits.max_worker_deaths:
            self.give_up(lane, delivery, killed(starts))
        else:
            return False
        return True

    def _turn_away(self, lane: Lane, delivery: Delivery) -> None:
        letter = self._letters.pop((lane.number, delivery.offset), None)
        if letter is None:
            self.give_up(lane, delivery, self._limits.turned_away(delivery.run, self._clock.now()))
        else:
            self._ledger.add(self._unstarted(lane, delivery), [letter], "undecodable")

    def give_up(self, lane: Lane, delivery: Delivery, decision: Decision) -> None:
        """End a run that is not started."""
        flight = self._unstarted(lane, delivery)
        puts = self._desk.settle(flight, decision, self._clock.now())
        self._ledger.add(flight, puts, decision.reason if isinstance(decision, DeadEnd) else None)

    def purge(self, lanes: Iterable[Lane]) -> None:
        """End what waits in the queue and is meant by its purge. What nobody can read is buried all the same."""
        for lane in lanes:
            if purged := lane.purged():
                self._events.on("purged", partition=lane.number, runs=len(purged), reason=lane.gate.reason)
            for delivery in purged:
                if (lane.number, delivery.offset) in self._letters:
                    self._turn_away(lane, delivery)
                else:
                    self.give_up(lane, delivery, Cancelled(reason=lane.gate.reason))

    def _unstarted(self, lane: Lane, delivery: Delivery) -> Flight:
        """Stands for a run that ends without being started; its ack is that of the attempt last started."""
        attempt = max(1, lane.tracker.starts(delivery.offset))
        lane.forget(lane.reclaimed_from(delivery))
        flight = Flight(lane=lane, delivery=delivery, attempt=attempt, token=0, started_at=self._clock.now())
        lane.flights[delivery.offset] = flight
        return flight

    def give_up_parked(self, lanes: Iterable[Lane]) -> None:
        """A handler that no worker has learnt within the limit ends its runs as dead."""
        monotonic = self._clock.monotonic()
        for lane in lanes:
            expired = [offset for offset, (_, deadline) in lane.parked.items() if monotonic >= deadline]
            for offset in expired:
                delivery, _ = lane.parked.pop(offset)
                self.give_up(lane, delivery, nobody_knows(delivery.run))
