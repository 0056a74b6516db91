"""Runs on their way from waiting in a lane to their handler: chosen, and their starts written (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial

from pipeline.core.admission import Limits, Quotas
from pipeline.core.errors import DuelineError, TokenExhausted
from pipeline.core.handler import DeadEnd, failure_of
from pipeline.core.registry import Registry
from pipeline.core.token import make_token
from pipeline.desk import Desk
from pipeline.intake import Intake
from pipeline.lane import Delivery, Flight, Lane
from pipeline.leases import Leases
from pipeline.ledger import Ledger
from pipeline.offers import OfferId
from pipeline.ports import BatchAppender, Clock

AHEAD_MS = 20
AHEAD_LIMIT = 4_000
"""Runs are started ahead of free places: twice as many as came to an end in the last 20 ms, the time that a start
takes to become durable and more. Slow handlers so have hardly any, quick ones never wait for the log."""


class Starts:
    """An attempt is durable on the acks topic before its handler begins. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        appender: BatchAppender,
        desk: Desk,
        registry: Registry,
        intake: Intake,
        ledger: Ledger,
        leases: Leases,
        clock: Clock,
        limits: Limits,
        quotas: Quotas,
        generation: Callable[[], int],
        era: int,
    ) -> None:
        """`generation` = that of the group when a partition was last opened: it and `era` are part of the tokens."""
        self._appender = appender
        self._desk = desk
        self._registry = registry
        self._intake = intake
        self._ledger = ledger
        self._leases = leases
        self._clock = clock
        self._limits = limits
        self._quotas = quotas
        self._generation = generation
        self._era = era
        self.under_way = 0
        """Started records on their way."""
        self.cleared: list[Flight] = []
        """Flights whose started record is durable: their handlers may begin."""
        self.failure: Exception | None = None
        """Why a started record was not taken."""
        self._landed = self._ahead = self._counted_at = 0

    def landed(self, count: int) -> None:
        """So many attempts have come back."""
        self._landed += count

    def write(self, lanes: Iterable[Lane], airborne: int) -> None:
        """Start what may start now, beside so many attempts whose handlers have not come back."""
        self._look_ahead()
        free = self._limits.concurrency + self._ahead - airborne - self.under_way - len(self.cleared)
        busy, now = self._quotas.full if self._quotas.limited else None, self._clock.now()
        for lane in lanes:
            if free <= 0:
                break
            begun: list[Flight] = []
            for delivery in lane.startable(free, busy):
                free -= 1
                # Our clock is a lower bound of the broker's, which has stamped the record already.
                flight = self._start(lane, delivery, max(now, delivery.fired_at))
                if flight is not None:
                    begun.append(flight)
            if begun:
                records = [self._desk.started(flight) for flight in begun]
                self._appender.append_all(records, partial(self._started, begun))

    def _look_ahead(self) -> None:
        now = self._clock.monotonic()
        if now - self._counted_at >= AHEAD_MS:
            self._ahead, self._landed, self._counted_at = min(2 * self._landed, AHEAD_LIMIT), 0, now

    def _start(self, lane: Lane, delivery: Delivery, now: int) -> Flight | None:
        """The attempt that begins with this; its handler begins when that is durable. None if the run ends here, or its
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
            token = _token(self._era, run.run, self._generation(), starts + 1)
        except TokenExhausted as exhausted:
            self._intake.give_up(
                lane, delivery, DeadEnd(reason="token_exhausted", error=failure_of(exhausted))
            )
            return None
        flight = Flight(
            lane=lane, delivery=delivery, attempt=starts + 1, token=token, started_at=now,
            replaces=replaces,
        )  # fmt: skip
        lane.take_off(flight, self._desk.worker)
        self.under_way += 1
        self._quotas.count(run, 1)
        if replaces is None:
            return flight
        self._appender.append(self._desk.started(flight), partial(self._replaced, flight, replaces))
        return None

    def _started(self, flights: Sequence[Flight], error: Exception | None) -> None:
        """The starts of runs of one lane are durable."""
        self.under_way -= len(flights)
        if error is not None:
            self.failure = error
        elif not flights[0].orphan:  # else they were given back when their partition was lost
            self.cleared += flights

    def _replaced(
        self, flight: Flight, earlier: OfferId, error: Exception | None, offset: int, _at: int
    ) -> None:
        self.under_way -= 1
        if error is not None:
            self.failure = error
        elif offset < 0:  # a duplicate: what stands before it cannot be told from what stands behind
            self.failure = DuelineError("where a start stands in the log is not known")
        elif not flight.orphan:
            self._leases.restarted(flight, earlier, offset)

    def take_cleared(self) -> list[Flight]:
        cleared, self.cleared = self.cleared, []
        return cleared


_token = lru_cache(maxsize=1024)(make_token)
"""Nearly all runs that start at the same time are first attempts of first runs."""
