"""Putting a dispatcher and a worker together from settings, and running them until they are told to stop."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from pipeline import __version__
from pipeline.adapters.executors import HandlerExecutor
from pipeline.adapters.kafka_admin import load_era, load_layout, topic_admin
from pipeline.adapters.kafka_io import KafkaAppender, KafkaReader
from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.adapters.store_clock import StoreClock
from pipeline.client import Dueline
from pipeline.config import Settings
from pipeline.core.errors import InvalidInput
from pipeline.core.identity import Identity
from pipeline.core.layout import Layout
from pipeline.core.names import check_name
from pipeline.core.site import Site
from pipeline.core.topics import DELETE_RETENTION_MS
from pipeline.dispatcher import Dispatcher
from pipeline.heartbeat import Pulse
from pipeline.lane import Desk
from pipeline.ports import GroupLog, RebalanceListener
from pipeline.service.log import LogEvents
from pipeline.service.loop import Stop, rebuilding, step_until
from pipeline.service.slots import Slot, claimed_slot
from pipeline.worker import Limits, Worker

LEAVE_MS = 5_000
EXECUTOR_MS = 500
"""How long handlers that outlived the drain may still take; the process does not wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """What any role of this process needs: the store's facts, and who we are."""

    settings: Settings
    slot: Slot
    identity: Identity
    layout: Layout
    cluster_id: str
    topic_id: str
    fleet_partitions: int
    session_ms: int
    appender: KafkaAppender
    clock: StoreClock
    events: LogEvents

    def pulse(self) -> Pulse:
        return Pulse(
            appender=self.appender,
            fleet=self.settings.names.fleet,
            partitions=self.fleet_partitions,
            process=self.identity.process,
            sampled=lambda at: self.clock.sample(at, self.clock.monotonic()),
        )

    def open_log(self, role: str, topic: str, group: str, n: int) -> Callable[[RebalanceListener], GroupLog]:
        ids = (self.settings.names.transactional_id(role, self.slot.instance, self.slot.number, n),)
        return lambda listener: KafkaGroupLog(
            self.settings.require_bootstrap(),
            topic=topic,
            group=group,
            listener=listener,
            transactional_ids=ids,
            session_timeout_ms=self.session_ms,
            client=self.settings.kafka,
            protocol=self.settings.group_protocol,
        )


@contextmanager
def plant(settings: Settings, role: str, slot_number: int | None) -> Iterator[Plant]:
    """Claim a slot, look at the store, start the clock. Raises Refused, StoreUnreachable."""
    os.umask(0o077)
    with ExitStack() as stack:
        slot = stack.enter_context(claimed_slot(settings.state_dir, role, slot_number))
        layout = load_layout(settings)
        admin = topic_admin(settings)
        appender = KafkaAppender(settings.require_bootstrap(), settings.kafka)
        stack.callback(appender.close)
        clock = StoreClock(appender, settings.names.fleet)
        started_at = clock.now()
        yield Plant(
            settings=settings,
            slot=slot,
            identity=Identity(
                process=slot.process,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
                started_at=started_at,
            ),
            layout=layout,
            cluster_id=admin.cluster_id(),
            topic_id=admin.topic_id(settings.names.jobs),
            fleet_partitions=admin.partitions(settings.names.fleet),
            session_ms=settings.session_timeout_ms or admin.lowest_session_timeout(),
            appender=appender,
            clock=clock,
            events=LogEvents(role),
        )


def run_dispatcher(settings: Settings, *, slot: int | None = None) -> None:
    """Own partitions of `jobs` and fire what is due, until SIGTERM or SIGINT."""
    stop = Stop()
    stop.listen()
    with plant(settings, "dispatcher", slot) as site:
        rebuilding(lambda: _dispatch(site, stop), stop, site.events)


def _dispatch(plant: Plant, stop: Stop) -> None:
    names = plant.settings.names
    with ExitStack() as stack:
        index = RocksIndex(plant.slot.path / "index")
        stack.callback(index.close)
        dispatcher = Dispatcher(
            open_log=plant.open_log("dispatcher", names.jobs, names.dispatcher_group, 0),
            index=index,
            site=Site(
                names=names,
                layout=plant.layout,
                cluster_id=plant.cluster_id,
                topic_id=plant.topic_id,
                stale_after_ms=DELETE_RETENTION_MS // 2,
                read_layout=lambda: load_layout(plant.settings),
            ),
            clock=plant.clock,
            random=Random(),
            identity=plant.identity,
            pulse=plant.pulse(),
            events=plant.events,
        )
        stack.callback(dispatcher.close)
        plant.events.on("started", process=plant.identity.process, slot=plant.slot.number)
        step_until(dispatcher.step, lambda: stop.requested)
    plant.events.on("stopped", process=plant.identity.process)


def run_worker(settings: Settings, app: Dueline, *, queues: Sequence[str], concurrency: int) -> None:
    """Run handlers of `app` for jobs of `queues`, until SIGTERM or SIGINT; then drain."""
    stop = Stop()
    stop.listen()
    with plant(settings, "worker", None) as site:
        for queue in queues:
            if check_name("queue", queue) not in site.layout.queues:
                raise InvalidInput(
                    "queue", f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it"
                )
        share = max(1, concurrency // len(queues))
        crews = [Crew(queue, HandlerExecutor(share), share, itertools.count(1)) for queue in queues]
        rebuilding(lambda: _work(site, stop, app, crews), stop, site.events)
        for crew in crews:
            crew.executor.close(EXECUTOR_MS)


class Crew(NamedTuple):
    """The hands of one queue. They outlive a rebuild: a handler that runs cannot be taken back."""

    queue: str
    executor: HandlerExecutor
    concurrency: int
    tickets: Iterator[int]


def _work(plant: Plant, stop: Stop, app: Dueline, crews: Sequence[Crew]) -> None:
    with ExitStack() as stack:
        reader = KafkaReader(plant.settings.require_bootstrap(), plant.settings.kafka)
        stack.callback(reader.close)
        era = load_era(plant.settings)
        workers = [_worker(plant, app, crew, n, reader, era) for n, crew in enumerate(crews)]
        for worker in workers:
            stack.callback(worker.close, LEAVE_MS)
        plant.events.on(
            "started", process=plant.identity.process, slot=plant.slot.number, queues=[c.queue for c in crews]
        )
        step_until(lambda patience: _step_all(workers, patience), lambda: stop.requested)
        _drain(workers, plant)
    plant.events.on("stopped", process=plant.identity.process)


def _worker(plant: Plant, app: Dueline, crew: Crew, n: int, reader: KafkaReader, era: int) -> Worker:
    names = plant.settings.names
    return Worker(
        open_log=plant.open_log("worker", names.work(crew.queue), names.worker_group(crew.queue), n),
        appender=plant.appender,
        reader=reader,
        executor=crew.executor,
        registry=app.registry,
        desk=Desk(names=names, layout=plant.layout, queue=crew.queue, worker=plant.identity.process),
        clock=plant.clock,
        random=Random(),
        identity=plant.identity,
        pulse=plant.pulse(),
        events=plant.events,
        era=era,
        limits=Limits(concurrency=crew.concurrency, heartbeat_timeout_ms=plant.session_ms),
        tickets=crew.tickets,
    )


def _step_all(workers: Sequence[Worker], patience: int) -> int:
    """One step of each queue's worker; the wait is shared out, so none starves another."""
    share = patience // len(workers)
    return min(worker.step(share) for worker in workers)


def _drain(workers: Sequence[Worker], plant: Plant) -> None:
    """Finish what was started within the drain time-out; the rest goes back unspent when the worker closes."""
    deadline = time.monotonic() + plant.settings.drain_timeout_ms / 1000
    for worker in workers:
        worker.drain()
    plant.events.on("draining", process=plant.identity.process)
    step_until(
        lambda patience: _step_all(workers, patience),
        lambda: not any(worker.busy for worker in workers) or time.monotonic() >= deadline,
    )
