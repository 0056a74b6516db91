"""A worker put together from settings, and run until it is told to stop; then it drains."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from random import Random
from typing import NamedTuple

from pipeline.adapters.aside import Apart
from pipeline.adapters.executors import HandlerExecutor
from pipeline.adapters.kafka_admin import load_era, load_layout
from pipeline.adapters.kafka_feed import KafkaFeed
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_meta import GuardReader
from pipeline.adapters.process_pool import BUILT_IN
from pipeline.adapters.settled import settled
from pipeline.client import Dueline
from pipeline.config import Settings
from pipeline.core.errors import DuelineError, InvalidInput, RebuildClients, StoreUnreachable
from pipeline.core.names import check_name
from pipeline.core.registry import Registry
from pipeline.desk import Desk
from pipeline.guard import WorkGuards
from pipeline.handlers import with_builtin
from pipeline.heartbeat import Pulse, read_fleet
from pipeline.lane import Flight
from pipeline.outbox import Outbox
from pipeline.ports import Executor
from pipeline.queues import QueueWatch
from pipeline.service.beats import repeated
from pipeline.service.burst import Burst
from pipeline.service.declared import declared_by, storing
from pipeline.service.ending import end_soon
from pipeline.service.heirs import Heirs, Leaver
from pipeline.service.log import LogEvents, show_job_lines
from pipeline.service.loop import Stop, rebuilding, step_until
from pipeline.service.means import Layouts, means
from pipeline.service.run import Plant, Tenant, calm_collector, plant
from pipeline.service.shares import shares
from pipeline.service.streams import lasting_streams
from pipeline.worker import Limits, Worker

LEAVE_MS = 5_000
EXECUTOR_MS = 500
"""How long handlers that outlived the drain may still take; the process does not wait for them."""


@lasting_streams()
def run_worker(
    settings: Settings,
    app: Dueline,
    *,
    queues: Mapping[str, int],
    concurrency: int,
    burst: Burst | None = None,
    target: str | None = None,
) -> bool:
    """Run handlers of `app` for jobs of `queues` (with their weights), until SIGTERM or SIGINT, or until `burst` is
    over; then drain. `target` = `module:attribute` of `app`, by which processes of the pool find it; without one they
    know the built-in handlers only. Whether all handlers ended: if not, their runs are given back, so the caller must
    end the process, threads and all. The process has a few seconds to end by itself then, whatever handlers have left
    running in it."""
    stop = Stop()
    stop.listen()
    show_job_lines()
    registry = with_builtin(app.registry, settings)
    registry.check()
    declared = None if target is None else declared_by(app, target, settings)
    with plant(settings, "worker", None, stop) as first:
        for queue in queues:
            if check_name("queue", queue) not in first.layout.queues:
                raise InvalidInput(
                    "queue", f"{queue!r} is unknown: `dueline topics create --queue {queue}` makes it"
                )
        count = first.observer.counted
        crews = [
            Crew(
                queue,
                count(queue, HandlerExecutor(share, target or BUILT_IN, settled)),
                share,
                itertools.count(1),
                {},
                Outbox(first.appender),
                first.pulse(),
            )
            for queue, share in shares(concurrency, queues).items()
        ]
        tenant = Tenant(first)
        beating = repeated([crew.pulse for crew in crews], first.clock)
        with beating, storing(settings, declared, first.events):
            rebuilding(
                lambda: _work(tenant.plant, stop, registry, crews, burst),
                stop,
                first.events,
                tenant.dismissed,
                lambda: _owed(crews) > 0,
                settings.drain_timeout_ms / 1000,
            )
        if owed := _owed(crews):
            first.events.on("not_given_back", process=first.identity.process, attempts=owed)
        ended = [crew.executor.close(EXECUTOR_MS) for crew in crews]
    end_soon(LogEvents("worker", first.slot.number))
    return all(ended)


class Crew(NamedTuple):
    """The hands of one queue. They outlive a rebuild: a handler that runs cannot be taken back."""

    queue: str
    executor: Executor
    concurrency: int
    tickets: Iterator[int]
    airborne: dict[int, Flight]
    outbox: Outbox
    pulse: Pulse


def _owed(crews: Sequence[Crew]) -> int:
    """Attempts that were started here and whose end the log does not have."""
    return sum(len(crew.airborne) + len(crew.outbox) for crew in crews)


def _work(plant: Plant, stop: Stop, registry: Registry, crews: Sequence[Crew], burst: Burst | None) -> None:
    calm_collector()
    with ExitStack() as stack:
        reader = KafkaReader(plant.settings.require_bootstrap(), plant.settings.kafka)
        stack.callback(reader.close)
        era = load_era(plant.settings)
        guards = [_guards(plant, crew.queue, stack) for crew in crews]
        watch = QueueWatch(
            reader=reader, meta=plant.settings.names.meta, clock=plant.clock, events=plant.events
        )
        workers = [
            _worker(plant, registry, crew, n, reader, era, guards[n], watch) for n, crew in enumerate(crews)
        ]
        for worker in workers:
            stack.callback(worker.close)
        plant.events.on(
            "started", process=plant.identity.process, slot=plant.slot.number, queues=[c.queue for c in crews]
        )
        plant.observer.metrics.era(era)
        sizes = [crew.concurrency for crew in crews]
        step = plant.observer.around(lambda patience: _step_all(workers, sizes, patience))
        step_until(step, lambda: stop.requested or plant.observer.over(burst, workers))
        began = stop.since if stop.requested else time.monotonic()
        deadline, leaving = began + plant.settings.drain_timeout_ms / 1000, True
        try:
            heirs = Heirs(
                process=plant.identity.process,
                read=lambda since: read_fleet(reader, plant.settings.names.fleet, since),
                now=plant.clock.now,
            )
            staying: dict[str, Leaver] = {
                crew.queue: worker for crew, worker in zip(crews, workers, strict=True)
            }
            _drain(workers, plant, step, deadline, lambda: heirs.look(staying))
        except (RebuildClients, StoreUnreachable):
            leaving = time.monotonic() >= deadline  # else it goes on draining, with other clients
            raise
        finally:
            if leaving:
                _leave(workers, crews, plant)
    plant.events.on("stopped", process=plant.identity.process)


def _worker(
    plant: Plant,
    registry: Registry,
    crew: Crew,
    n: int,
    reader: KafkaReader,
    era: int,
    guards: WorkGuards,
    queues: QueueWatch,
) -> Worker:
    names = plant.settings.names
    group = names.worker_group(crew.queue)
    session_ms = plant.session_of(group)
    open_log = plant.open_log("worker", names.work(crew.queue), group, n, session_ms)
    layouts = Layouts(plant.layout, lambda: load_layout(plant.settings))
    return Worker(
        open_log=plant.observer.watching(crew.queue, open_log),
        open_fleet=lambda: KafkaFeed(plant.settings.require_bootstrap(), names.fleet, plant.settings.kafka),
        fleet_partitions=plant.fleet_partitions,
        airborne=crew.airborne,
        outbox=crew.outbox,
        guards=guards,
        appender=plant.appender,
        reader=reader,
        executor=crew.executor,
        registry=registry,
        announced=layouts.announced,
        means=means(plant.settings, layouts, plant.clock.now, plant.admin.partitions),
        desk=Desk(names=names, layout=plant.layout, queue=crew.queue, worker=plant.identity.process),
        clock=plant.clock,
        random=Random(),
        identity=plant.identity,
        pulse=crew.pulse,
        events=plant.observer.metrics.of_queue(crew.queue),
        era=era,
        limits=Limits(concurrency=crew.concurrency, heartbeat_timeout_ms=session_ms),
        tickets=crew.tickets,
        aside=Apart,
        queues=queues,
    )


def _leave(workers: Sequence[Worker], crews: Sequence[Crew], plant: Plant) -> None:
    """Give everything back, then say once for all queues that this process is gone. Whatever one queue cannot do within
    its time, the others get theirs."""
    for worker in workers:
        with suppress(DuelineError):
            worker.leave(LEAVE_MS)
    crews[0].pulse.leave()
    with suppress(DuelineError):
        plant.appender.flush(LEAVE_MS)


def _guards(plant: Plant, queue: str, stack: ExitStack) -> WorkGuards:
    names = plant.settings.names
    reader = GuardReader(plant.settings.client_config(), names, names.worker_group(queue))
    stack.callback(reader.close)
    topic_id = plant.admin.topic_id(names.work(queue))
    return WorkGuards(names=names, group=names.worker_group(queue), topic_id=topic_id, read=reader)


def _step_all(workers: Sequence[Worker], sizes: Sequence[int], patience: int) -> int:
    """One step of each queue's worker; the wait is shared out as the places are, so none starves another."""
    whole = sum(sizes)
    return min(worker.step(patience * size // whole) for worker, size in zip(workers, sizes, strict=True))


def _drain(
    workers: Sequence[Worker],
    plant: Plant,
    step: Callable[[int], int],
    deadline: float,
    hand_over: Callable[[], None],
) -> None:
    """Finish what was started until then (monotonic seconds); the rest goes back unspent when the worker leaves.
    `hand_over` is called between two steps."""
    for worker in workers:
        worker.drain()
    in_flight = sum(worker.in_flight for worker in workers)
    plant.events.on("draining", process=plant.identity.process, in_flight=in_flight)

    def stepped(patience_ms: int) -> int:
        hand_over()
        return step(patience_ms)

    step_until(stepped, lambda: not any(worker.busy for worker in workers) or time.monotonic() >= deadline)
    plant.events.on(
        "drained",
        process=plant.identity.process,
        unfinished=sum(worker.in_flight for worker in workers),
        drain_timeout_ms=plant.settings.drain_timeout_ms,
    )
