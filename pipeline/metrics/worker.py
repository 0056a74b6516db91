"""What a worker counts: attempts by queue and handler, the transactions that carry their acks, and its lease."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from pipeline.metrics.base import BATCH_BUCKETS, LATENESS_BUCKETS, Fields, Metrics
from pipeline.metrics.spread import Spread
from pipeline.ports import Events

START_BUCKETS = tuple(sorted({*LATENESS_BUCKETS, 0.08}))
"""Seconds. The limits that the product states for a run's way to its handler (10, 25, 40, 80 ms) are edges."""
DURATION_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200,
)  # fmt: skip


class WorkerMetrics(Metrics):
    """Counts of all queues of one process."""

    def __init__(self, *, slot: int, version: str, librdkafka: str, forward: Events) -> None:
        super().__init__(role="worker", slot=slot, version=version, librdkafka=librdkafka, forward=forward)
        self.finished = 0
        """Outcomes committed, of all queues."""
        self._add_attempts()
        self._add_acks()
        self._lease = {
            action: self._counter(name, text, "queue") for action, (name, text) in LEASE_COUNTS.items()
        }
        self._gauges = {
            field: (self._gauge(name, text, "queue"), scale)
            for field, (name, text, scale) in WORKER_GAUGES.items()
        }
        self._stopped = self._counter(
            "partitions_stopped", "Partitions stopped: metadata nobody here can read."
        )
        self._counts |= {
            "acked": self._on_acked,
            "gauges": self._on_gauges,
            "partition_stopped": lambda _: self._stopped.inc(),
        }

    def _add_attempts(self) -> None:
        self._started = self._counter("attempts_started", "Handlers started.", "queue")
        self._finished = self._counter(
            "attempts_finished", "Handlers that came back, by what they did.", "queue", "outcome"
        )
        self._in_flight = self._gauge(
            "attempts_in_flight", "Handlers running or waiting for a thread.", "queue"
        )
        self._abandoned = self._gauge(
            "threads_abandoned", "Threads whose handlers outlived their time.", "queue"
        )
        self._duration = self._spreads(
            "handler_duration_seconds", "From a handler's begin to its end.", DURATION_BUCKETS, "handler", "outcome"
        )  # fmt: skip
        self._durations: dict[tuple[str, str], Spread] = {}
        self._start_delay = self._spreads(
            "start_delay_seconds", "From LogAppendTime to the handler's begin.", START_BUCKETS, "queue"
        )

    def _add_acks(self) -> None:
        self._acks = self._counter("acks", "Outcomes committed.", "queue")
        self._batch = self._histogram(
            "ack_transaction_outcomes", "Outcomes in one ack transaction.", BATCH_BUCKETS, "queue"
        )
        self._dead = self._counter("dead_letters", "Records put on the dead topic, by reason.", "reason")

    # -- events -----------------------------------------------------------------------------------------------

    def on(self, action: str, **fields: Any) -> None:
        if action in self._lease:
            self._lease[action].labels(_queue(fields)).inc(_amount(fields))
        super().on(action, **fields)

    def _on_acked(self, fields: Fields) -> None:
        queue, outcomes = _queue(fields), fields.get("outcomes", 0)
        self.finished += outcomes
        self._acks.labels(queue).inc(outcomes)
        self._batch.labels(queue).observe(outcomes)
        dead: Mapping[str, int] = fields.get("dead") or {}
        for reason, count in dead.items():
            self._dead.labels(self._word("reason", reason)).inc(count)

    def _on_gauges(self, fields: Fields) -> None:
        for field, (gauge, scale) in self._gauges.items():
            if field in fields:
                value = math.nan if fields[field] is None else fields[field] * scale
                gauge.labels(_queue(fields)).set(value)

    # -- handler calls ----------------------------------------------------------------------------------------

    def calls(
        self, queue: str, *, started: int, finished: Mapping[str, int], in_flight: int, abandoned: int
    ) -> None:
        """What an executor did since the last time; calls under way now, and threads left behind by such as outlived
        their time."""
        self._started.labels(queue).inc(started)
        for outcome, count in finished.items():
            self._finished.labels(queue, outcome).inc(count)
        self._in_flight.labels(queue).set(in_flight)
        self._abandoned.labels(queue).set(abandoned)

    def duration(self, handler: str, outcome: str) -> Spread:
        """Where the seconds of a handler's call are put."""
        spread = self._durations.get((handler, outcome))
        if spread is None:
            spread = self._duration.labels(self._word("handler", handler), outcome)
            self._durations[handler, outcome] = spread
        return spread

    def start_delay(self, queue: str) -> Spread:
        """Where the seconds are put that a run took from the log to its handler."""
        return self._start_delay.labels(queue)


def _queue(fields: Fields) -> str:
    return str(fields.get("queue", ""))


def _amount(fields: Fields) -> int:
    """How many runs or outcomes an event is about: it says their number or names them; else it is one."""
    value = next((fields[name] for name in ("runs", "outcomes", "offers") if name in fields), 1)
    return len(value) if isinstance(value, Sized) else int(value)


LEASE_COUNTS: Mapping[str, tuple[str, str]] = {
    "ack_refused": ("acks_refused", "Outcomes whose transaction a stale generation had refused; sent again."),
    "fenced_ack": ("acks_fenced", "Outcomes that came too late: a later attempt had been started."),
    "held": ("runs_found_held", "Runs found in flight on another live worker at a takeover, and left to it."),
    "reclaimed": ("runs_reclaimed", "Held runs taken from workers that are gone, to be started anew here."),
    "adopted": ("runs_adopted", "Runs of our own that went on when their partition came back."),
    "offered": ("outcomes_offered", "Outcomes handed to the owner of a partition that we had lost."),
    "offer_taken": ("offers_taken", "Offered outcomes committed here for their workers."),
    "offer_ignored": ("offers_ignored", "Offered outcomes that came after a later start."),
    "result_discarded": ("results_discarded", "Handlers' results that nobody could ack any more."),
    "stopped_run": ("runs_stopped", "Runs ended from outside, before or while they ran."),
}
"""Event → counter by queue and its meaning."""

WORKER_GAUGES: Mapping[str, tuple[str, str, float]] = {
    "waiting": ("runs_waiting", "Runs received that wait for a place.", 1),
    "held": ("runs_held", "Runs left to another live worker that started them.", 1),
    "parked": ("runs_parked", "Runs kept because nobody here knows their handler.", 1),
    "paused": ("partitions_paused", "Partitions not fetched for now: enough of their runs wait.", 1),
    "lag": ("work_lag_records", "Offsets from the committed ones to the end, of this process's partitions.", 1),
    "oldest_gap_ms": ("oldest_gap_seconds", "Age of the oldest run that holds back a committed offset.", 0.001),
}  # fmt: skip
"""Field of the event `gauges` → gauge by queue, its meaning, and the factor to its unit."""
