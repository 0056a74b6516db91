"""What one partition of a work topic must do: which of its runs may start, as which attempt, and what its
committed offset and metadata say (DESIGN §7).

    ASSIGNED ──stable committed offset──▶ RESTORING ──own takeover record read back on acks──▶ RUNNING
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipeline import codec
from pipeline.core import keys, offset_metadata
from pipeline.core.acks import AckTracker
from pipeline.core.errors import Undecodable
from pipeline.core.handler import Cancelled, DeadEnd, Decision, Retrying, Succeeded
from pipeline.core.job import Ack, AckState, AttemptRecord, DeadLetter, Event, Failure, Run, Takeover
from pipeline.core.keys import AcksKind
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.offset_metadata import OffsetMetadata, Start
from pipeline.core.states import PartitionState
from pipeline.ports import CommittedOffset, Put, Record

LEARNT_LIMIT = 200
"""Starts that a lane keeps from the acks partition beside those in the metadata: the ones at the lowest offsets."""

STARTS_AT_ONCE = 8
"""Room in the offset metadata is asked for before they start: so few cannot overshoot it."""
PARKED_LIMIT = 100
PARKED_BYTES = 8 * 1024 * 1024
"""Runs without a handler that one lane keeps, and the bytes of their payloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A run that arrived and waits for a free place."""

    offset: int
    run: Run
    fired_at: int


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """One attempt under way: from its started record to the commit of its outcome."""

    lane: Lane
    delivery: Delivery
    attempt: int
    token: int
    started_at: int

    @property
    def run(self) -> Run:
        return self.delivery.run


class Lane:
    """One work partition in this assignment. Used by the worker's thread only."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = PartitionState.ASSIGNED
        self.unsure = False
        """A transaction with this partition's offsets has an unknown outcome: ask the group first."""
        self.stuck_since: int | None = None
        """Monotonic ms since which this takeover is under way."""
        self.tracker = AckTracker.from_committed(0, "")
        self.acks_next = 0
        """Next offset to read on the acks partition while restoring; after that, past our last started record."""
        self.nonce = ""
        self.waiting: deque[Delivery] = deque()
        self.waiting_bytes = 0
        """Bytes of payload in `waiting`."""
        self.paused = False
        """Nothing is fetched until fewer runs wait."""
        self.parked: dict[int, tuple[Delivery, int]] = {}
        """By offset: runs whose handler nobody here knows, with the monotonic ms at which they are given up."""
        self.flights: dict[int, Flight] = {}
        self._busy_serials: set[str] = set()
        self._committed = 0
        self._finished: tuple[tuple[int, int], ...] = ()
        self._starts: dict[int, Start] = {}
        self._starts_limit = LEARNT_LIMIT

    # -- taking over ----------------------------------------------------------------------------------------

    def opened(self, committed: CommittedOffset | None) -> None:
        """The group's stable offset is known: from it come the mark, the finished set and earlier starts."""
        offset, text = committed or CommittedOffset(0)
        known = offset_metadata.decode(offset, text)
        self._committed, self._finished = offset, known.finished
        self._starts = dict(known.started)
        self._starts_limit = len(known.started) + LEARNT_LIMIT
        self.acks_next = known.acks_offset
        self.state = self.state.advance(PartitionState.RESTORING)

    def takeover(self, record: Takeover, acks_topic: str) -> Put:
        self.nonce = record.nonce
        return Put(acks_topic, self.number, keys.takeover_key(self.number), codec.TAKEOVER.encode(record))

    def restore(self, records: Iterable[Record]) -> bool:
        """Learn from the acks partition which attempts were started before us. True once our own takeover
        record came back: nothing that an earlier owner committed can lie behind it."""
        for record in records:
            self.acks_next = (record.offset() or 0) + 1
            if self._learn(record.key() or b"", record.value()):
                self._restored()
                self.state = self.state.advance(PartitionState.RUNNING)
                return True
        return False

    def _learn(self, key: bytes, value: bytes | None) -> bool:
        if value is None:
            return False
        try:
            kind = keys.parse_acks_key(key).kind
            if kind is AcksKind.TAKEOVER:
                return codec.TAKEOVER.decode(value).nonce == self.nonce
            if kind is AcksKind.STARTED:
                ack = codec.ACK.decode(value)
                if _is_start(key, ack):
                    self._started_before(ack)
        except Undecodable:
            return False  # what nobody can read started nothing; the acks topic is compacted, not owed
        return False

    def _started_before(self, ack: Ack) -> None:
        """Attempts of one offset are compared by token, which grows; a released one was not spent."""
        if ack.work_offset < self._committed or self._is_finished(ack.work_offset):
            return  # what finished needs no start any more
        known = self._starts.get(ack.work_offset)
        if known is not None and ack.token < known.token:
            return
        starts = ack.attempt if ack.state is AckState.STARTED else ack.attempt - 1
        self._starts.pop(ack.work_offset, None)
        if starts > 0:
            self._starts[ack.work_offset] = Start(starts, ack.token, ack.worker)
        if len(self._starts) > self._starts_limit:
            del self._starts[max(self._starts)]

    def _is_finished(self, offset: int) -> bool:
        at = bisect_right(self._finished, offset, key=lambda run: run[0]) - 1
        return at >= 0 and offset <= self._finished[at][1]

    def _restored(self) -> None:
        """Starts at offsets that never come would hold the window for ever: the highest go until one run may
        start. A run whose start is forgotten only counts one death of a worker less."""
        started = sorted(self._starts.items())
        self.tracker = self._tracker(started)
        while started and not self.tracker.room():
            started.pop()
            self.tracker = self._tracker(started)

    def _tracker(self, started: Iterable[tuple[int, Start]]) -> AckTracker:
        known = OffsetMetadata(acks_offset=self.acks_next, finished=self._finished, started=tuple(started))
        return AckTracker(self._committed, known)

    def close(self) -> None:
        self.state = self.state.advance(PartitionState.CLOSED)
        self.waiting.clear()
        self.parked.clear()

    # -- runs -----------------------------------------------------------------------------------------------

    def startable(self, limit: int) -> list[Delivery]:
        """Up to `limit` waiting runs that may start now: of a serial group one at a time, in log order."""
        if self.state is not PartitionState.RUNNING:
            return []
        chosen: list[Delivery] = []
        skipped: list[Delivery] = []
        limit = min(limit, STARTS_AT_ONCE)
        while self.waiting and len(chosen) < limit and self.tracker.room():
            delivery = self.waiting.popleft()
            serial = delivery.run.serial
            if serial is not None and serial in self._busy_serials:
                skipped.append(delivery)
                continue
            if serial is not None:
                self._busy_serials.add(serial)
            self.waiting_bytes -= len(delivery.run.payload)
            chosen.append(delivery)
        self.waiting.extendleft(reversed(skipped))
        return chosen

    @property
    def restless(self) -> bool:
        """Whether the loop should come back soon: a takeover is under way, or runs wait for a place."""
        return bool(self.waiting) or self.state in (PartitionState.ASSIGNED, PartitionState.RESTORING)

    def wait(self, delivery: Delivery) -> None:
        self.waiting.append(delivery)
        self.waiting_bytes += len(delivery.run.payload)

    def can_park(self, run: Run) -> bool:
        """Whether one more run fits into `parked`, by number and by bytes of payload."""
        held = sum(len(delivery.run.payload) for delivery, _ in self.parked.values())
        return len(self.parked) < PARKED_LIMIT and held + len(run.payload) <= PARKED_BYTES

    def take_off(self, flight: Flight, worker: str) -> None:
        self.flights[flight.delivery.offset] = flight
        self.tracker.begin(
            flight.delivery.offset, Start(starts=flight.attempt, token=flight.token, worker=worker)
        )

    def finished(self, offsets: Iterable[int]) -> None:
        """These outcomes have committed."""
        for offset in offsets:
            self.tracker.finish(offset)
            flight = self.flights.pop(offset, None)
            if flight is not None and flight.run.serial is not None:
                self._busy_serials.discard(flight.run.serial)

    def committable(self, finishing: Iterable[int]) -> CommittedOffset:
        return CommittedOffset(*self.tracker.committable(finishing, self.acks_next))


def _is_start(key: bytes, ack: Ack) -> bool:
    """Whether a decoded record is a start that a worker wrote: what else is kept here goes into the metadata of
    every later commit, which must be readable."""
    if ack.state not in (AckState.STARTED, AckState.RELEASED) or ack.attempt < 1 or ack.work_offset < 0:
        return False
    try:
        offset_metadata.check_start(Start(ack.attempt, ack.token, ack.worker))
    except ValueError:
        return False
    return key == keys.started_key(ack.occurrence_id, ack.run, ack.token)


# -- outcomes as records ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where the records of outcomes go, and in whose name."""

    names: Names
    layout: Layout
    queue: str
    worker: str

    def started(self, flight: Flight) -> Put:
        ack = self._ack(flight, AckState.STARTED, flight.started_at)
        key = keys.started_key(ack.occurrence_id, ack.run, ack.token)
        return self._put(flight, key, ack)

    def released(self, flight: Flight, now: int) -> Put:
        """The attempt ends unspent: whoever owns the partition next may start it at once."""
        ack = self._ack(flight, AckState.RELEASED, now)
        key = keys.started_key(ack.occurrence_id, ack.run, ack.token)
        return self._put(flight, key, ack)

    def settle(self, flight: Flight, decision: Decision, now: int) -> list[Put]:
        """The records of an outcome, to be committed together with the offset; a retry comes last."""
        match decision:
            case Succeeded():
                terminal = self._terminal(flight, AckState.SUCCEEDED, now, result=decision.result)
                return [terminal, *self._done(flight.run, AckState.SUCCEEDED, now)]
            case Cancelled():
                error = Failure(type="Cancel", message=decision.reason)
                terminal = self._terminal(flight, AckState.CANCELLED, now, error=error)
                return [terminal, *self._done(flight.run, AckState.CANCELLED, now)]
            case DeadEnd():
                terminal = self._terminal(flight, AckState.DEAD, now, error=decision.error)
                letter = self._dead(flight, decision, now)
                return [terminal, letter, *self._done(flight.run, AckState.DEAD, now)]
            case Retrying():
                return self._settle_retry(flight, decision, now)

    def _settle_retry(self, flight: Flight, decision: Retrying, now: int) -> list[Put]:
        home = self._home(flight.run)
        if home is None:
            problem = f"job id {flight.run.job_id[:120]!r} names no home partition to retry from"
            error = decision.error or Failure(type="NoHome", message=problem)
            return self.settle(flight, DeadEnd(reason="no_home", error=error), now)
        ack = self._terminal(flight, AckState.RETRYING, now, error=decision.error, retry_at=decision.at)
        return [ack, self._retry(flight.run, decision, home)]

    def _done(self, run: Run, state: AckState, now: int) -> list[Put]:
        """The fact that ends a job with a key or a schedule: its owner frees the key when it reads it (DESIGN §4)."""
        home = self._home(run)
        if home is None or (run.key is None and run.schedule_id is None):
            return []
        done = Event(
            id=run.occurrence_id,
            kind="done",
            at=now,
            job_id=run.job_id,
            occurrence_id=run.occurrence_id,
            run=run.run,
            outcome=state.value,
        )
        key = keys.done_key(run.occurrence_id, run.run)
        return [Put(self.names.jobs, home, key, codec.EVENT.encode(done))]

    def _home(self, run: Run) -> int | None:
        """None for a job id that is none: work records may come from anybody."""
        try:
            return self.layout.home(run.job_id)
        except Undecodable:
            return None

    def _retry(self, run: Run, decision: Retrying, home: int) -> Put:
        again = replace(run, run=run.run + 1, due_at=decision.at, failures=decision.failures)
        return Put(
            self.names.jobs,
            home,
            keys.retry_key(run.occurrence_id, run.run),
            codec.RUN.encode(again),
        )

    def _dead(self, flight: Flight, decision: DeadEnd, now: int) -> Put:
        run = flight.run
        attempt = AttemptRecord(
            run=run.run,
            attempt=flight.attempt,
            worker=self.worker,
            token=flight.token,
            at=now,
            outcome="dead",
            error=decision.error,
        )
        letter = DeadLetter(
            reason=decision.reason,
            detail=decision.error.message if decision.error is not None else "",
            at=now,
            source_topic=self.names.work(self.queue),
            source_partition=flight.lane.number,
            source_offset=flight.delivery.offset,
            run=run,
            attempts=(attempt,),
        )
        return Put(
            self.names.dead,
            self._home(run) or 0,
            run.occurrence_id.encode(),
            codec.DEAD_LETTER.encode(letter),
        )

    def unreadable(self, lane: Lane, record: Record, reason: str, now: int) -> Put:
        """The dead letter of a work record that nobody can decode."""
        offset, topic = record.offset() or 0, self.names.work(self.queue)
        letter = DeadLetter(
            reason="undecodable",
            detail=reason,
            at=now,
            source_topic=topic,
            source_partition=lane.number,
            source_offset=offset,
            record_key=record.key(),
            value=record.value(),
        )
        place = keys.place_key(topic, lane.number, offset)
        return Put(self.names.dead, 0, place, codec.DEAD_LETTER.encode(letter))

    def _terminal(
        self,
        flight: Flight,
        state: AckState,
        now: int,
        *,
        error: Failure | None = None,
        result: bytes | None = None,
        retry_at: int | None = None,
    ) -> Put:
        ack = replace(self._ack(flight, state, now), error=error, result=result, retry_at=retry_at)
        return self._put(flight, keys.terminal_key(ack.occurrence_id, ack.run, ack.attempt), ack)

    def _ack(self, flight: Flight, state: AckState, at: int) -> Ack:
        run = flight.run
        return Ack(
            job_id=run.job_id,
            occurrence_id=run.occurrence_id,
            run=run.run,
            attempt=flight.attempt,
            token=flight.token,
            worker=self.worker,
            handler=run.handler,
            state=state,
            at=at,
            work_offset=flight.delivery.offset,
            started_at=flight.started_at,
        )

    def _put(self, flight: Flight, key: bytes, ack: Ack) -> Put:
        return Put(self.names.acks(self.queue), flight.lane.number, key, codec.ACK.encode(ack))
