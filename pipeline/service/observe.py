"""What a process shows of itself: metrics, health, and the small server for both; put together per role."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Protocol, cast, runtime_checkable

from confluent_kafka import libversion

from pipeline import __version__
from pipeline.adapters.kafka_admin import load_era
from pipeline.config import Settings
from pipeline.core.clock import Reading
from pipeline.core.errors import DuelineError, RetryStep
from pipeline.core.states import PartitionState
from pipeline.metrics import DispatcherMetrics, Metrics, WorkerMetrics
from pipeline.ports import Clock, Events, Executor, GroupLog, Index, RebalanceListener
from pipeline.service.burst import Burst, Idler
from pipeline.service.counted import CountedExecutor, Places
from pipeline.service.health import Health
from pipeline.service.http import HttpServer, metrics_route, verdict_route
from pipeline.service.loop import WATCHDOG_S, Stop
from pipeline.service.probe import LatenessProbe, probe_consumer

LOOK_S = 1.0
"""How often the owner's thread looks at its owners for the gauges and for readiness."""
PORTS = {"dispatcher": 9464, "worker": 9564}
"""First port by role when none is set; the slot is added, so a process keeps its port when it is restarted."""
PORTS_TRIED = 100

OpenLog = Callable[[RebalanceListener], GroupLog]


class Owner(Protocol):
    """A Dispatcher or a Worker."""

    @property
    def states(self) -> Mapping[int, PartitionState]: ...


@runtime_checkable
class JudgedClock(Protocol):
    """A clock that knows how wrong it may be, and how far each broker is off."""

    def error(self) -> int: ...
    @property
    def readings(self) -> Mapping[int, Reading]: ...


class Observer:
    """Sees the owners of one process between two steps, on their thread, and tells metrics, health and probe."""

    def __init__(self, metrics: Metrics, health: Health) -> None:
        self.metrics = metrics
        self.health = health
        self._clock: Clock | None = None
        self._owners: dict[str, tuple[Owner, GroupLog, Index | None]] = {}
        self._look_at = 0.0

    def watching(self, queue: str, open_log: OpenLog, index: Index | None = None) -> OpenLog:
        """`open_log`, so that the owner it is opened for is looked at; `queue` is empty for a dispatcher. An owner
        takes the place of the one before it."""

        def opened(listener: RebalanceListener) -> GroupLog:
            log = open_log(listener)
            self._owners[queue] = (cast(Owner, listener), log, index)
            return log

        return opened

    def around(self, step: Callable[[int], int]) -> Callable[[int], int]:
        """`step`, observed."""

        def observed(patience_ms: int) -> int:
            wait = step(patience_ms)
            now = time.monotonic()
            self.health.stepped(now)
            if now >= self._look_at:
                self._look_at = now + LOOK_S
                self.look()
            return wait

        return observed

    def look(self) -> None:
        for queue, (owner, log, index) in self._owners.items():
            states = owner.states
            self.health.saw(queue, member=_is_member(log), states=states)
            self.metrics.partitions(queue, states.values())
            if index is not None and isinstance(self.metrics, DispatcherMetrics):
                found = (index.position(number) for number in states)
                if synced := [position.synced_at for position in found if position is not None]:
                    self.metrics.synced(min(synced))
        if self._clock is not None:
            self._look_at_clock(self._clock)

    def _look_at_clock(self, clock: Clock) -> None:
        now = clock.now()
        if isinstance(clock, JudgedClock):
            self.metrics.clock(now, clock.error(), clock.readings)
        else:
            self.metrics.clock(now)

    def of_clock(self, clock: Clock) -> Observer:
        """From now on the gauges tell of this clock, and the probe measures by it."""
        self._clock = clock
        return self

    def counted(self, queue: str, executor: Places) -> Executor:
        """`executor`, with its calls counted."""
        metrics, clock = self.metrics, self._clock
        if not isinstance(metrics, WorkerMetrics) or clock is None:
            return executor
        return CountedExecutor(executor, metrics, queue, clock.now)

    def over(self, burst: Burst | None, workers: Iterable[Idler]) -> bool:
        """Whether there is nothing left to do, if that is to be the end."""
        if burst is None or not isinstance(self.metrics, WorkerMetrics):
            return False
        ready = self.health.unready() is None
        return burst.over(workers, ready=ready, finished=self.metrics.finished)

    @contextmanager
    def probing(self, settings: Settings, queues: Callable[[], Mapping[str, int]]) -> Iterator[None]:
        """Measure lateness while inside, unless nobody could see it, or it is switched off. `queues` = work
        partitions by queue, for any thread; so must the clock be."""
        wanted = settings.lateness_probe and settings.metrics_port != 0
        if not wanted or self._clock is None or not isinstance(self.metrics, DispatcherMetrics):
            yield
            return
        bootstrap = settings.require_bootstrap()
        probe = LatenessProbe(
            open_consumer=lambda: probe_consumer(bootstrap, settings.kafka),
            queues=queues,
            topic=settings.names.work,
            budget=settings.lateness_probe,
            now=self._clock.now,
            sink=self.metrics,
            events=self.metrics,
        )
        probe.start()
        try:
            yield
        finally:
            probe.close()


def _is_member(log: GroupLog) -> bool:
    try:
        log.membership()
    except RetryStep:
        return False
    return True


@contextmanager
def observing(settings: Settings, role: str, slot: int, stop: Stop, log: Events) -> Iterator[Observer]:
    """Metrics and health of this process, served while inside; the address is told as the event `serving`.

    InvalidInput for an address this machine does not have, Refused if no port that was asked for is free.
    """
    metrics = (DispatcherMetrics if role == "dispatcher" else WorkerMetrics)(
        slot=slot, version=__version__, librdkafka=libversion()[0], forward=log
    )
    health = Health(role=role, hang_s=WATCHDOG_S, stopping=lambda: stop.requested)
    with ExitStack() as stack:
        if settings.metrics_port != 0:
            server = _serve(settings, role, slot, metrics, health)
            stack.callback(server.close)
            log.on("serving", metrics=f"http://{server.address}/metrics")
        yield Observer(metrics, health)


def _serve(settings: Settings, role: str, slot: int, metrics: Metrics, health: Health) -> HttpServer:
    first = (PORTS[role] if settings.metrics_port is None else settings.metrics_port) + slot
    tried = range(first, min(first + PORTS_TRIED, 65_536))
    routes = {
        "/metrics": metrics_route(metrics.registry),
        "/healthz": verdict_route(health.unhealthy),
        "/readyz": verdict_route(health.unready),
    }
    # Nobody asked for these ports, so that all of them are taken must not keep anybody from dispatching.
    return HttpServer(
        settings.metrics_host, chain(tried, (0,) if settings.metrics_port is None else ()), routes
    )


def learn_era(settings: Settings, metrics: Metrics) -> None:
    """Read the era in the background: a dispatcher does not need it, and should not start later for it."""

    def learn() -> None:
        with suppress(DuelineError):
            metrics.era(load_era(settings))

    threading.Thread(target=learn, name="era", daemon=True).start()
