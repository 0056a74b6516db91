"""A worker's handler calls, counted and measured on their way through the executor."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from pipeline.core.handler import Cancel, Dead, Fenced, InvalidPayload, Retry, Snooze, Stopped, TimedOut
from pipeline.metrics import WorkerMetrics
from pipeline.ports import Call, Done, Executor


class Places(Executor, Protocol):
    """An executor that knows which of its places are taken for nothing."""

    @property
    def abandoned(self) -> int:
        """Calls that were given up and go on all the same."""
        ...


class CountedExecutor:
    """`Executor`. Counts in plain numbers, handed to the metrics when calls are collected: once a step.

    Collected on the owner's thread, as `ports.Executor` says. `now` is the store's time in epoch ms.
    """

    def __init__(self, executor: Places, metrics: WorkerMetrics, queue: str, now: Callable[[], int]) -> None:
        self._executor = executor
        self._metrics = metrics
        self._queue = queue
        self._now = now
        self._started = 0
        self._calls: dict[int, Call] = {}
        """Those under way, by ticket."""
        self._others: set[int] = set()
        """Calls that are no attempts: the application is told of a dead run."""

    def submit(self, call: Call) -> None:
        if call.fired_at:
            self._started += 1
            self._calls[call.ticket] = call
        else:
            self._others.add(call.ticket)
        self._executor.submit(call)

    def completed(self) -> list[Done]:
        done = self._executor.completed()
        if done or self._started:
            self._tell(self._measure(done))
        return done

    def _tell(self, finished: Mapping[str, int]) -> None:
        self._metrics.calls(
            self._queue,
            started=self._started,
            finished=finished,
            in_flight=len(self._calls),
            abandoned=self._executor.abandoned,
        )
        self._started = 0

    def _measure(self, done: Iterable[Done]) -> Tally[str]:
        """By outcome. A call that never began (`began` 0) took no time."""
        epoch = self._now() / 1000 - time.monotonic()
        delays: list[float] = []
        durations: dict[tuple[str, str], list[float]] = {}
        outcomes: Tally[str] = Tally()
        for one in done:
            ticket, value, error, began, ended = one
            plain = error is None and not isinstance(value, Exception)
            outcome = "returned" if plain else handler_outcome(one)
            call = self._calls.pop(ticket, None)
            if ticket in self._others:
                self._others.discard(ticket)
                continue
            if began and call is not None:
                durations.setdefault((call.handler, outcome), []).append(ended - began)
                delays.append(epoch + began - call.fired_at / 1000)
            else:
                outcomes[outcome] += 1
        for (handler, outcome), seconds in durations.items():
            outcomes[outcome] += len(seconds)
            self._metrics.duration(handler, outcome).observe(seconds)
        # Our reading of the store's clock is a lower bound.
        self._metrics.start_delay(self._queue).observe([max(0.0, delay) for delay in delays])
        return outcomes

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        gone = self._executor.withdraw(tickets)
        for ticket in gone:
            self._calls.pop(ticket, None)
        self._tell({})
        return gone

    def stop(self, tickets: Iterable[int]) -> None:
        self._executor.stop(tickets)

    def close(self, timeout_ms: int) -> bool:
        return self._executor.close(timeout_ms)


def handler_outcome(done: Done) -> str:
    """What a handler did, in the words of its verbs; what becomes of the job is decided after."""
    match done.error if done.error is not None else done.value:
        case Retry():
            return "retry"
        case Snooze():
            return "snooze"
        case Fenced():
            return "fenced"
        case Cancel():
            return "cancel"
        case InvalidPayload():
            return "invalid_payload"
        case Dead():
            return "dead"
        case TimedOut():
            return "timed_out"
        case Stopped():
            return "stopped"
        case _:
            return "returned" if done.error is None else "failed"
