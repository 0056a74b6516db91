"""A worker's handler calls, counted on their way through the executor."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable

from pipeline.core.handler import Cancel, Dead, Retry, Snooze
from pipeline.metrics import WorkerMetrics
from pipeline.ports import Call, Done, Executor


class CountedExecutor:
    """`Executor`. Counts in plain numbers, handed to the metrics when calls are collected: once a step.

    Collected on the owner's thread, as `ports.Executor` says.
    """

    def __init__(self, executor: Executor, metrics: WorkerMetrics, queue: str) -> None:
        self._executor = executor
        self._metrics = metrics
        self._queue = queue
        self._started = 0
        self._in_flight = 0

    def submit(self, call: Call) -> None:
        self._started += 1
        self._executor.submit(call)

    def completed(self) -> list[Done]:
        done = self._executor.completed()
        if done or self._started:
            self._in_flight += self._started - len(done)
            finished = Tally(map(handler_outcome, done))
            self._metrics.calls(self._queue, self._started, finished, self._in_flight)
            self._started = 0
        return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        gone = self._executor.withdraw(tickets)
        self._in_flight -= len(gone)
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
        case Cancel():
            return "cancel"
        case Dead():
            return "dead"
        case _:
            return "returned" if done.error is None else "failed"
