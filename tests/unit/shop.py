"""A queue in memory, with one handler that does what the test wants, for the tests of the worker."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from sides import MEANS

from pipeline import codec
from pipeline.adapters.executors import InlineExecutor
from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_feed import MemoryFeed
from pipeline.core.handler import Registry, Succeeded, encode_result
from pipeline.core.identity import Identity
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, DeadLetter, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.heartbeat import Pulse
from pipeline.ledger import AtOnce
from pipeline.outbox import Outbox
from pipeline.ports import Aside, Done, Put
from pipeline.worker import Limits, Worker

NAMES = Names("t")
LAYOUT = default_layout(queues={"default": 2})


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append(action)


class Hands(InlineExecutor):
    """With `hold` no call begins; with `hold_begun` all begin, and none comes back before it is False."""

    def __init__(self) -> None:
        super().__init__()
        self.hold_begun = False
        self.stopped: list[int] = []

    def completed(self) -> list[Done]:
        return [] if self.hold_begun else super().completed()

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        return set() if self.hold_begun else super().withdraw(tickets)

    def stop(self, tickets: Iterable[int]) -> None:
        self.stopped += tickets


class Shop:
    """One cluster, one handler that does what the test wants, and workers by name."""

    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        sizes = {NAMES.jobs: LAYOUT.partitions, NAMES.dead: LAYOUT.partitions, NAMES.fleet: 1}
        for topic, size in {**sizes, NAMES.work("default"): 2, NAMES.acks("default"): 2}.items():
            self.cluster.create_topic(topic, size)
        self.client = MemoryAppender(self.cluster)
        self.registry = Registry()
        self.registry.add("work", self._handle, max_attempts=3)
        self.answers: deque[Any] = deque()
        self.guards: WorkGuards | None = None
        self.aside: Aside = AtOnce
        self._ids = itertools.count()
        self.seen: list[Any] = []
        self.told = Told()
        self.logs: dict[str, MemoryGroupLog] = {}
        self.executors: dict[str, Hands] = {}

    def _handle(self, ctx: Any, payload: Any) -> Any:
        self.seen.append(ctx)
        answer = self.answers.popleft() if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def success(self, value: Any) -> Succeeded:
        return Succeeded(result=encode_result(value))

    def worker(self, name: str = "w", after: Worker | None = None, **limits: int) -> Worker:
        """A worker of its own process, or the one that was built anew in the process of `after`."""

        def open_log(listener: Any) -> MemoryGroupLog:
            self.logs[name] = MemoryGroupLog(
                self.cluster, NAMES.work("default"), NAMES.worker_group("default"), listener, [f"t.{name}"]
            )
            return self.logs[name]

        appender = MemoryAppender(self.cluster) if after is None else after._appender
        if after is None:
            self.executors[name] = Hands()
        return Worker(
            open_log=open_log,
            open_fleet=lambda: MemoryFeed(self.cluster, NAMES.fleet),
            fleet_partitions=1,
            airborne={} if after is None else after._airborne,
            outbox=Outbox(appender) if after is None else after._leases._outbox,
            guards=self.guards,
            aside=self.aside,
            appender=appender,
            reader=MemoryReader(self.cluster),
            executor=self.executors[name],
            registry=self.registry,
            means=MEANS,
            desk=Desk(names=NAMES, layout=LAYOUT, queue="default", worker=name),
            clock=self.clock,
            random=Random(f"{name} {len(self.logs)}" if after is None else f"{name} again"),
            identity=Identity(process=name, host="h", pid=1, version="0", started_at=0),
            pulse=Pulse(appender=appender, fleet=NAMES.fleet, partitions=1, process=name),
            events=self.told,
            era=1,
            limits=Limits(**limits),
            tickets=itertools.count(1) if after is None else after._tickets,
        )

    def fire(self, **changes: Any) -> Run:
        job_id = anonymous_id(self.clock.now(), next(self._ids))
        now = self.clock.now()
        run = Run(
            job_id=job_id, occurrence_id=job_id, due_at=now, run=1, queue="default", handler="work",
            created_at=now, nominal_at=now, idempotency_key=job_id, payload=b'{"a":1}',
        )  # fmt: skip
        run = replace(run, **changes)
        self.client.append(Put(NAMES.work("default"), 0, job_id.encode(), codec.RUN.encode(run)))
        return run

    def _values(self, topic: str, prefix: bytes = b"") -> list[bytes]:
        partitions = [self.cluster.partition(topic, n) for n in range(self.cluster.partitions(topic))]
        records = [r for log in partitions for r in log.read(0, log.end + 1)[0]]
        return [r.value() or b"" for r in records if r.key().startswith(prefix)]

    def terminal(self) -> list[Ack]:
        return [codec.ACK.decode(value) for value in self._values(NAMES.acks("default"), b"t/")]

    def started(self) -> list[Ack]:
        return [codec.ACK.decode(value) for value in self._values(NAMES.acks("default"), b"s/")]

    def retries(self) -> list[Run]:
        return [codec.RUN.decode(value) for value in self._values(NAMES.jobs, b"r/")]

    def dead(self) -> list[DeadLetter]:
        return [codec.DEAD_LETTER.decode(value) for value in self._values(NAMES.dead)]


def steps(worker: Worker, count: int = 8) -> None:
    for _ in range(count):
        worker.step(0)


def wait_out(shop: Shop, worker: Worker, ms: int = 5_000) -> None:
    """Time passes for a worker that steps: long enough by default for whoever died to count as dead."""
    for _ in range(ms // 250):
        shop.clock.advance(250)
        worker.step(0)
