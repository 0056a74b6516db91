"""Attempts in the executor: sent off once their starts are durable, records made of what they came to (DESIGN §7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from pipeline.attempt import Means, call_handler
from pipeline.core.admission import Limits, Quotas
from pipeline.core.handler import DeadEnd, Pool, Stopped, Succeeded, decide
from pipeline.core.registry import Registry
from pipeline.desk import Desk
from pipeline.hooks import DeadHooks
from pipeline.lane import Flight
from pipeline.ports import Call, Clock, Done, Events, Executor, Put, Random, Task
from pipeline.tray import Tray

Settle = Callable[[Flight, list[Put], str | None], None]
"""Told what an attempt came to, as records, with the reason if it ended dead."""


class Calls:
    """Used by the worker's thread only."""

    def __init__(
        self,
        *,
        executor: Executor,
        registry: Registry,
        means: Means,
        desk: Desk,
        hooks: DeadHooks,
        clock: Clock,
        random: Random,
        events: Events,
        limits: Limits,
        tickets: Iterator[int],
        airborne: dict[int, Flight],
        quotas: Quotas,
    ) -> None:
        """`airborne` = the attempts whose handlers have not come back, by ticket; shared with the worker."""
        self._executor = executor
        self._registry = registry
        self._means = means
        self._desk = desk
        self._hooks = hooks
        self._clock = clock
        self._random = random
        self._events = events
        self._limits = limits
        self._tickets = tickets
        self._airborne = airborne
        self._quotas = quotas

    def launch(self, flights: Iterable[Flight]) -> None:
        """Their starts are durable: their handlers may begin."""
        for flight in flights:
            if flight.orphan:
                continue
            self._submit(flight)
            if flight.lane.stops.hits(flight.run):  # it came while the start was on its way
                self.stop(flight)

    def _submit(self, flight: Flight) -> None:
        run = flight.run
        spec = self._registry.get(run.handler)
        assert spec is not None, "started only with a known handler"
        flight.ticket = next(self._tickets)
        flight.side = tray = Tray(self._means, partial(_should_end, flight))
        self._airborne[flight.ticket] = flight
        # The last attempt before the limit of worker deaths gets a process of its own, to kill no neighbour.
        apart = spec.pool is Pool.PROCESS or flight.attempt >= self._limits.max_worker_deaths
        fired_at = flight.delivery.fired_at
        task = Task(run, flight.attempt, flight.token, fired_at, tray) if apart else None
        timeout = spec.timeout_ms if run.timeout_ms is None else run.timeout_ms
        function = partial(call_handler, spec, flight, tray)
        self._executor.submit(
            Call(flight.ticket, function, spec.asynchronous, timeout, task, spec.name, fired_at)
        )

    def stop(self, flight: Flight) -> None:
        flight.stopped = True
        self._executor.stop([flight.ticket])
        self._events.on("stopping", job=flight.run.job_id, handler=flight.run.handler)

    def collect(self, settle: Settle) -> int:
        """Tell `settle` of those that have come back; how many attempts they were."""
        now, landed = self._clock.now(), 0
        for done in self._executor.completed():
            flight = self._airborne.pop(done.ticket, None)
            if self._hooks.landed(done):
                continue
            if flight is None:
                self._events.on("result_discarded", ticket=done.ticket)
                continue
            landed += 1
            self._quotas.count(flight.run, -1)
            self._land(flight, done, now, settle)
        return landed

    def _land(self, flight: Flight, done: Done, now: int, settle: Settle) -> None:
        tray = flight.side
        assert tray is not None, "set when it was launched"
        tray.close()
        if done.error is not None and (flight.stopped or isinstance(done.error, Stopped)):
            settle(flight, self._desk.stopped(flight, now, tray.tail()), None)
            return
        spec = self._registry.get(flight.run.handler)
        assert spec is not None, "started only with a known handler"
        decision = decide(spec, flight.run, value=done.value, error=done.error, now=now, random=self._random)
        puts = self._desk.settle(flight, decision, now, tray.tail())
        if tray.outputs and isinstance(decision, Succeeded):
            puts += tray.outputs
        settle(flight, puts, decision.reason if isinstance(decision, DeadEnd) else None)


def _should_end(flight: Flight) -> bool:
    return flight.stopped
