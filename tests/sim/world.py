"""A whole installation in one thread: an in-memory cluster, dispatchers and workers that are stepped, killed,
frozen, cut off and revived. What is asked of it is in `clients`, what must hold of it in `watch`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from sides import MEANS

from pipeline import codec
from pipeline.adapters.executors import InlineExecutor
from pipeline.adapters.memory import CommitFault, MemoryAppender, MemoryClock, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_feed import MemoryFeed
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core.errors import PoisonRecord, RebuildClients, RetryStep
from pipeline.core.handler import Registry
from pipeline.core.identity import Identity
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.desk import Desk
from pipeline.dispatcher import Dispatcher
from pipeline.heartbeat import Pulse
from pipeline.outbox import Outbox
from pipeline.ports import CommittedOffset, Membership, Put, Record
from pipeline.worker import Limits, Worker

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
COMPACTION_LAG_MS, DELETE_RETENTION_MS = DAY_MS, 7 * DAY_MS
STALE_AFTER_MS = DELETE_RETENTION_MS // 2
TRANSACTION_TIMEOUT_MS = 10_000
COMMIT_STAGES = ("append", "offsets", "commit", "committed")
STEPS = ("polled", "ingested", "takeover_chosen", "takeover_committed", "chosen", "snapshot", "applied")
NAMES = Names("sim")
LAYOUT = Layout(
    partitions=4, shards=2, ring=2, skew=(0, 1), bucket_width_ms=10_000, queues={"default": 2}
)  # few partitions, so that jobs meet on them


class Killed(BaseException):
    """A process ends here, in the middle of whatever it does."""


class Told:
    """Events, kept for the one who reads a failing seed."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        if action not in ("transaction", "gauges"):
            self.lines.append((action, fields))


class FaultyLog(MemoryGroupLog):
    """A log that delivers late and little, as a network does; while `cut` nothing passes at all, and this side
    learns of nothing."""

    random: Random
    cut = False
    poisoned: set[bytes]
    """Occurrences whose first run no broker takes."""

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        return [] if self.cut else super().poll(self.random.choice([0, 1, 5, limit]), timeout_ms)

    def commit(
        self, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        if self.cut:
            raise RetryStep("no broker can be reached")
        super().commit(puts, offsets, membership)

    def _append(
        self, id_: str, puts: Sequence[Put], offsets: Mapping[int, CommittedOffset], membership: Membership
    ) -> None:
        work = [put for put in puts if put.topic == NAMES.work("default")]
        bad = self.poisoned.intersection(put.key for put in work)
        if any(codec.RUN.decode(put.value or b"").run == 1 for put in work if bad and put.key in bad):
            raise PoisonRecord(f"no broker takes {bad}")
        super()._append(id_, puts, offsets, membership)

    def fence(self, *transactional_ids: str) -> None:
        if not self.cut:
            super().fence(*transactional_ids)


class Silent(Pulse):
    """No heartbeats: nobody here looks at those of dispatchers."""

    def due(self, monotonic: int) -> bool:
        return False


class LateClock:
    """A process's idea of the store's time: a lower bound of it."""

    def __init__(self, clock: MemoryClock, behind: int) -> None:
        self._clock, self._behind = clock, behind

    def now(self) -> int:
        return self._clock.now() - self._behind

    def monotonic(self) -> int:
        return self._clock.monotonic()

    def error(self) -> int:
        return self._behind

    def close(self) -> None:
        return


@dataclass
class Process:
    """A process slot: what survives a kill (index, transactional id), and the live part."""

    name: str
    build: Callable[[Process], Any]
    index: Any
    copy: Any = None
    """The index as it was at some time."""
    live: Any = None
    log: FaultyLog | None = None
    frozen: bool = False

    @property
    def id(self) -> str:
        return f"sim.{self.name}"


class World:
    """`random` is set anew by whoever decides what happens; `ids` never is, so what must be unique stays so."""

    log_class: type[FaultyLog] = FaultyLog

    def __init__(self, dispatchers: int = 2, workers: int = 0) -> None:
        self.random, self.ids = Random(0), Random(1)
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        for topic, partitions in (
            (NAMES.jobs, LAYOUT.partitions), (NAMES.work("default"), 2), (NAMES.acks("default"), 2),
            (NAMES.dead, LAYOUT.partitions), (NAMES.events, LAYOUT.partitions), (NAMES.fleet, 1), (NAMES.meta, 1),
        ):  # fmt: skip
            self.cluster.create_topic(topic, partitions)
        self.site = Site(
            names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=STALE_AFTER_MS
        )
        self.told = Told()
        self.poisoned: set[bytes] = set()
        self.handle: Callable[..., Any] = lambda ctx, **payload: None
        self.dispatchers = [Process(f"d{n}", self._dispatcher, self.new_index()) for n in range(dispatchers)]
        self.workers = [Process(f"w{n}", self._worker, None) for n in range(workers)]
        self.cluster.hook = self._hook
        self.kill_at: tuple[str, str] | None = None
        self.freeze_at: tuple[str, str] | None = None

    # -- processes ------------------------------------------------------------------------------------------

    @property
    def everybody(self) -> list[Process]:
        return [*self.dispatchers, *self.workers]

    def any_process(self) -> Process:
        return self.random.choice(self.everybody)

    def new_index(self) -> Any:
        return MemoryIndex()

    def _identity(self, process: Process) -> Identity:
        name = f"{process.name}.{self.ids.getrandbits(32):08x}"
        return Identity(process=name, host="sim", pid=1, version="0", started_at=self.clock.now())

    def _pulse(self, identity: Identity, kind: type[Pulse] = Pulse) -> Pulse:
        return kind(
            appender=MemoryAppender(self.cluster), fleet=NAMES.fleet, partitions=1, process=identity.process,
        )  # fmt: skip

    def _open(self, process: Process, topic: str, group: str) -> Callable[[Any], MemoryGroupLog]:
        def open_log(listener: Any) -> MemoryGroupLog:
            process.log = self.log_class(self.cluster, topic, group, listener, [process.id])
            process.log.random, process.log.poisoned = self.random, self.poisoned
            return process.log

        return open_log

    def _dispatcher(self, process: Process) -> Dispatcher:
        identity = self._identity(process)
        return Dispatcher(
            open_log=self._open(process, NAMES.jobs, NAMES.dispatcher_group), index=process.index, site=self.site,
            clock=LateClock(self.clock, self.random.choice([0, 0, 40, 400])), random=self.ids, identity=identity,
            pulse=self._pulse(identity, Silent), events=self.told,
            checkpoint=lambda stage: self._hook(stage, process.id),
        )  # fmt: skip

    def _worker(self, process: Process) -> Worker:
        identity = self._identity(process)
        registry = Registry()
        registry.add("sim.job", lambda ctx, **payload: self.handle(ctx, **payload))
        appender = MemoryAppender(self.cluster)
        return Worker(
            open_log=self._open(process, NAMES.work("default"), NAMES.worker_group("default")),
            appender=appender, outbox=Outbox(appender), reader=MemoryReader(self.cluster), executor=InlineExecutor(),
            registry=registry, means=MEANS, airborne={}, fleet_partitions=1,
            open_fleet=lambda: MemoryFeed(self.cluster, NAMES.fleet),
            desk=Desk(names=NAMES, layout=LAYOUT, queue="default", worker=identity.process),
            clock=self.clock, random=self.ids, identity=identity, pulse=self._pulse(identity), events=self.told,
            era=1, limits=Limits(max_worker_deaths=1_000), tickets=itertools.count(1),
        )  # fmt: skip

    def revive(self, process: Process) -> None:
        if process.live is None:
            process.live = process.build(process)

    def kill(self, process: Process) -> None:
        """kill -9: nothing is said, nothing closed; the coordinator notices sooner or later."""
        process.live = None
        if process.log is not None:
            process.log.expire()
            if self.random.random() < 0.5:
                self.cluster.time_out(process.id)

    def step(self, process: Process) -> None:
        if process.live is None or process.frozen:
            return
        try:
            process.live.step(0)
        except Killed:
            self.kill(process)
        except RebuildClients:
            process.live = None
            assert process.log is not None
            process.log.close()
            self.revive(process)

    def _hook(self, stage: str, id_: str) -> None:
        """Called at every step of a dispatcher and inside all commits: where a kill or a freeze hurts most."""
        if self.kill_at == (stage, id_):
            self.kill_at = None
            raise Killed
        if self.freeze_at == (stage, id_):
            self.freeze_at = None
            self._while_frozen(next(p for p in self.everybody if p.id == id_))

    def _while_frozen(self, process: Process) -> None:
        """SIGSTOP: its session ends, the others go on, then it is thawed and goes on too."""
        process.frozen = True
        assert process.log is not None
        process.log.expire()
        since = self.clock.now()
        for _ in range(self.random.randrange(30)):
            self.clock.advance(self.random.choice([0, 100, 1_000]))
            self.step(self.any_process())
        if self.clock.now() - since > TRANSACTION_TIMEOUT_MS:
            self.cluster.time_out(process.id)
        process.frozen = False

    # -- faults: each is one event of a script ---------------------------------------------------------------

    def step_one(self) -> None:
        self.step(self.any_process())

    def step_all(self) -> None:
        for process in self.random.sample(self.everybody, len(self.everybody)):
            self.step(process)

    def advance(self) -> None:
        self.clock.advance(self.random.randrange(1_500))

    def strike(self) -> None:
        """Kill or freeze a process, now or at some place inside its next step."""
        process = self.any_process()
        if self.random.random() < 0.15:
            self.kill(process)
            return
        place = self.random.choice(COMMIT_STAGES if process in self.workers else COMMIT_STAGES + STEPS)
        if self.random.random() < 0.5:
            self.kill_at = (place, process.id)
        else:
            self.freeze_at = (place, process.id)

    def fault(self) -> None:
        """The next commit of a process is refused, or its outcome unknown."""
        process = self.any_process()
        if process.log is not None:
            process.log.faults.append(self.random.choice(list(CommitFault)))

    def cut_off(self) -> None:
        """A network partition around one process. Its session may end meanwhile."""
        process = self.any_process()
        if process.live is not None and process.log is not None:
            process.log.cut = True
            if self.random.random() < 0.7:
                process.log.expire()

    def expire(self) -> None:
        process = self.any_process()
        if process.log is not None and process.live is not None:
            process.log.expire()

    def heal(self) -> None:
        """Who is down comes up, who is cut off is reached again."""
        for process in self.everybody:
            self.revive(process)
            assert process.log is not None
            process.log.cut = False

    def lose_index(self) -> None:
        process = self.random.choice(self.dispatchers)
        if process.live is None:
            process.index = self.new_index()

    def save_index(self) -> None:
        process = self.random.choice(self.dispatchers)
        process.copy = process.index.copy()

    def old_index(self) -> None:
        """The state directory is restored from a copy."""
        process = self.random.choice(self.dispatchers)
        if process.live is None and process.copy is not None:
            process.index = process.copy.copy()

    def compact(self) -> None:
        for number in range(LAYOUT.partitions):
            self.cluster.partition(NAMES.jobs, number).clean(
                self.clock.now(), lag_ms=COMPACTION_LAG_MS, retention_ms=DELETE_RETENTION_MS
            )

    def pass_time(self, ms: int) -> None:
        """Nothing runs for so long: sessions end, transactions time out, what is old may be compacted."""
        self.clock.advance(ms)
        for process in self.everybody:
            assert process.log is not None
            process.log.expire()
            if process.live is None:
                self.cluster.time_out(process.id)
        self.compact()

    # -- coming to rest ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults: everybody lives and steps until nothing is left to do."""
        self.kill_at = self.freeze_at = None
        for process in self.everybody:
            if process.log is not None:
                process.log.faults.clear()
            if process.live is None:
                self.cluster.time_out(process.id)
        for _ in range(600):
            self.heal()
            for process in self.everybody:
                self.step(process)
            due = self.next_due()
            if due is None and self.quiet():
                return
            ahead = 300 if due is None else due - self.clock.now()
            self.clock.advance(min(max(ahead, 50), DAY_MS))
        raise AssertionError(f"the world does not come to rest: {self.told.lines[-20:]}")

    def next_due(self) -> int | None:
        """When the next entry is due, if that is soon; what is only kept for a month (`h/`, `x/`, `k/`) is not."""
        dues = [
            due
            for process in self.dispatchers
            for number in process.live.states
            if (due := process.index.next_due(number)) is not None and due < self.clock.now() + 2 * DAY_MS
        ]
        return min(dues, default=None)

    def quiet(self) -> bool:
        owned = {n: (p, state) for p in self.dispatchers for n, state in p.live.states.items()}
        return (
            len(owned) == LAYOUT.partitions
            and all(state is PartitionState.RUNNING for _, state in owned.values())
            and all(self._read(process, number) for number, (process, _) in owned.items())
            and all(self._worked(process) for process in self.workers)
        )

    def _read(self, process: Process, number: int) -> bool:
        position = process.index.position(number)
        return position is not None and position.offset == self.cluster.partition(NAMES.jobs, number).end

    def _worked(self, process: Process) -> bool:
        assert process.log is not None
        ends = {n: self.cluster.partition(NAMES.work("default"), n).end for n in range(2)}
        return process.live.idle and all(ends[n] == at for n, at in process.log.positions().items())
