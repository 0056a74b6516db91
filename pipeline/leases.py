"""Leases: a run that a live worker is executing is not started elsewhere, whoever owns its partition (DESIGN §7).

No mark is kept anywhere: a run is held while a started record has no terminal ack and its worker lives. Seen from
the owner of a partition, somebody else's attempt ends in one of four ways:

    HELD ──offered──▶ its records are committed here
         ──released─▶ the run starts at once, the attempt unspent
         ──ours─────▶ adopted: the partition came back to the worker that runs it
         ──stale────▶ started anew and read back: an offer that stands before that start wins over it

Seen from a worker that lost the partition: what runs on goes on, and its outcome is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.lane import OFFERED_BYTES, Flight, Hold, Lane
from pipeline.ledger import Outcome
from pipeline.liveness import Liveness
from pipeline.offers import Offer, OfferId
from pipeline.outbox import Outbox
from pipeline.past import NOBODY
from pipeline.ports import Clock, Events, Put, Reader

TAIL_LIMIT = 5_000
"""Records of one acks partition taken in at a time."""
TAIL_MS = 20
GHOST_MS = 250
"""How often somebody else's acks partition is looked at for stops of what still runs here."""


class Leases:
    """Who holds what. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        desk: Desk,
        outbox: Outbox,
        reader: Reader,
        liveness: Liveness,
        clock: Clock,
        events: Events,
        airborne: dict[int, Flight],
    ) -> None:
        """`airborne` = calls in the executor by ticket, orphans among them; shared with the worker."""
        self._desk, self._outbox, self._reader = desk, outbox, reader
        self._liveness, self._clock, self._events = liveness, clock, events
        self._airborne = airborne
        self._acks = desk.names.acks(desk.queue)
        self._restarts: list[tuple[Flight, OfferId, int]] = []
        """Starts that replace a stale holder's, with that one and their own offsets, until they are read back."""
        self.beaten: list[Flight] = []
        """Starts that an offer came before, until their worker has heard of them: their handlers never begin."""
        self._tail_at = self._ghosts_at = 0
        self._owned: frozenset[int] = frozenset()
        self._overheard: frozenset[int] = frozenset()
        """Partitions of others that are read for the sake of what still runs here."""

    @property
    def busy(self) -> bool:
        return bool(len(self._outbox) or self._restarts)

    # -- as the owner ---------------------------------------------------------------------------------------

    def advance(self, lanes: Iterable[Lane]) -> tuple[list[Outcome], list[Flight]]:
        """Read the news of the acks partitions. (Outcomes offered to us, flights that may be launched now.)"""
        self._outbox.send_again()
        lanes = list(lanes)
        self._owned = frozenset(lane.number for lane in lanes)
        running = [lane for lane in lanes if lane.state is PartitionState.RUNNING]
        now = self._clock.monotonic()
        if now >= self._tail_at or self._restarts:
            self._tail_at = now + TAIL_MS
            for lane in running:
                self._tail(lane)
        holding = [lane for lane in running if lane.held]
        holders = {hold.start.worker for lane in holding for hold in lane.held.values()}
        if lanes:
            self._liveness.watch(holders - {self._me})
        else:
            self._liveness.close()
        taken = [outcome for lane in holding for outcome in self._resolve(lane)]
        launched = self._read_back(taken) if self._restarts else []
        self._outbox.forget({lane.number: lane.acks_next for lane in lanes})
        return taken, launched

    @property
    def _me(self) -> str:
        return self._desk.worker

    def _tail(self, lane: Lane) -> None:
        if lane.offered_bytes > OFFERED_BYTES:
            return
        late = lane.follow(self._reader.tail(self._acks, lane.number, lane.acks_next, TAIL_LIMIT))
        if late:
            self._events.on("offer_ignored", partition=lane.number, offers=late)

    def _resolve(self, lane: Lane) -> list[Outcome]:
        mine = {flight.id: flight for flight in self._airborne.values() if flight.orphan}
        outcomes: list[Outcome] = []
        for hold in list(lane.held.values()):
            offer = lane.offers.get(hold.id)
            if offer is not None and offer.complete:
                outcomes += self._take(lane, hold, offer)
            elif hold.id in lane.released:
                del lane.released[hold.id]
                lane.given_back(hold)
                lane.let_go(hold)
            elif hold.start.worker == self._me and hold.id in mine:
                lane.adopt(hold, mine[hold.id])
                lane.stops.news |= bool(len(lane.stops))  # one that was read before it was ours is told now
                self._events.on("adopted", job=hold.delivery.run.job_id, partition=lane.number)
            elif self._over(hold):
                self._events.on("reclaimed", job=hold.delivery.run.job_id, worker=hold.start.worker)
                lane.reclaimed[hold.id] = (hold, None)
                lane.let_go(hold)
        return outcomes

    def _over(self, hold: Hold) -> bool:
        """Whether its holder cannot be executing it any more."""
        if hold.start.worker == self._me:
            return hold.id not in self._outbox  # else the log will tell
        return self._liveness.stale(hold.start.worker)

    def _take(self, lane: Lane, hold: Hold, offer: Offer) -> list[Outcome]:
        """Somebody else's outcome, as one of ours. Bytes that are none leave the run as it was without them."""
        try:
            puts = self._checked(lane, hold, offer.puts())
            dead = self._died_of(puts)
        except Undecodable as problem:
            del lane.offers[hold.id]
            self._events.on("offer_unreadable", job=hold.delivery.run.job_id, reason=str(problem))
            return []
        lane.held.pop(hold.delivery.offset, None)
        run, start = hold.delivery.run, hold.start
        flight = Flight(
            lane=lane, delivery=hold.delivery, attempt=start.starts, token=start.token, started_at=0
        )
        lane.flights[hold.delivery.offset] = flight
        self._events.on("offer_taken", job=run.job_id, worker=start.worker)
        return [Outcome(flight, puts, dead)]

    def _died_of(self, puts: Sequence[Put]) -> str | None:
        """The reason, if this outcome ends its job as dead: whoever commits it tells the application. Undecodable."""
        letter = next((put.value for put in puts if put.topic == self._desk.names.dead), None)
        return None if letter is None else codec.DEAD_LETTER.decode(letter).reason

    def _checked(self, lane: Lane, hold: Hold, puts: list[Put]) -> list[Put]:
        """Undecodable unless it is what the ack transaction of this attempt may carry."""
        run = hold.delivery.run
        ack = keys.terminal_key(run.occurrence_id, run.run, hold.start.starts)
        mine = [put for put in puts if put.topic == self._acks]
        if [(put.partition, put.key) for put in mine] != [(lane.number, ack)]:
            raise Undecodable("an offer without the ack of its attempt")
        names = self._desk.names
        if any(
            names.owns(put.topic) and put.topic not in (self._acks, names.jobs, names.dead) for put in puts
        ):
            raise Undecodable("an offer with records for a topic that no worker writes")
        return puts

    def offered(self, lane: Lane, earlier: OfferId) -> Outcome | None:
        """The outcome of an attempt about to be replaced, if it was offered meanwhile. One that nobody can read is
        none: the attempt is replaced all the same."""
        known, offer = lane.reclaimed.get(earlier), lane.offers.get(earlier)
        if known is None or offer is None or not offer.complete:
            return None
        taken = self._take(lane, known[0], offer)
        if not taken:
            return None
        del lane.reclaimed[earlier]
        return taken[0]

    def restarted(self, flight: Flight, earlier: OfferId, offset: int) -> None:
        """The start that replaces `earlier` stands in the log at `offset`."""
        hold, _ = flight.lane.reclaimed[earlier]
        flight.lane.reclaimed[earlier] = (hold, offset)
        self._restarts.append((flight, earlier, offset))

    def _read_back(self, taken: list[Outcome]) -> list[Flight]:
        """Restarts whose own start was read back. One whose predecessor had offered by then is given back."""
        back = [(flight, earlier) for flight, earlier, at in self._restarts if flight.lane.acks_next > at]
        self._restarts = [r for r in self._restarts if not r[0].orphan and r[0].lane.acks_next <= r[2]]
        launched: list[Flight] = []
        for flight, earlier in back:
            lane = flight.lane
            if flight.orphan:
                continue  # given back with its lane
            won = self.offered(lane, earlier)
            if won is None:
                lane.replaced(flight, self._me)
                launched.append(flight)
            else:
                lane.forget(earlier)
                self.release(flight)
                self.beaten.append(flight)
                taken.append(won)
        return launched

    # -- without the partition ------------------------------------------------------------------------------

    def offer(self, flight: Flight, puts: Sequence[Put]) -> None:
        """Offer the outcome of an attempt to whoever owns its partition now; again until the log has it."""
        self._outbox.send(flight.id, flight.lane.number, self._desk.offer(flight, puts))
        self._events.on("offered", job=flight.run.job_id, partition=flight.lane.number)

    def release(self, flight: Flight) -> None:
        """Give an attempt back unspent: whoever owns the partition may start the run at once."""
        put = self._desk.released(flight, self._clock.now())
        self._outbox.send(flight.id, flight.lane.number, [put])

    def flush(self, timeout_ms: int) -> None:
        """Wait until the log has what was offered and given back. StoreUnreachable if it has not within the time."""
        self._outbox.flush(timeout_ms)

    def stop_orphans(self, stop: Callable[[Flight], None]) -> None:
        """Stops reach what runs here without the partition too."""
        now = self._clock.monotonic()
        if now < self._ghosts_at:
            return
        self._ghosts_at = now + GHOST_MS
        orphans = [flight for flight in self._airborne.values() if flight.orphan]
        wanted = frozenset(flight.lane.number for flight in orphans)
        self._leave(self._overheard - wanted - self._owned)
        self._overheard = wanted
        for flight in orphans:
            lane = flight.lane
            lane.overhear(self._reader.tail(self._acks, lane.number, lane.acks_next, TAIL_LIMIT))
            if not flight.stopped and lane.stops.hits(flight.run):
                stop(flight)

    def left(self, partitions: Iterable[int]) -> None:
        """These are ours no more: what is read ahead of them would only take memory."""
        wanted = {flight.lane.number for flight in self._airborne.values() if flight.orphan}
        self._leave(set(partitions) - wanted)

    def _leave(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._reader.leave(self._acks, partition)

    def close(self) -> None:
        self._liveness.close()


def is_held(worker: str) -> bool:
    """Whether a start by `worker` has a holder: one that was given back has none."""
    return worker != NOBODY
