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

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.lane import NOBODY, OFFERED_BYTES, Flight, Hold, Lane
from pipeline.ledger import Outcome
from pipeline.liveness import Liveness
from pipeline.offers import Offer, OfferId
from pipeline.ports import Appender, Clock, Events, Put, Reader

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
        appender: Appender,
        reader: Reader,
        liveness: Liveness,
        clock: Clock,
        events: Events,
        airborne: dict[int, Flight],
    ) -> None:
        """`airborne` = calls in the executor by ticket, orphans among them; shared with the worker."""
        self._desk, self._appender, self._reader = desk, appender, reader
        self._liveness, self._clock, self._events = liveness, clock, events
        self._airborne = airborne
        self._acks = desk.names.acks(desk.queue)
        self._offering: dict[OfferId, list[Put]] = {}
        """Offers on their way into the log, as long as their reports have not come."""
        self._parted: dict[OfferId, tuple[int, int | None]] = {}
        """Attempts of ours that were offered or given back, with their partition and where the log says so, None as
        long as it does not: who reads further than that needs no reminder."""
        self._restarts: list[tuple[Flight, OfferId, int]] = []
        """Starts that replace a stale holder's, with that one and their own offsets, until they are read back."""
        self._again: list[tuple[Put, Callable[[Exception | None, int, int], None]]] = []
        self.beaten: list[Flight] = []
        """Starts that an offer came before, until their worker has heard of them: their handlers never begin."""
        self._tail_at = self._ghosts_at = 0

    @property
    def busy(self) -> bool:
        return bool(self._offering or self._restarts or self._again)

    # -- as the owner ---------------------------------------------------------------------------------------

    def advance(self, lanes: Iterable[Lane]) -> tuple[list[Outcome], list[Flight]]:
        """Read the news of the acks partitions. (Outcomes offered to us, flights that may be launched now.)"""
        self._send_again()
        lanes = list(lanes)
        running = [lane for lane in lanes if lane.state is PartitionState.RUNNING]
        now = self._clock.monotonic()
        if now >= self._tail_at or self._restarts:
            self._tail_at = now + TAIL_MS
            for lane in running:
                self._tail(lane)
        holding = [lane for lane in running if lane.held]
        self._liveness.watch({h.start.worker for lane in holding for h in lane.held.values()} - {self._me})
        taken = [outcome for lane in holding for outcome in self._resolve(lane)]
        launched = self._read_back(taken) if self._restarts else []
        if self._parted:
            self._forget_parted({lane.number: lane.acks_next for lane in lanes})
        return taken, launched

    def _forget_parted(self, read: Mapping[int, int]) -> None:
        """A partition that is not ours will be read anew if it ever is."""
        self._parted = {
            id_: (partition, at)
            for id_, (partition, at) in self._parted.items()
            if at is None or read.get(partition, at + 1) <= at
        }

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
                lane.released.discard(hold.id)
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
            return hold.id not in self._parted  # else the log will tell
        return self._liveness.stale(hold.start.worker)

    def _take(self, lane: Lane, hold: Hold, offer: Offer) -> list[Outcome]:
        """Somebody else's outcome, as one of ours. Bytes that are none leave the run as it was without them."""
        try:
            puts = self._checked(lane, hold, offer.puts())
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
        return [Outcome(flight, puts)]

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
        """The outcome of an attempt about to be replaced, if it was offered meanwhile."""
        known, offer = lane.reclaimed.get(earlier), lane.offers.get(earlier)
        if known is None or offer is None or not offer.complete:
            return None
        del lane.reclaimed[earlier]
        taken = self._take(lane, known[0], offer)
        return taken[0] if taken else None

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
        chunks = self._desk.offer(flight, puts)
        self._parted[flight.id] = (flight.lane.number, None)
        self._offering[flight.id] = chunks
        self._send(flight.id, flight.lane.number)
        self._events.on("offered", job=flight.run.job_id, partition=flight.lane.number)

    def _send(self, id_: OfferId, partition: int) -> None:
        missing = dict(enumerate(self._offering[id_]))

        def reported(number: int, error: Exception | None, offset: int, _at: int) -> None:
            if error is not None:
                self._again.append((missing[number], partial(reported, number)))
                return
            missing.pop(number, None)
            if not missing:
                self._offering.pop(id_, None)
                self._parted[id_] = (partition, offset)

        for number, chunk in list(missing.items()):
            self._appender.append(chunk, partial(reported, number))

    def release(self, flight: Flight) -> None:
        """Give an attempt back unspent: whoever owns the partition may start the run at once."""
        self._parted[flight.id] = (flight.lane.number, None)
        put = self._desk.released(flight, self._clock.now())
        self._appender.append(put, partial(self._released, flight, put))

    def _released(self, flight: Flight, put: Put, error: Exception | None, offset: int, _at: int) -> None:
        if error is not None:
            self._again.append((put, partial(self._released, flight, put)))
        else:
            self._parted[flight.id] = (flight.lane.number, offset)

    def _send_again(self) -> None:
        """What the log did not take. Not from within the report that said so, which may come at once."""
        again, self._again = self._again, []
        for put, done in again:
            self._appender.append(put, done)

    def stop_orphans(self, stop: Callable[[Flight], None]) -> None:
        """Stops reach what runs here without the partition too."""
        now = self._clock.monotonic()
        if now < self._ghosts_at:
            return
        self._ghosts_at = now + GHOST_MS
        for flight in [flight for flight in self._airborne.values() if flight.orphan]:
            lane = flight.lane
            lane.overhear(self._reader.tail(self._acks, lane.number, lane.acks_next, TAIL_LIMIT))
            if not flight.stopped and lane.stops.hits(flight.run):
                stop(flight)

    def left(self, partitions: Iterable[int]) -> None:
        """These are ours no more: what is read ahead of them would only take memory."""
        wanted = {flight.lane.number for flight in self._airborne.values() if flight.orphan}
        for partition in set(partitions) - wanted:
            self._reader.leave(self._acks, partition)

    def close(self) -> None:
        self._liveness.close()


def is_held(worker: str) -> bool:
    """Whether a start by `worker` has a holder: one that was given back has none."""
    return worker != NOBODY
