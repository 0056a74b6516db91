"""Outcomes on their way into the log: one transaction carries acks, what follows from them, and the offsets.

One transaction at a time is under way, while the worker goes on receiving and starting. What it carries was chosen
together with ownership and group metadata, and is fenced by those, whatever becomes of either meanwhile; nothing else
may take it for lost before its end is known, so whoever changes what is owned here calls `settle` first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pipeline.core.acks import AckTracker
from pipeline.core.errors import OutcomeUnknown, PoisonRecord, RetryStep
from pipeline.core.handler import DeadEnd
from pipeline.core.job import Failure
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.lane import Flight, Lane
from pipeline.ports import Aside, Clock, Events, GroupLog, Pending, Put

BATCH_LIMIT = 1_000
"""Outcomes of one ack transaction at most. A transaction costs some milliseconds however much it carries: so many
that a full-speed worker spends more time on its runs than on them."""
SOON = 200
SOON_MS = 20
"""So many outcomes, or so long after the first, and they are committed though more are about to come."""
PATIENCE_MS = 40_000
"""A transaction takes less, whatever goes wrong with it. One that does not come back stops the loop, for the watchdog
to end the process: else it would go on for ever and commit nothing."""


@dataclass(slots=True, eq=False)
class Outcome:
    """What an attempt came to, waiting for its ack transaction. `dead` = the reason, if it ended so."""

    flight: Flight
    puts: list[Put]
    dead: str | None = None

    @property
    def offset(self) -> int:
        return self.flight.delivery.offset


class AtOnce(NamedTuple):
    """An `Aside` for whoever has one thread: the call is made when its result is asked for, that is at once."""

    call: Callable[[], None]

    def done(self) -> bool:
        return True

    def result(self) -> None:
        self.call()


class _Sending(NamedTuple):
    """A transaction under way, since `began` (monotonic ms)."""

    batch: list[Outcome]
    ending: dict[Lane, list[int]]
    commit: Pending
    began: int


class Ledger:
    """Outcomes that are not committed yet. Used by the worker's thread only."""

    def __init__(
        self,
        *,
        log: GroupLog,
        desk: Desk,
        clock: Clock,
        events: Events,
        guards: WorkGuards | None = None,
        aside: Aside = AtOnce,
    ) -> None:
        """`guards` None: nothing notices that the group was lost. `aside` makes the commits."""
        self._guards = guards
        self._log = log
        self._desk = desk
        self._clock = clock
        self._events = events
        self._aside = aside
        self._outcomes: list[Outcome] = []
        """Those that wait."""
        self._sending: _Sending | None = None
        self._limit = BATCH_LIMIT
        self._since = 0
        """Monotonic ms since which something waits."""

    def __len__(self) -> int:
        return len(self._outcomes) + (0 if self._sending is None else len(self._sending.batch))

    @property
    def full(self) -> bool:
        """Whether more than one transaction is waiting."""
        return len(self._outcomes) > self._limit

    def add(self, flight: Flight, puts: list[Put], dead: str | None = None) -> None:
        if not self._outcomes:
            self._since = self._clock.monotonic()
        self._outcomes.append(Outcome(flight, puts, dead))

    def take_orphans(self) -> list[Outcome]:
        """Outcomes of closed lanes: a late ack of a moved partition cannot enter, so they leave. `settle` before."""
        orphans = [outcome for outcome in self._outcomes if outcome.flight.orphan]
        if orphans:
            self._keep(lambda outcome: not outcome.flight.orphan)
        return orphans

    def _keep(self, wanted: Callable[[Outcome], bool]) -> None:
        self._outcomes = [outcome for outcome in self._outcomes if wanted(outcome)]

    # -- transactions ---------------------------------------------------------------------------------------

    def advance(self, more: bool) -> list[Outcome]:
        """See what became of the transaction under way, send the next if there is none and it is time: `more` outcomes
        may be about to come, and share it. What has committed."""
        committed = self._look()
        if self._sending is None and self._due(more):
            self._send()
            committed += self._look()
        return committed

    def _look(self) -> list[Outcome]:
        sending = self._sending
        if sending is None:
            return []
        over = sending.commit.done() or self._clock.monotonic() - sending.began > PATIENCE_MS
        return self.settle() if over else []

    def _due(self, more: bool) -> bool:
        count = len(self._outcomes)
        return count > 0 and (not more or count >= SOON or self._clock.monotonic() - self._since >= SOON_MS)

    def commit(self) -> list[Outcome]:
        """All that can be committed with one more transaction, now. What has committed."""
        committed = self.settle()
        self._send()
        return committed + self.settle()

    def _send(self) -> None:
        """Send what is waiting, as much as one transaction takes."""
        sure = [o for o in self._outcomes if not o.flight.lane.unsure]
        batch, later = sure[: self._limit], sure[self._limit :]
        if not batch:
            return
        ending: dict[Lane, list[int]] = {}
        for outcome in batch:
            ending.setdefault(outcome.flight.lane, []).append(outcome.offset)
        try:
            commit = self._chosen(batch, ending)
        except RetryStep as retry:
            self._refused(batch, retry)
            return
        now = self._clock.monotonic()
        self._outcomes = [o for o in self._outcomes if o.flight.lane.unsure] + later
        self._since = now
        self._sending = _Sending(batch, ending, self._aside(commit), now)

    def _chosen(self, batch: Sequence[Outcome], ending: Mapping[Lane, Sequence[int]]) -> Callable[[], None]:
        """The transaction, ready to be made. RetryStep if a partition is being moved."""
        # Ownership and metadata are taken together, now, and never again for this batch (H2).
        membership = self._log.membership()
        offsets = {lane.number: lane.committable(ended) for lane, ended in ending.items()}
        if not membership.owned.issuperset(offsets):
            raise RetryStep("a partition of this batch is being moved")
        jobs = self._desk.names.jobs
        puts = [put for outcome in batch for put in outcome.puts]
        puts += self._guarding(ending, membership.generation)
        # Retries last: their owner can read one only after the ack that it follows from is in the log.
        last = [put for put in puts if put.topic == jobs]
        if last:
            puts = [put for put in puts if put.topic != jobs] + last
        return partial(self._log.commit, puts, offsets, membership)

    def _guarding(self, lanes: Iterable[Lane], generation: int) -> list[Put]:
        """What goes with the first offset of an assignment (H20)."""
        if self._guards is None:
            return []
        return [self._guards.put(lane.number, generation) for lane in lanes if not lane.guarded]

    def settle(self) -> list[Outcome]:
        """Wait for the transaction under way, if there is one. What it has committed. A refused generation keeps the
        rest for the next one."""
        sending, self._sending = self._sending, None
        if sending is None:
            return []
        batch, committed = sending.batch, False
        try:
            sending.commit.result()
            committed = True
        except RetryStep as retry:
            self._refused(batch, retry)
        except PoisonRecord as poison:
            self._bisect(batch, poison)
        except OutcomeUnknown as unknown:
            for outcome in batch:
                outcome.flight.lane.unsure = True
            self._events.on("outcome_unknown", reason=str(unknown), outcomes=len(batch))
        finally:
            if not committed:
                self._outcomes[:0] = batch
        if committed:
            self._committed(batch, sending.ending)
        return batch if committed else []

    def _refused(self, batch: Sequence[Outcome], retry: RetryStep) -> None:
        self._events.on("ack_refused", reason=str(retry), outcomes=len(batch))

    def _committed(self, batch: Sequence[Outcome], ending: Mapping[Lane, Sequence[int]]) -> None:
        for lane, offsets in ending.items():
            lane.finished(offsets)
            lane.guarded = True
        self._limit = min(BATCH_LIMIT, self._limit * 2)
        dead = Counter(outcome.dead for outcome in batch if outcome.dead is not None)
        self._events.on("acked", outcomes=len(batch), dead=dict(dead))

    def _bisect(self, batch: Sequence[Outcome], poison: PoisonRecord) -> None:
        """Some record can never be appended: halve until it stands alone, then end that run without it."""
        if len(batch) > 1:
            self._limit = max(1, len(batch) // 2)
            return
        (outcome,) = batch
        error = Failure(type="Unappendable", message=str(poison))
        small = replace(outcome.flight.delivery.run, payload=b"{}")
        flight = replace(outcome.flight, delivery=outcome.flight.delivery._replace(run=small))
        decision = DeadEnd(reason="unappendable", error=error)
        outcome.puts, outcome.dead = self._desk.settle(flight, decision, self._clock.now()), decision.reason
        self._events.on("condemned", job=outcome.flight.run.job_id, reason=str(poison))

    def contest(self, lane: Lane) -> None:
        """Another's takeover record stands on the partition. Who owns it only the group knows: if it takes a commit of
        ours now, nobody of the group wrote that record (a foreign producer, a copy), and it counts for nothing.
        `settle` before."""
        try:
            membership = self._log.membership()
            if lane.number in membership.owned:
                guards = self._guarding([lane], membership.generation)
                self._log.commit(guards, {lane.number: lane.committable(())}, membership)
                lane.guarded, lane.usurped = True, False
                self._events.on("takeover_forged", queue=self._desk.queue, partition=lane.number)
        except RetryStep:
            return  # it is the other's, and we shall be told
        except OutcomeUnknown:
            lane.unsure = True

    def reconcile(self, lane: Lane, covered: AckTracker) -> None:
        """After an unknown outcome: what the group's stable offset covers is done, the rest is sent again."""
        mine = {outcome.offset for outcome in self._outcomes if outcome.flight.lane is lane}
        done = {
            offset for offset in sorted(mine) if not covered.deliver(offset)
        }  # it takes them in log order
        lane.finished(done)
        self._keep(lambda outcome: outcome.flight.lane is not lane or outcome.offset not in done)
        lane.unsure = False
