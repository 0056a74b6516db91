"""A queue and its workers in one thread: processes that are started, killed, frozen, blocked, cut off, rebuilt and
told to leave, over an in-memory cluster with a clock of its own. What must hold of it is in `lease_watch`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from sim.lease_hands import Hands, Plan
from sim.lease_watch import ACKS, OUT, QUEUE, WORK, Watch
from sim.lease_wire import LateAppender, Later, LeaseLog, LeaseReader, Wire
from sim.world import COMMIT_STAGES, NAMES, Killed, LateClock, Told

from pipeline import codec
from pipeline.adapters.memory import MemoryClock
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_feed import MemoryFeed
from pipeline.attempt import Means
from pipeline.core import keys
from pipeline.core.context import Context
from pipeline.core.errors import RebuildClients, StoreUnreachable
from pipeline.core.handler import Registry
from pipeline.core.identity import Identity
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Run
from pipeline.core.jobref import JobRef
from pipeline.core.layout import Layout
from pipeline.core.retry import RetryPolicy
from pipeline.core.verbs import Cancel, Dead, Retry, Snooze
from pipeline.desk import Desk
from pipeline.heartbeat import Pulse
from pipeline.outbox import Outbox
from pipeline.ports import Put
from pipeline.worker import Limits, Worker

LAYOUT = Layout(partitions=4, shards=2, ring=2, skew=(0, 1), bucket_width_ms=10_000, queues={QUEUE: 4})
HEARTBEAT_MS, SLICE_MS = 3_000, 250
UNKNOWN_MS, DRAIN_MS = 15_000, 6_000
TRANSACTION_TIMEOUT_MS, COMPACTION_LAG_MS, RETENTION_MS = 10_000, 60_000, 3_600_000
REST_MS = 3 * 3_600_000
HAND_OVER = 0.2
"""Chance, at each step of one that drains, that it leaves the group before it has finished."""
SOON_MS, COARSE_MS = 10_000, 1_000
"""Who waits longer than this for a long handler looks once a second."""
QUEUED = "queued"
"""Place at which a process may be struck: it is about to hand a record to its appender."""
LIMITS = {"few": 2}
KINDS = ("out", "job")


class Process:
    """One process from its start to its end. `live` None: its clients are being built anew."""

    def __init__(self, world: LeaseWorld, slot: int, name: str) -> None:
        self.slot, self.name, self._now = slot, name, world.clock.now
        self.wire = Wire(world.cluster)
        self.appender = LateAppender(self.wire, lambda: world.random, lambda put: world.queued(self, put))
        self.hands = Hands(
            world.random.choice([1, 2, 4]), lambda: world.random,
            lambda plan: world.watch.began(self, plan.ctx), lambda plan: world.watch.ended(plan.ctx),
        )  # fmt: skip
        self.acking: Later | None = None
        """The last ack transaction."""
        self.airborne: dict[int, Any] = {}
        self.outbox = Outbox(self.appender)
        self.tickets: Iterator[int] = itertools.count(1)
        self.identity = Identity(
            process=name, host="sim", pid=slot, version="0", started_at=world.clock.now()
        )
        self.pulse = Pulse(appender=self.appender, fleet=NAMES.fleet, partitions=2, process=name)
        self.live: Worker | None = None
        self.log: LeaseLog | None = None
        self.frozen = self.blocked = self.mute = self.killed = False
        self.leaving: int | None = None
        """When its drain time-out is over, if it was told to leave."""
        self._heard = world.clock.now()
        self._out_until = -1

    @property
    def id(self) -> str:
        """Its transactional id, and that of whoever comes after it in its slot."""
        return f"sim.w{self.slot}"

    def heard(self, now: int) -> None:
        if now - self._heard >= HEARTBEAT_MS:
            self._out_until = now
        self._heard = now

    def out_since(self, at: int) -> bool:
        """Whether at some time since then nobody had heard of it for the whole time-out."""
        return self._now() - self._heard >= HEARTBEAT_MS or self._out_until >= at

    def concurrency_of(self, handler: str) -> int | None:
        return LIMITS.get(handler)


class LeaseWorld:
    """`random` is set anew by whoever decides what happens; `ids` never is, so what must be unique stays so."""

    def __init__(self, slots: int, partitions: int, deaths: int = 1_000) -> None:
        self.random, self.ids = Random(0), Random(1)
        self.partitions, self.deaths, self.era = partitions, deaths, 1
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        for topic, count in (
            (WORK, partitions), (ACKS, partitions), (OUT, 1), (NAMES.jobs, LAYOUT.partitions),
            (NAMES.dead, LAYOUT.partitions), (NAMES.fleet, 2), (NAMES.meta, 1),
        ):  # fmt: skip
            self.cluster.create_topic(topic, count)
        self.watch = Watch(self.clock.now, self._retry)
        self.cluster.saw = self.watch.saw
        self.cluster.hook = self.hook
        self.told = Told()
        self.registry = self._registry()
        self.slots: list[Process | None] = [None] * slots
        self.kill_at: tuple[str, str] | None = None
        self.freeze_at: tuple[str, str] | None = None
        self.revenant = False
        """Whether a holder that was given up comes back just before its attempt is replaced."""
        self._midway: list[Process] = []
        """Stopped in the middle of a step."""
        self._retries: list[Run] = []
        self._expiring: list[tuple[int, LeaseLog]] = []
        """Members of processes that are gone, and when the coordinator notices."""
        self._numbers = itertools.count(1)

    # -- handlers -----------------------------------------------------------------------------------------------

    def _registry(self) -> Registry:
        registry, soon = Registry(), RetryPolicy(base="1s", cap="4s")
        registry.add("plain", _handle, max_attempts=3, retry=soon)
        registry.add("coro", _handle_async, max_attempts=3, retry=soon)
        registry.add("few", _handle, max_attempts=3, retry=soon, concurrency=LIMITS["few"])
        registry.add("pool", _handle, max_attempts=2, retry=soon, pool="process")
        registry.add("brief", _handle_async, max_attempts=2, retry=soon, timeout="2s")
        registry.add("fresh", _handle, max_attempts=2, retry=soon, max_age="5s")
        return registry

    def new_id(self) -> str:
        return anonymous_id(self.clock.now(), self.ids.getrandbits(80))

    def _record(self, request: Any) -> tuple[JobRef, Put]:
        id_, now = self.new_id(), self.clock.now()
        run = Run(
            job_id=id_, occurrence_id=id_, due_at=now, run=1, queue=QUEUE, handler=request["handler"],
            created_at=now, nominal_at=now, idempotency_key=id_, payload=b"{}", headers=request["headers"],
        )  # fmt: skip
        return JobRef.of(run), Put(NAMES.jobs, LAYOUT.home(id_), keys.job_key(id_), codec.RUN.encode(run))

    def put_run(self, run: Run) -> None:
        """As a dispatcher does: a run of one job always goes to one partition, and so do those of one group."""
        number = sum((run.serial or run.job_id).encode()) % self.partitions
        self.cluster.append(Put(WORK, number, run.occurrence_id.encode(), codec.RUN.encode(run)))

    def _retry(self, run: Run) -> None:
        self._retries.append(run)

    def _dispatch(self) -> None:
        due = [run for run in self._retries if run.due_at <= self.clock.now()]
        self._retries = [run for run in self._retries if run.due_at > self.clock.now()]
        for run in due:
            self.put_run(run)

    # -- processes ----------------------------------------------------------------------------------------------

    @property
    def up(self) -> list[Process]:
        return [process for process in self.slots if process is not None]

    def any(self) -> Process | None:
        return self.random.choice(self.up) if self.up else None

    def start(self, slot: int) -> None:
        if self.slots[slot] is None:
            process = Process(self, slot, f"w{slot}.{next(self._numbers)}")
            self.slots[slot] = self.watch.processes[process.name] = process

    def _worker(self, process: Process) -> Worker:
        def open_log(listener: Any) -> LeaseLog:
            process.log = LeaseLog(process.wire, WORK, NAMES.worker_group(QUEUE), listener, [process.id])  # type: ignore[arg-type]
            process.log.random = self.random
            return process.log

        reader = LeaseReader(process.wire)  # type: ignore[arg-type]
        reader.random = self.random
        return Worker(
            open_log=open_log, open_fleet=lambda: MemoryFeed(process.wire, NAMES.fleet),  # type: ignore[arg-type]
            appender=process.appender, reader=reader, executor=process.hands, registry=self.registry,
            means=Means(
                record=self._record, partitions=self.cluster.partitions,
                reserved=lambda topic: topic.startswith("sim."),
            ),
            desk=Desk(names=NAMES, layout=LAYOUT, queue=QUEUE, worker=process.name),
            clock=LateClock(self.clock, self.random.choice([0, 0, 40])), random=self.ids, identity=process.identity,
            pulse=process.pulse, fleet_partitions=2, events=self.told, era=self.era, tickets=process.tickets,
            airborne=process.airborne, outbox=process.outbox, aside=lambda call: self._aside(process, call),
            limits=Limits(
                concurrency=self.random.choice([1, 2, 4]), heartbeat_timeout_ms=HEARTBEAT_MS,
                max_worker_deaths=self.deaths, unknown_handler_ms=UNKNOWN_MS,
            ),
        )  # fmt: skip

    def _aside(self, process: Process, call: Callable[[], None]) -> Later:
        process.acking = Later(lambda: self.random, call)
        return process.acking

    def step(self, process: Process) -> None:
        if process.killed or process.frozen or process.blocked or self.slots[process.slot] is not process:
            return
        try:
            if process.live is None and not process.wire.cut:
                process.live = self._worker(process)
            if process.live is not None:
                process.live.step(0)
                self._go_on_leaving(process)
        except Killed:
            self.kill(process)
        except (RebuildClients, StoreUnreachable) as error:
            self.told.on("rebuild", reason=str(error))
            self.rebuild(process)

    def rebuild(self, process: Process) -> None:
        """Its clients are closed and built anew; one that is leaving ends instead."""
        live, process.live = process.live, None
        try:
            if live is not None:
                self._forget(process)
                live.close()
        except Killed:
            self.kill(process)
            return
        if process.leaving is not None:
            self.kill(process)

    def drain(self, process: Process, patience_ms: int) -> None:
        """SIGTERM."""
        assert process.live is not None
        process.leaving = self.clock.now() + patience_ms
        try:
            process.live.drain()
        except Killed:
            self.kill(process)

    def _go_on_leaving(self, process: Process) -> None:
        live = process.live
        assert live is not None
        if process.leaving is not None and live.busy and not live._apart and self.random.random() < HAND_OVER:
            live.hand_over()
        if process.leaving is None or (live.busy and self.clock.now() < process.leaving):
            return
        self.watch.abandon(process, [plan.ctx for plan in process.hands.plans])
        with suppress(StoreUnreachable):
            live.leave(0)
        live.close()
        self._forget(process)
        with suppress(StoreUnreachable):
            process.appender.flush(0)
        process.live = self.slots[process.slot] = None
        self.told.on("left")

    def _forget(self, process: Process) -> None:
        """The coordinator will notice on its own, if nobody tells it."""
        if process.log is not None:
            self._expiring.append((self.clock.now() + self.random.randrange(8_000), process.log))

    def kill(self, process: Process) -> None:
        """kill -9: nothing is said, nothing closed; its handlers go with it."""
        process.killed = True
        process.live = None
        if process.acking is not None:
            process.acking.kill()
        if self.slots[process.slot] is process:
            self.slots[process.slot] = None
        self._forget(process)
        if self.random.random() < 0.5:
            self.cluster.time_out(process.id)

    def lose_group(self) -> None:
        """All processes end, the group is deleted, and a new era begun."""
        for process in self.up:
            self.kill(process)
        self.cluster._groups.clear()
        self.era += 1
        self.watch.group_lost()

    def hook(self, stage: str, id_: str) -> None:
        """Called inside commits and before every append: where a kill or a freeze hurts most, and where a commit made
        aside lets its process go on."""
        for process in self.up:
            if process.id == id_ and process.acking is not None:
                process.acking.pause()
        if self.kill_at == (stage, id_):
            self.kill_at = None
            raise Killed
        if self.freeze_at == (stage, id_):
            self.freeze_at = None
            process = next((p for p in self.up if p.id == id_), None)
            if process is not None:
                with self._stopped(process):
                    self._while_frozen(process)

    def queued(self, process: Process, put: Put) -> None:
        """Called before every record for acks that a worker hands to its appender."""
        self.hook(QUEUED, process.id)
        if self.revenant and put.key.startswith(b"s/"):
            key = keys.parse_acks_key(put.key)
            fired = self.watch.fired.get((key.occurrence_id, key.run))
            for attempt in fired.begun if fired is not None else ():
                gone = attempt.process
                outside = gone not in self._midway and gone in self.up  # of any step, so it can make one
                if gone is not process and outside and (gone.frozen or gone.blocked):
                    self.revenant = False
                    with self._stopped(process):
                        self._come_back(gone)
                    return

    @contextmanager
    def _stopped(self, process: Process) -> Iterator[None]:
        """SIGSTOP in the middle of a step."""
        process.frozen = True
        self._midway.append(process)
        yield
        self._midway.remove(process)
        process.frozen = False

    def _come_back(self, gone: Process) -> None:
        """It goes on where it was frozen or hung."""
        self.mend(gone)
        for _ in range(10):
            self.advance(HEARTBEAT_MS // 20)
            self.step(gone)

    def _while_frozen(self, process: Process) -> None:
        """The others go on, its session may end."""
        since = self.clock.now()
        if process.log is not None and self.random.random() < 0.7:
            process.log.expire()
        for _ in range(self.random.randrange(40)):
            self.advance(self.random.choice([20, 200]))
            for other in self.up:
                self.step(other)
        if self.clock.now() - since > TRANSACTION_TIMEOUT_MS:
            self.cluster.time_out(process.id)

    # -- time ---------------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        """Time passes for everything but the workers' loops: handlers, heartbeats, clients, sessions, retries."""
        while ms > 0:
            part = min(ms, SLICE_MS)
            ms -= part
            self.clock.advance(part)
            for process in self.up:
                if not process.frozen:
                    process.hands.advance(part)
                    if not process.mute:
                        process.pulse.repeat(self.clock.monotonic())
                    process.appender.advance()
                    self._go_on_acking(process)
            over = [log for at, log in self._expiring if at <= self.clock.now()]
            self._expiring = [(at, log) for at, log in self._expiring if at > self.clock.now()]
            for log in over:
                log.expire()
            self._dispatch()

    def _go_on_acking(self, process: Process) -> None:
        try:
            if process.acking is not None:
                process.acking.advance()
        except Killed:
            self.kill(process)

    def go_on(self, ms: int, slice_ms: int = SLICE_MS) -> None:
        """Time passes while everybody works who can."""
        for _ in range(max(1, ms // slice_ms)):
            self.advance(slice_ms)
            for process in self.random.sample(self.up, len(self.up)):
                self.step(process)

    # -- coming to rest -----------------------------------------------------------------------------------------

    def mend(self, process: Process) -> None:
        process.frozen = process.blocked = process.mute = process.wire.cut = False
        if process.log is not None:
            process.log.deaf = False

    def settle(self) -> None:
        """No more faults: everybody works until nothing is left to do."""
        self.kill_at = self.freeze_at = None
        self.revenant = False
        for slot, process in enumerate(self.slots):
            if process is None:
                self.cluster.time_out(f"sim.w{slot}")
            else:
                self.mend(process)
                process.appender.faults.clear()
                if process.log is not None:
                    process.log.faults.clear()
        since = self.clock.now()
        while not self.quiet():
            if None in self.slots and all(process.leaving is not None for process in self.up):
                self.start(self.slots.index(None))
            late = self.clock.now() - since
            self.go_on(SLICE_MS if late < SOON_MS else COARSE_MS, SLICE_MS if late < SOON_MS else COARSE_MS)
            assert late < REST_MS, f"no rest: {self.watch.open}, {self.told.lines[-20:]}"

    def quiet(self) -> bool:
        live = [process.live for process in self.up]
        return bool(
            live and self.watch.settled and not self._retries
            and all(worker is not None and worker.idle for worker in live)
            and all(process.hands.idle and process.leaving is None for process in self.up)
        )  # fmt: skip


def _handle(
    ctx: Context, ms: int = 0, ends: Sequence[str] = (), outputs: Sequence[str] = (), polite: bool = False
) -> Plan:
    """The n-th run of a job comes to the n-th of `ends`, the others succeed."""
    mark = f"{ctx.occurrence_id}/{ctx.run}/{ctx.token}"
    if "out" in outputs:
        ctx.produce(OUT, mark)
    if "job" in outputs:
        ctx.schedule("plain", headers={"by": mark})
    end = ends[ctx.run - 1] if ctx.run <= len(ends) else "ok"
    return Plan(
        ctx=ctx, ms=ms if ctx.run == 1 else ms // 10, value={"n": ctx.run}, error=_ERRORS[end], polite=polite
    )


async def _handle_async(
    ctx: Context, ms: int = 0, ends: Sequence[str] = (), outputs: Sequence[str] = (), polite: bool = False
) -> Plan:
    return _handle(ctx, ms, ends, outputs, polite)


_ERRORS: dict[str, BaseException | None] = {
    "ok": None, "fail": ValueError("it fails"), "retry": Retry(after="2s"), "snooze": Snooze(for_="3s"),
    "cancel": Cancel("enough"), "dead": Dead("hopeless"), "exit": SystemExit(3),
}  # fmt: skip
PLACES = (*COMMIT_STAGES, QUEUED)
