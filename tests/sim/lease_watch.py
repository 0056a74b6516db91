"""What must hold of a queue and its workers, told of every record in the order in which records became readable, and
of every handler call as it begins and ends.

An attempt is *excused* if its process was killed, fell silent for the whole heartbeat time-out after the attempt had
been started, left with it unfinished, or wrote its start when the partition was another's already. Only beside excused
attempts may another one of the same run begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.world import NAMES

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core import keys, offset_metadata
from pipeline.core.context import Context
from pipeline.core.errors import Undecodable
from pipeline.core.job import Ack, AckState, Run
from pipeline.core.keys import AcksKind
from pipeline.ports import CommittedOffset

if TYPE_CHECKING:
    from sim.lease_world import Process

QUEUE = "default"
WORK, ACKS, OUT = NAMES.work(QUEUE), NAMES.acks(QUEUE), "out"
STOP_MS = 2_000
"""So long after a stop stands in the log no live worker may write a start any more."""
RunId = tuple[str, int]


@dataclass(eq=False)
class Attempt:
    """A started record, and what became of it."""

    id: RunId
    token: int
    process: Process
    at: int
    offset: int
    zombie: bool
    """Whether its partition was another's already when it was written."""
    began: bool = False
    ended: bool = False
    abandoned: bool = False
    """Given up unfinished by a process that left."""
    offered: int | None = None
    """Where its complete offer stands in the log."""

    @property
    def excused(self) -> bool:
        return self.zombie or self.abandoned or self.process.killed or self.process.out_since(self.at)

    @property
    def executing(self) -> bool:
        return self.began and not self.ended and not (self.abandoned or self.process.killed)


@dataclass(eq=False)
class Fired:
    """A run that stands in the work topic."""

    run: Run
    partition: int
    offset: int
    attempts: list[Attempt] = field(default_factory=list)
    acked: Ack | None = None

    @property
    def begun(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.began]


class Watch:
    """`wrong` holds whatever a promise was broken by. `retry(run)` is told of every retry that was committed."""

    def __init__(self, now: Callable[[], int], retry: Callable[[Run], None]) -> None:
        self._now, self._retry = now, retry
        self.wrong: list[str] = []
        self.processes: dict[str, Process] = {}
        self.fired: dict[RunId, Fired] = {}
        self.open: dict[int, dict[int, RunId | None]] = {}
        """By partition and offset, ascending: runs that are not finished; None = garbage."""
        self.serials: dict[tuple[int, str], list[Fired]] = {}
        self.outputs: Counter[tuple[str, str]] = Counter()
        """How often each came, by kind and by whose attempt it is."""
        self.counted: Counter[str] = Counter()
        self._attempts: dict[tuple[str, int, int], Attempt] = {}
        self._takeovers: dict[int, tuple[int, str]] = {}
        """By partition: the highest generation in which it was taken over, and by whom."""
        self._stops: dict[str, tuple[int, int | None]] = {}
        """By occurrence: when the stop came, and up to which run it stops."""
        self._committed: dict[int, CommittedOffset] = {}
        self._garbage: list[tuple[int, int]] = []
        self._topics = {
            WORK: self._work, ACKS: self._ack, OUT: self._out, NAMES.jobs: self._job, NAMES.fleet: self._beat,
            NAMES.dead: self._dead,
        }  # fmt: skip

    def saw(self, records: Sequence[MemoryRecord]) -> None:
        for record in records:
            self._topics[record.topic()](record)

    def expect(self, holds: object, problem: str) -> None:
        if not holds:
            self.wrong.append(problem)

    def group_lost(self) -> None:
        """Generations begin anew. What nobody can read has no ack, and is buried once more."""
        self._takeovers.clear()
        self._committed.clear()
        for partition, offset in self._garbage:
            self.open[partition][offset] = None

    def check(self, committed: dict[int, CommittedOffset]) -> None:
        """Nothing was broken; `committed` = offsets of the group: none passes what is not finished."""
        for partition, offset in committed.items():
            if self._committed.get(partition) is not offset:
                self._committed[partition] = offset
                self._check_offset(partition, offset)
        assert not self.wrong, "\n".join(self.wrong)

    def _check_offset(self, partition: int, committed: CommittedOffset) -> None:
        unfinished = self.open.get(partition, {})
        lowest = next(iter(unfinished), None)
        passed = lowest is not None and lowest < committed.offset
        self.expect(not passed, f"{partition}: {committed} passes {lowest}, {unfinished.get(lowest or 0)}")
        metadata = offset_metadata.decode(*committed)
        done = [o for first, last in metadata.finished for o in range(first, last + 1) if o in unfinished]
        self.expect(not done, f"{partition}: {committed} calls {done} finished, open are {unfinished}")

    # -- records ------------------------------------------------------------------------------------------------

    def _work(self, record: MemoryRecord) -> None:
        partition, offset = record.partition(), record.offset()
        unfinished = self.open.setdefault(partition, {})
        try:
            run = codec.RUN.decode(record.value() or b"")
        except Undecodable:
            unfinished[offset] = None
            self._garbage.append((partition, offset))
            return
        id_ = (run.occurrence_id, run.run)
        self.expect(id_ not in self.fired, f"fired twice: {id_}")
        fired = self.fired[id_] = Fired(run, partition, offset)
        unfinished[offset] = id_
        if run.serial is not None:
            self.serials.setdefault((partition, run.serial), []).append(fired)

    def _dead(self, record: MemoryRecord) -> None:
        letter = codec.DEAD_LETTER.decode(record.value() or b"")
        self.counted["dead"] += 1
        if letter.run is None:
            place = self.open[letter.source_partition or 0]
            at = letter.source_offset or 0
            self.expect(place.get(at, "") is None, f"buried twice, or no garbage: {letter}")
            place.pop(at, None)

    def _job(self, record: MemoryRecord) -> None:
        run = codec.RUN.decode(record.value() or b"")
        if record.key()[:2] == b"r/":
            self._retry(run)
        else:
            self.outputs["job", run.headers["by"]] += 1

    def _out(self, record: MemoryRecord) -> None:
        self.outputs["out", (record.value() or b"").decode()] += 1

    def _beat(self, record: MemoryRecord) -> None:
        process = self.processes.get(record.key().decode())
        if process is not None and record.value() is not None:
            process.heard(self._now())

    def _ack(self, record: MemoryRecord) -> None:
        kind, value = keys.parse_acks_key(record.key()).kind, record.value()
        if kind is AcksKind.STOPPED:
            self._stopped(record.key(), value)
        elif kind is AcksKind.TAKEOVER:
            takeover = codec.TAKEOVER.decode(value or b"")
            latest, known = (takeover.generation, takeover.process), self._takeovers.get(record.partition())
            self._takeovers[record.partition()] = max(latest, known or latest)
        elif kind is AcksKind.OFFERED:
            self._offered(record)
        elif kind is AcksKind.STARTED:
            self._started(codec.ACK.decode(value or b""), record)
        else:
            self._ended(codec.ACK.decode(value or b""))

    def _stopped(self, key: bytes, value: bytes | None) -> None:
        occurrence = key[2:].decode()
        if value is None:
            self._stops.pop(occurrence, None)
        else:
            self._stops[occurrence] = (self._now(), codec.EVENT.decode(value).run)

    def _started(self, ack: Ack, record: MemoryRecord) -> None:
        known = self._attempts.get((ack.occurrence_id, ack.run, ack.token))
        if ack.state is not AckState.STARTED:
            self.counted["released"] += 1
            spent = known is not None and known.began and not known.abandoned and not known.process.killed
            self.expect(not spent, f"given back although it began: {ack}")
            return
        fired = self.fired[ack.occurrence_id, ack.run]
        self.expect(known is None, f"started twice under one token: {ack}")
        zombie = self._takeovers[record.partition()][1] != ack.worker
        attempt = Attempt(
            (ack.occurrence_id, ack.run), ack.token, self.processes[ack.worker], self._now(), record.offset(),
            zombie,
        )  # fmt: skip
        self._attempts[ack.occurrence_id, ack.run, ack.token] = attempt
        fired.attempts.append(attempt)
        at, up_to = self._stops.get(ack.occurrence_id, (self._now(), None))
        stopped = (up_to is None or ack.run <= up_to) and self._now() - at > STOP_MS
        self.expect(not stopped or zombie, f"started although stopped since {at}: {ack}")

    def _offered(self, record: MemoryRecord) -> None:
        chunk = codec.OFFERED.decode(record.value() or b"")
        attempt = self._attempts[chunk.occurrence_id, chunk.run, chunk.token]
        if chunk.last and attempt.offered is None:
            attempt.offered = record.offset()
            self.counted["offered"] += 1

    def _ended(self, ack: Ack) -> None:
        fired = self.fired[ack.occurrence_id, ack.run]
        self.expect(fired.acked is None, f"ended twice: {fired.acked}, then {ack}")
        fired.acked = ack
        self.open[fired.partition].pop(fired.offset, None)
        self.counted[str(ack.state)] += 1
        begun, won = fired.begun, self._won(fired)
        if ack.token == 0:
            left = [attempt for attempt in begun if not attempt.excused]
            self.expect(not left, f"ended by {ack} beside {left}")
        else:
            latest = max((attempt.token for attempt in begun if not attempt.zombie), default=ack.token)
            known = self._attempts.get((ack.occurrence_id, ack.run, ack.token))
            begun_or_stopped = known is not None and (known.began or ack.state is AckState.CANCELLED)
            self.expect(begun_or_stopped, f"ended by an attempt that never began: {ack}")
            self.expect(ack.token >= latest, f"{ack} of a superseded attempt, {latest} has begun")
            self.expect(won is None or ack.token == won.token, f"{ack}, but the offer of {won} had won")

    def _won(self, fired: Fired) -> Attempt | None:
        """The attempt whose offer stands before the start that would have replaced it. Nobody waits for what was begun
        when the partition was another's already: its owner may not even have heard of it."""
        for attempt in fired.attempts:
            later = [a.offset for a in fired.attempts if a.token > attempt.token]
            if attempt.zombie or attempt.offered is None:
                continue
            if attempt.offered < min(later, default=attempt.offered + 1):
                return attempt
        return None

    # -- handler calls ------------------------------------------------------------------------------------------

    def _attempt(self, ctx: Context) -> Attempt:
        return self._attempts[ctx.occurrence_id, ctx.run, ctx.token]

    def began(self, process: Process, ctx: Context) -> None:
        attempt, fired = self._attempt(ctx), self.fired[ctx.occurrence_id, ctx.run]
        told = f"{ctx.handler} {attempt.id} token {attempt.token} at {process.name}"
        self.expect(attempt.process is process, f"{told} was started by {attempt.process.name}")
        self.expect(not attempt.began, f"{told} began twice")
        attempt.began = True
        self._check_limit(process, ctx)
        if attempt.zombie or process.out_since(attempt.at):
            self.counted["zombie"] += 1
            return
        self.expect(fired.acked is None, f"{told} begins after {fired.acked}")
        others = [other for other in fired.begun if other is not attempt]
        live = [other for other in others if not other.excused]
        self.expect(not live, f"{told} begins beside {live}")
        self.counted["again"] += bool(others)
        won = self._won(fired)
        self.expect(won is None or won is attempt, f"{told} begins although {won} had won")
        self._check_tokens(attempt, told)
        self._check_serial(fired, told)

    def _check_tokens(self, attempt: Attempt, told: str) -> None:
        occurrence, run = attempt.id
        runs = [fired for n in range(run + 1) if (fired := self.fired.get((occurrence, n))) is not None]
        high = max(
            (a.token for fired in runs for a in fired.begun if a is not attempt and not a.zombie), default=0
        )
        self.expect(attempt.token > high, f"{told} is not larger than {high}")

    def _check_limit(self, process: Process, ctx: Context) -> None:
        limit = process.concurrency_of(ctx.handler)
        if limit is None:
            return
        same = [
            a for a in self._attempts.values()
            if a.process is process and a.executing and self.fired[a.id].run.handler == ctx.handler
        ]  # fmt: skip
        self.expect(len(same) <= limit, f"{len(same)} of {ctx.handler} at {process.name}")

    def _check_serial(self, fired: Fired, told: str) -> None:
        if fired.run.serial is None:
            return
        for other in self.serials[fired.partition, fired.run.serial]:
            if other is fired:
                return
            self.expect(other.acked is not None, f"{told} begins before {other.run.occurrence_id} has ended")

    def ended(self, ctx: Context) -> None:
        self._attempt(ctx).ended = True

    def abandon(self, process: Process, contexts: Iterable[Context]) -> None:
        """A process leaves with these unfinished."""
        for ctx in contexts:
            self._attempt(ctx).abandoned = True

    # -- once nothing is left to do -----------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        return not any(self.open.values())

    def check_rest(self, outputs_of: Callable[[Run], list[str]]) -> None:
        """`outputs_of(run)` = the kinds that its handler hands on."""
        wanted: Counter[tuple[str, str]] = Counter()
        for id_, fired in self.fired.items():
            self.expect(fired.acked is not None, f"lost: {id_}")
            if fired.acked is not None and fired.acked.state is AckState.SUCCEEDED:
                wanted.update(
                    (kind, f"{id_[0]}/{id_[1]}/{fired.acked.token}") for kind in outputs_of(fired.run)
                )
        missing, extra = wanted - self.outputs, self.outputs - wanted
        self.expect(not missing and not extra, f"outputs missing {dict(missing)}, too many {dict(extra)}")
        for partition, unfinished in self.open.items():
            self.expect(not unfinished, f"not finished on {partition}: {unfinished}")
