"""What one partition of a work topic must do: which of its runs may start, as which attempt, which of them somebody
else may still be executing, and what its committed offset and metadata say (DESIGN §7).

    ASSIGNED ──stable committed offset──▶ RESTORING ──own takeover record read back on acks──▶ RUNNING
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys, offset_metadata
from pipeline.core.acks import AckTracker
from pipeline.core.errors import Undecodable, UnknownFingerprint
from pipeline.core.job import Ack, AckState, Run, Takeover
from pipeline.core.keys import AcksKind
from pipeline.core.offset_metadata import Start
from pipeline.core.queues import Gate
from pipeline.core.states import PartitionState
from pipeline.offers import Offer, OfferId, read_chunk
from pipeline.past import NOBODY, Past
from pipeline.ports import CommittedOffset, Put, Record
from pipeline.stops import Stops
from pipeline.tray import Tray

HOLDERS_AT_ONCE = 4
"""Different tokens among runs that start together: room in the offset metadata is reckoned with one."""
PARKED_LIMIT = 100
PARKED_BYTES = 8 * 1024 * 1024
"""Runs without a handler that one lane keeps, and the bytes of their payloads."""
OFFERED_BYTES = 64 * 1024 * 1024
"""Bytes of offers kept at a time: beyond that the lane reads no further before they are committed."""


class Delivery(NamedTuple):
    """A run that arrived; `fired_at` = LogAppendTime of its work record, epoch ms."""

    offset: int
    run: Run
    fired_at: int


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """One attempt under way: from its started record to the commit of its outcome. `lane` is the assignment it belongs
    to; a flight whose lane was closed is an orphan: its outcome is offered, not acked."""

    lane: Lane
    delivery: Delivery
    attempt: int
    token: int
    started_at: int
    replaces: OfferId | None = None
    """The attempt of a stale holder: this start is read back first, since an offer that stands before it wins."""
    ticket: int = 0
    """Its call in the executor; 0 = not launched."""
    stopped: bool = False
    side: Tray | None = None
    opening: bytes = b""
    """How its acks begin (`codec.AckWriter`)."""
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.run = self.delivery.run

    @property
    def id(self) -> OfferId:
        run = self.delivery.run
        return OfferId(run.occurrence_id, run.run, self.token)

    @property
    def orphan(self) -> bool:
        return self.lane.state is PartitionState.CLOSED


class Hold(NamedTuple):
    """A run that was started by somebody else, who may still be executing it: it is not started here before that is
    known to be over."""

    delivery: Delivery
    start: Start

    @property
    def id(self) -> OfferId:
        run = self.delivery.run
        return OfferId(run.occurrence_id, run.run, self.start.token)


class Lane:
    """One work partition in this assignment. Used by the worker's thread only."""

    strange: str | None = None
    """Fingerprint of a record on the acks partition of which this version has no schema: it may tell of an attempt."""

    def __init__(self, number: int, gate: Gate | None = None) -> None:
        """`gate` = whether anything of the queue may start; None: nobody ever says no."""
        self.number = number
        self.gate = gate or Gate()
        self.state = PartitionState.ASSIGNED
        self.unsure = False
        """A transaction with this partition's offsets has an unknown outcome: ask the group first."""
        self.usurped = False
        """Another owner's takeover record came after ours: nothing more is started here."""
        self.guarded = False
        """Whether the guard of this assignment has been written."""
        self.stuck_since: int | None = None
        """Monotonic ms since which this takeover is under way."""
        self.tracker = AckTracker.from_committed(0, "")
        self.acks_next = 0
        """Next offset to read on the acks partition."""
        self.nonce = ""
        self._generation = 0
        self.waiting: deque[Delivery] = deque()
        self.waiting_bytes = 0
        """Bytes of payload in `waiting`."""
        self.paused = False
        """Nothing is fetched until fewer runs wait."""
        self.parked: dict[int, tuple[Delivery, int]] = {}
        """By offset: runs whose handler nobody here knows, with the monotonic ms at which they are given up."""
        self.flights: dict[int, Flight] = {}
        self.held: dict[int, Hold] = {}
        """By offset: runs that wait for what becomes of somebody else's attempt."""
        self.reclaimed: dict[OfferId, tuple[Hold, int | None]] = {}
        """By the stale holder's attempt: holds that were started anew, with the offset of that start once known."""
        self._rewritten: dict[OfferId, int] = {}
        """Of those whose new start has not been read back: up to where acks had been read when it was written."""
        self.offers: dict[OfferId, Offer] = {}
        self.released: dict[OfferId, int] = {}
        """Attempts of others that were given back, with the offset of the record that says so, until it is applied."""
        self.stops = Stops()
        self._busy_serials: dict[str, int] = {}
        """By serial group: the offset of its run that has started, or that somebody else holds."""
        self._past = Past(CommittedOffset(0))
        self.acked = self._past.acked
        """Of a group that has forgotten what was finished."""

    # -- taking over ----------------------------------------------------------------------------------------

    def opened(self, committed: CommittedOffset | None) -> None:
        """The group's stable offset is known: from it come the mark, the finished set and earlier starts."""
        self._past = Past(committed or CommittedOffset(0))
        self.acked, self.acks_next = self._past.acked, self._past.acks_offset
        self.state = self.state.advance(PartitionState.RESTORING)

    def takeover(self, record: Takeover, acks_topic: str) -> Put:
        self.nonce, self._generation = record.nonce, record.generation
        return Put(acks_topic, self.number, keys.takeover_key(self.number), codec.TAKEOVER.encode(record))

    def restore(self, records: Iterable[Record]) -> bool:
        """Learn from the acks partition what earlier owners started. True once our own takeover record came back:
        nothing that one of them committed can lie behind it."""
        for record in records:
            self.acks_next = (record.offset() or 0) + 1
            if self._learn(record):
                self._restored()
                self.state = self.state.advance(PartitionState.RUNNING)
                return True
        return False

    def _learn(self, record: Record) -> bool:
        key, value = record.key() or b"", record.value()
        try:
            kind = keys.parse_acks_key(key).kind
            if kind is AcksKind.STOPPED:
                self.stops.learn(record)
            elif value is None:
                return False
            elif kind is AcksKind.TAKEOVER:
                return codec.TAKEOVER.decode(value).nonce == self.nonce
            elif kind is AcksKind.STARTED:
                ack = codec.ACK.decode(value)
                if _is_start(key, ack):
                    self._past.started(ack, self.offers)
            elif kind is AcksKind.OFFERED:
                self._add_chunk(key, value, record.offset() or 0)
            elif self._past.forgotten:
                self._past.ended(key, codec.ACK.decode(value))
        except Undecodable as problem:
            self._noted(problem)
        return False

    def _noted(self, problem: Undecodable) -> None:
        """What nobody can read started nothing; the acks topic is compacted, not owed. But somebody else may be able to
        read it: whether that version was announced is for the worker to ask."""
        if isinstance(problem, UnknownFingerprint):
            self.strange = f"{problem.fingerprint:016x}"

    def _restored(self) -> None:
        self.tracker, tokens = self._past.restored(self.acks_next)
        self.offers = {id_: offer for id_, offer in self.offers.items() if id_.token in tokens}

    def close(self) -> None:
        self.state = self.state.advance(PartitionState.CLOSED)
        for gone in (self.waiting, self.parked, self.held, self.reclaimed, self.offers, self.flights):
            gone.clear()

    # -- news of the acks partition -------------------------------------------------------------------------

    @property
    def listening(self) -> bool:
        """Whether somebody else's attempts are waited for."""
        return bool(self.held or self.reclaimed or self.tracker.recovering)

    def follow(self, records: Sequence[Record]) -> int:
        """What stands on the acks partition behind our takeover record: nearly all of it is our own. The number of
        offers that came too late."""
        listening, late = self.listening, 0
        for record in records:
            key = record.key() or b""
            head = key[:2]
            if head == b"t/" or (head == b"s/" and not listening):
                continue
            try:
                late += self._news(head, key, record)
            except Undecodable as problem:
                self._noted(problem)
        if records:
            self.acks_next = (records[-1].offset() or 0) + 1
        if (self.offers or self.released) and not self.tracker.recovering:
            self._forget_strangers()
        return late

    def _forget_strangers(self) -> None:
        """All that a predecessor started has been delivered: news of other attempts concern nobody."""
        held = {hold.id for hold in self.held.values()}
        self.released = {id_: at for id_, at in self.released.items() if id_ in held}
        if self.offers:
            awaited = held | self.reclaimed.keys() | {flight.id for flight in self.flights.values()}
            self.offers = {id_: offer for id_, offer in self.offers.items() if id_ in awaited}

    def overhear(self, records: Sequence[Record]) -> None:
        """News of a partition that was lost, for what still runs of it: only its stops concern us."""
        for record in records:
            self.acks_next = (record.offset() or 0) + 1
            if (record.key() or b"")[:2] == b"x/":
                with suppress(Undecodable):
                    self.stops.learn(record)

    def _news(self, head: bytes, key: bytes, record: Record) -> bool:
        """Take one in. Whether it is an offer that nobody waits for any more."""
        value = record.value()
        if head == b"x/":
            self.stops.learn(record)
        elif value is None:
            return False
        elif head == b"o/":
            # One of an older generation was long on its way: its writer has lost the partition, and not we.
            other = codec.TAKEOVER.decode(value)
            ours = key != keys.takeover_key(self.number) or other.nonce == self.nonce
            self.usurped |= not ours and other.generation >= self._generation
        elif head == b"s/":
            ack = codec.ACK.decode(value)
            if ack.state is AckState.RELEASED and _is_start(key, ack):
                self.released[OfferId(ack.occurrence_id, ack.run, ack.token)] = record.offset() or 0
        elif head == b"f/":
            return not self._add_chunk(key, value, record.offset() or 0)
        return False

    def _add_chunk(self, key: bytes, value: bytes, offset: int) -> bool:
        """Whether an offer counts: not one that comes after the start that replaces its attempt."""
        chunk = read_chunk(key, value)
        id_ = OfferId(chunk.occurrence_id, chunk.run, chunk.token)
        if self.state is PartitionState.RUNNING and not self._awaited(id_, offset):
            return False
        self.offers.setdefault(id_, Offer(offset)).add(chunk)
        return True

    def _awaited(self, id_: OfferId, offset: int) -> bool:
        if id_ in self.reclaimed:
            _, restarted = self.reclaimed[id_]
            return restarted is None or offset < restarted
        return self.tracker.recovering or any(hold.id == id_ for hold in self.held.values())

    @property
    def offered_bytes(self) -> int:
        return sum(offer.size for offer in self.offers.values()) if self.offers else 0

    # -- runs -----------------------------------------------------------------------------------------------

    def deliver(self, offset: int) -> bool:
        """Whether this record is to be run: False if it was finished, or delivered in this assignment."""
        return self.tracker.deliver(offset)

    def was_acked(self, offset: int, run: Run) -> bool:
        """Whether this run, which was just delivered, was acked before the group forgot it. It is finished then."""
        if not self.acked.took(offset, run):
            return False
        self.tracker.finish(offset)
        return True

    def startable(self, limit: int, busy: Callable[[Run], bool] | None = None) -> Iterator[Delivery]:
        """Waiting runs that may start now, at most `limit`: not those for whose handler `busy` says so, and of a serial
        group one at a time, in log order. Whoever takes one calls `take_off`, or gives it up."""
        if self.state is not PartitionState.RUNNING or self.usurped or self.gate.closed:
            return
        room = self.tracker.room()
        if not room and self.waiting and self.tracker.starts(self.waiting[0].offset):
            room = 1  # its start replaces one that the metadata has room for already
        limit = min(limit, room, len(self.waiting))
        skipped: list[Delivery] = []
        tokens: set[tuple[int, int]] = set()
        passed: set[str] = set()
        while limit > 0 and self.waiting and len(tokens) <= HOLDERS_AT_ONCE:
            delivery = self.waiting.popleft()
            run = delivery.run
            serial = run.serial
            if serial is not None and (serial in self._busy_serials or serial in passed):
                skipped.append(delivery)
            elif busy is not None and busy(run):
                if serial is not None:
                    passed.add(serial)
                skipped.append(delivery)
            else:
                if serial is not None:
                    self._busy_serials[serial] = delivery.offset
                self.waiting_bytes -= len(run.payload)
                limit -= 1
                tokens.add((run.run, self.tracker.starts(delivery.offset)))
                yield delivery
        self.waiting.extendleft(reversed(skipped))

    def purged(self) -> list[Delivery]:
        """Runs that wait here, were never started, and are meant by a purge of the queue. Whoever takes them ends them:
        no more at a time than the metadata has room for, and none before those have committed."""
        end = self.gate.end(self.number)
        if not (self._queued_below(end) or self.parked) or self.usurped:
            return []
        if self.state is not PartitionState.RUNNING or any(
            not flight.token for flight in self.flights.values()
        ):
            return []
        room, found = self.tracker.room(), list[Delivery]()
        begun: list[Delivery] = []
        while self._queued_below(end) and len(found) < room:
            delivery = self.waiting.popleft()
            (begun if self.tracker.starts(delivery.offset) else found).append(delivery)
        self.waiting.extendleft(reversed(begun))
        self.waiting_bytes -= sum(len(delivery.run.payload) for delivery in found)
        parked = [offset for offset in self.parked if offset < end and not self.tracker.starts(offset)]
        found += [self.parked.pop(offset)[0] for offset in parked[: room - len(found)]]
        return found

    def _queued_below(self, offset: int) -> bool:
        return bool(self.waiting) and self.waiting[0].offset < offset

    @property
    def restless(self) -> bool:
        """Whether the loop should come back soon: a takeover is under way, or runs wait for a place or a holder."""
        if self.held or self.state in (PartitionState.ASSIGNED, PartitionState.RESTORING):
            return True
        if self.gate.closed:  # only a purge takes anything then, and that nothing which was ever started
            purging = self._queued_below(self.gate.end(self.number))
            return purging and not self.tracker.starts(self.waiting[0].offset)
        return bool(self.waiting or self.reclaimed)

    def wait(self, delivery: Delivery) -> None:
        self.waiting.append(delivery)
        self.waiting_bytes += len(delivery.run.payload)

    def wait_first(self, delivery: Delivery) -> None:
        """Wait in front of all others: its turn had come before."""
        self.waiting.appendleft(delivery)
        self.waiting_bytes += len(delivery.run.payload)

    def hold(self, hold: Hold) -> None:
        """Wait for what becomes of somebody else's attempt. Its serial group waits with it."""
        self.held[hold.delivery.offset] = hold
        if hold.delivery.run.serial is not None:
            self._busy_serials[hold.delivery.run.serial] = hold.delivery.offset

    def let_go(self, hold: Hold) -> None:
        """The attempt is over, or another one begins: the run may start again."""
        del self.held[hold.delivery.offset]
        if hold.delivery.run.serial is not None:
            self._free(hold.delivery.run.serial, hold.delivery.offset)
        self.wait_first(hold.delivery)

    def reclaimed_from(self, delivery: Delivery) -> OfferId | None:
        """The attempt of a stale holder that a waiting run would replace."""
        last = self.tracker.last_start(delivery.offset) if self.reclaimed else None
        if last is None:
            return None
        id_ = OfferId(delivery.run.occurrence_id, delivery.run.run, last.token)
        return id_ if id_ in self.reclaimed else None

    def forget(self, earlier: OfferId | None) -> None:
        """Nobody waits for the outcome of this attempt any more."""
        if earlier is not None:
            self.reclaimed.pop(earlier, None)
            self._rewritten.pop(earlier, None)
            self.offers.pop(earlier, None)

    def _free(self, serial: str, offset: int) -> None:
        """The run of a serial group at this offset is over; one that never started held nothing."""
        if self._busy_serials.get(serial) == offset:
            del self._busy_serials[serial]

    def given_back(self, hold: Hold) -> None:
        """The attempt was released: it does not count, and nobody holds the run."""
        spent = hold.start.starts - 1
        earlier = Start(spent, hold.start.token, NOBODY) if spent else None
        self.tracker.forget_start(hold.delivery.offset, earlier)

    def released_own(self, flight: Flight) -> None:
        """Our own attempt was given back; its offset stays unfinished."""
        self.flights.pop(flight.delivery.offset, None)
        spent = flight.attempt - 1
        self.tracker.forget_start(
            flight.delivery.offset, Start(spent, flight.token, NOBODY) if spent else None
        )

    def adopt(self, hold: Hold, flight: Flight) -> None:
        """The attempt is our own, from an earlier assignment: it goes on as if nothing had happened."""
        del self.held[hold.delivery.offset]
        flight.lane, flight.delivery = self, hold.delivery
        self.flights[hold.delivery.offset] = flight
        self.tracker.begin(hold.delivery.offset, hold.start)

    def can_park(self, run: Run) -> bool:
        """Whether one more run fits into `parked`, by number and by bytes of payload."""
        held = sum(len(delivery.run.payload) for delivery, _ in self.parked.values())
        return len(self.parked) < PARKED_LIMIT and held + len(run.payload) <= PARKED_BYTES

    def take_off(self, flight: Flight, worker: str) -> None:
        self.flights[flight.delivery.offset] = flight
        if flight.replaces is None:
            self.tracker.begin(flight.delivery.offset, _start(flight.attempt, flight.token, worker))
        else:
            self._rewritten[flight.replaces] = self.acks_next

    def replaced(self, flight: Flight, worker: str) -> None:
        """The start that replaces a stale holder's was read back. Until now that one's stood in the metadata."""
        self.forget(flight.replaces)
        self.tracker.begin(flight.delivery.offset, Start(flight.attempt, flight.token, worker))

    def finished(self, offsets: Iterable[int]) -> None:
        """These outcomes have committed."""
        for offset in offsets:
            self.tracker.finish(offset)
            flight = self.flights.pop(offset, None)
            if flight is not None and flight.run.serial is not None:
                self._free(flight.run.serial, offset)
            if flight is not None and self.offers:
                self.offers.pop(flight.id, None)

    # -- what is committed ----------------------------------------------------------------------------------

    def committable(self, finishing: Iterable[int]) -> CommittedOffset:
        return CommittedOffset(*self.tracker.committable(finishing, self.acks_floor))

    @property
    def acks_floor(self) -> int:
        """Where the next owner begins to read the acks partition: not behind an offer that is not committed, a release
        of a start that the metadata still shows, a start that it does not show yet, or a stop that still matters; at
        its beginning as long as runs may come that only acks call finished."""
        if self.acked:
            return 0
        offered = [offer.since for offer in self.offers.values()] if self.offers else []
        given_back = self.released.values()
        return min(self.acks_next, self.stops.since, *offered, *given_back, *self._rewritten.values())

    def oldest(self) -> Delivery | None:
        """The unfinished run with the lowest offset, as far as any is here."""
        heads = [flight.delivery for flight in self.flights.values()]
        heads += [hold.delivery for hold in self.held.values()]
        heads += [delivery for delivery, _ in self.parked.values()]
        return min((*heads, *self.waiting), key=lambda delivery: delivery.offset, default=None)


_start = lru_cache(maxsize=64)(Start)
"""Nearly all runs that start at the same time are first attempts of first runs."""


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
