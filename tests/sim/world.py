"""A whole installation in one thread: an in-memory cluster, dispatchers and workers that a seed steps, kills,
freezes and revives, and the promises of DESIGN §2 checked on what the log holds."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pipeline import codec
from pipeline.adapters.executors import InlineExecutor
from pipeline.adapters.memory import CommitFault, MemoryAppender, MemoryClock, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster, MemoryRecord
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core import keys
from pipeline.core.errors import RebuildClients
from pipeline.core.handler import Registry
from pipeline.core.identity import Identity
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.site import Site
from pipeline.core.states import PartitionState
from pipeline.dispatcher import Dispatcher
from pipeline.heartbeat import Pulse
from pipeline.lane import Desk
from pipeline.partition import Partition
from pipeline.ports import Put, Record
from pipeline.worker import Limits, Worker

COMPACTION_LAG_MS = 24 * 3_600_000
NAMES = Names("sim")
LAYOUT = default_layout(queues={"default": 3})


class Killed(BaseException):
    """A process ends here, in the middle of whatever it does."""


class Told:
    """Events, kept for the one who reads a failing seed."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))

    def count(self, action: str) -> int:
        return sum(1 for line, _ in self.lines if line == action)


class LaggingLog(MemoryGroupLog):
    """A log that delivers late and little, as a network does: what is committed is not always what is read."""

    random: Random

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        return super().poll(self.random.choice([0, 1, 5, limit]), timeout_ms)


@dataclass
class Process:
    """A process slot: what survives a kill (index, transactional id), and the live part."""

    name: str
    build: Callable[[Process], Any]
    index: MemoryIndex = field(default_factory=MemoryIndex)
    live: Any = None
    log: MemoryGroupLog | None = None
    frozen: bool = False


class World:
    def __init__(self, seed: int, dispatchers: int = 2, workers: int = 2) -> None:
        self.random = Random(seed)
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        for topic, partitions in (
            (NAMES.jobs, LAYOUT.partitions), (NAMES.work("default"), 3), (NAMES.acks("default"), 3),
            (NAMES.dead, LAYOUT.partitions), (NAMES.events, LAYOUT.partitions), (NAMES.fleet, 3), (NAMES.meta, 1),
        ):  # fmt: skip
            self.cluster.create_topic(topic, partitions)
        self.told = Told()
        self.client = MemoryAppender(self.cluster)
        self.jobs: dict[str, Run] = {}
        self.sent: list[Put] = []
        self.starts: list[tuple[str, int, int, int]] = []
        self.fail_first: set[str] = set()
        self.registry = Registry()
        self.registry.add("sim.job", self._handle)
        self.dispatchers = [Process(f"d{n}", self._dispatcher) for n in range(dispatchers)]
        self.workers = [Process(f"w{n}", self._worker) for n in range(workers)]
        self.cluster.hook = self._hook
        self.kill_at: tuple[str, str] | None = None
        self.freeze_at: tuple[str, str] | None = None
        for process in self.everybody:
            self.revive(process)

    # -- processes ------------------------------------------------------------------------------------------

    @property
    def everybody(self) -> list[Process]:
        return [*self.dispatchers, *self.workers]

    def _identity(self, process: Process) -> Identity:
        name = f"{process.name}.{self.random.getrandbits(32):08x}"
        return Identity(process=name, host="sim", pid=1, version="0", started_at=self.clock.now())

    def _pulse(self, identity: Identity) -> Pulse:
        return Pulse(
            appender=MemoryAppender(self.cluster), fleet=NAMES.fleet, partitions=3, process=identity.process,
            sampled=lambda _: None,
        )  # fmt: skip

    def _open(self, process: Process, topic: str, group: str) -> Callable[[Any], MemoryGroupLog]:
        def open_log(listener: Any) -> MemoryGroupLog:
            process.log = LaggingLog(self.cluster, topic, group, listener, [f"sim.{process.name}"])
            process.log.random = self.random
            return process.log

        return open_log

    def _dispatcher(self, process: Process) -> Dispatcher:
        identity = self._identity(process)
        site = Site(names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=10**12)
        return Dispatcher(
            open_log=self._open(process, NAMES.jobs, NAMES.dispatcher_group), index=process.index, site=site,
            clock=self.clock, random=self.random, identity=identity, pulse=self._pulse(identity), events=self.told,
        )  # fmt: skip

    def _worker(self, process: Process) -> Worker:
        identity = self._identity(process)
        return Worker(
            open_log=self._open(process, NAMES.work("default"), NAMES.worker_group("default")),
            appender=MemoryAppender(self.cluster), reader=MemoryReader(self.cluster), executor=InlineExecutor(),
            registry=self.registry, desk=Desk(names=NAMES, layout=LAYOUT, queue="default", worker=identity.process),
            clock=self.clock, random=self.random, identity=identity, pulse=self._pulse(identity), events=self.told,
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
                self.cluster.time_out(f"sim.{process.name}")

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

    def _hook(self, stage: str, transactional_id: str) -> None:
        """Called inside commits: the places where a kill or a freeze hurts most."""
        if self.kill_at == (stage, transactional_id):
            self.kill_at = None
            raise Killed
        if self.freeze_at == (stage, transactional_id):
            self.freeze_at = None
            self._while_frozen(next(p for p in self.everybody if f"sim.{p.name}" == transactional_id))

    def _while_frozen(self, process: Process) -> None:
        """SIGSTOP inside a commit: its session ends, the others go on, then it is thawed and goes on too."""
        process.frozen = True
        assert process.log is not None
        process.log.expire()
        for _ in range(self.random.randrange(40)):
            self.clock.advance(self.random.randrange(300))
            self.step(self.random.choice(self.everybody))
        process.frozen = False

    # -- jobs -----------------------------------------------------------------------------------------------

    def _handle(self, ctx: Any, **payload: Any) -> Any:
        self.starts.append((ctx.occurrence_id, ctx.run, ctx.attempt, ctx.token))
        if ctx.job_id in self.fail_first and ctx.run == 1:
            raise ValueError("first run fails")
        return payload

    def create(self, *, misplaced: bool = False, serial: str | None = None) -> None:
        due = self.clock.now() + self.random.randrange(-1_000, 20_000)
        job_id = anonymous_id(due, self.random.getrandbits(80))
        run = Run(
            job_id=job_id, occurrence_id=job_id, due_at=due, run=1, queue="default", handler="sim.job",
            created_at=self.clock.now(), nominal_at=due, idempotency_key=job_id, serial=serial,
            payload=json.dumps({"n": len(self.jobs)}).encode(),
        )  # fmt: skip
        home = LAYOUT.home(job_id)
        partition = self.random.randrange(LAYOUT.partitions) if misplaced else home
        put = Put(NAMES.jobs, partition, keys.job_key(job_id), codec.RUN.encode(run))
        self.client.append(put)
        self.sent.append(put)
        self.jobs[job_id] = run
        if self.random.random() < 0.2:
            self.fail_first.add(job_id)

    def send_again(self) -> None:
        """A client that never heard the acknowledgement sends the same record again."""
        recent = [put for put in self.sent[-20:] if self.created(put) > self.clock.now() - 600_000]
        if recent:
            self.client.append(self.random.choice(recent))

    def created(self, put: Put) -> int:
        return self.jobs[put.key[2:].decode()].created_at

    def garbage(self) -> None:
        put = Put(
            NAMES.jobs,
            self.random.randrange(LAYOUT.partitions),
            b"j/" + self.random.randbytes(5),
            b"\x00\xff",
        )
        self.client.append(put)

    # -- chance ---------------------------------------------------------------------------------------------

    def happen(self) -> None:
        """One event of the seed."""
        event = self.random.choices(
            [
                "step",
                "advance",
                "create",
                "odd",
                "kill",
                "freeze",
                "fault",
                "revive",
                "lose_index",
                "compact",
                "expire",
                "day",
            ],
            [60, 12, 14, 4, 1.5, 1.5, 2, 4, 0.5, 1, 0.7, 0.3],
        )[0]
        getattr(self, f"_{event}")()

    def _step(self) -> None:
        self.step(self.random.choice(self.everybody))

    def _advance(self) -> None:
        self.clock.advance(self.random.randrange(1_500))

    def _create(self) -> None:
        self.create(serial=self.random.choice([None, None, "s"]))

    def _odd(self) -> None:
        self.random.choice([lambda: self.create(misplaced=True), self.send_again, self.garbage])()

    def _kill(self) -> None:
        process = self.random.choice(self.everybody)
        if self.random.random() < 0.3:
            self.kill(process)
        else:
            self.kill_at = (self.random.choice(["append", "offsets", "commit"]), f"sim.{process.name}")

    def _freeze(self) -> None:
        process = self.random.choice(self.everybody)
        self.freeze_at = (self.random.choice(["append", "offsets", "commit"]), f"sim.{process.name}")

    def _fault(self) -> None:
        process = self.random.choice(self.everybody)
        if process.log is not None:
            process.log.faults.append(self.random.choice(list(CommitFault)))

    def _revive(self) -> None:
        for process in self.everybody:
            self.revive(process)

    def _lose_index(self) -> None:
        process = self.random.choice(self.dispatchers)
        if process.live is None:
            process.index = MemoryIndex()

    def _compact(self) -> None:
        for partition in range(LAYOUT.partitions):
            log = self.cluster.partition(NAMES.jobs, partition)
            log.compact(before=self.clock.now() - COMPACTION_LAG_MS)

    def _day(self) -> None:
        """Nothing runs for a day and an hour: what is old may be compacted now."""
        self.clock.advance(COMPACTION_LAG_MS + 3_600_000)

    def _expire(self) -> None:
        process = self.random.choice(self.everybody)
        if process.log is not None and process.live is not None:
            process.log.expire()

    def settle(self) -> None:
        """No more faults: everybody lives and steps until the world is quiet."""
        self.kill_at = self.freeze_at = None
        for process in self.everybody:
            if process.log is not None:
                process.log.faults.clear()
            if process.live is None:
                self.cluster.time_out(f"sim.{process.name}")
        for _ in range(1_000):
            self._revive()
            for process in self.everybody:
                self.step(process)
            self.clock.advance(300)
            if self.quiet():
                return
        raise AssertionError(f"the world does not come to rest: {self.told.lines[-20:]}")

    def quiet(self) -> bool:
        owned = [s for p in self.dispatchers for s in p.live.states.values()]
        return (
            len(owned) == LAYOUT.partitions
            and all(state is PartitionState.RUNNING for state in owned)
            and not any(p.index.next_due(n) is not None for p in self.dispatchers for n in p.live.states)
            and not any(p.live.busy for p in self.workers)
            and set(self.acked()) >= set(self.jobs)
        )

    # -- what the log says ----------------------------------------------------------------------------------

    def records(self, topic: str) -> list[MemoryRecord]:
        found: list[MemoryRecord] = []
        for number in range(self.cluster.partitions(topic)):
            log = self.cluster.partition(topic, number)
            found += log.read(0, log.end + 1)[0]
        return found

    def acked(self) -> list[str]:
        acks = [
            codec.ACK.decode(r.value() or b"")
            for r in self.records(NAMES.acks("default"))
            if r.key()[:2] == b"t/"
        ]
        return [a.occurrence_id for a in acks if a.state is AckState.SUCCEEDED]

    def check_always(self) -> None:
        """True after every event: nothing fired twice, nothing early."""
        fired: Counter[tuple[str, int]] = Counter()
        for record in self.records(NAMES.work("default")):
            run = codec.RUN.decode(record.value() or b"")
            fired[run.occurrence_id, run.run] += 1
            assert record.timestamp()[1] >= run.due_at, f"early: {run}"
        doubled = [key for key, count in fired.items() if count > 1]
        assert not doubled, f"doubled: {doubled}"

    def check_end(self) -> None:
        """True once the world is quiet: nothing lost, every run acked once, tokens grew, index = fold(log)."""
        self.check_always()
        work = [codec.RUN.decode(r.value() or b"") for r in self.records(NAMES.work("default"))]
        assert {r.occurrence_id for r in work if r.run == 1} == set(self.jobs), "lost or invented"
        assert Counter(self.acked()) == Counter(self.jobs.keys()), "acked other than once"
        self._check_tokens()
        self._check_index()

    def _check_tokens(self) -> None:
        by_occurrence: dict[str, list[int]] = {}
        for occurrence, _, _, token in self.starts:
            by_occurrence.setdefault(occurrence, []).append(token)
        for occurrence, tokens in by_occurrence.items():
            assert len(set(tokens)) == len(tokens), f"a token came twice: {occurrence} {tokens}"

    def _check_index(self) -> None:
        site = Site(names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=10**12)
        for process in self.dispatchers:
            for number in process.live.states:
                log, index = self.cluster.partition(NAMES.jobs, number), MemoryIndex()
                partition = Partition(number, site=site, index=index)
                partition.ingest(log.read(0, log.end + 1)[0], log.end, self.clock.now())
                assert index.entries(number, None, 10**6) == process.index.entries(number, None, 10**6)
