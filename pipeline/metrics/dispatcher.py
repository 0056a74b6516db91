"""What a dispatcher counts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pipeline.metrics.base import BATCH_BUCKETS, LATENESS_BUCKETS, Fields, Metrics, Words
from pipeline.ports import Events

SKIPS = ("misfire", "catch_up", "overlap", "buffer_full", "paused", "edited", "cancelled", "max_occurrences")
TRANSACTION_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
"""Seconds. One above a second counts as of unknown outcome; the broker ends it after ten."""
COMMAND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class DispatcherMetrics(Metrics):
    """What a dispatcher counts. `lateness` may be called from another thread, the probe's."""

    def __init__(self, *, slot: int, version: str, librdkafka: str, forward: Events) -> None:
        super().__init__(
            role="dispatcher", slot=slot, version=version, librdkafka=librdkafka, forward=forward
        )
        self._add_transactions()
        self._add_commands()
        self._add_gauges()
        self._add_lateness()
        self._rebuilds = self._counter("index_rebuilds", "Partitions rebuilt from the log.")
        self._stopped = self._counter(
            "partitions_stopped", "Partitions stopped: a record nobody here can read."
        )
        self._counts |= {
            "index_rebuild": self._on_rebuild,
            "partition_stopped": lambda _: self._stopped.inc(),
        }

    def _add_transactions(self) -> None:
        self._fired = self._counter("jobs_fired", "Runs emitted to work topics.")
        self._dead = self._counter("dead_letters", "Records put on the dead topic, by reason.", "reason")
        self._skipped = self._counter(
            "schedule_skipped", "Occurrences of schedules that were not fired, by reason.", "reason"
        )
        self._words["skip"] = Words()
        for reason in SKIPS:
            self._skipped.labels(self._word("skip", reason))
        self._transactions = self._counter("transactions", "Transactions by outcome.", "outcome")
        for outcome in ("committed", "aborted", "fenced", "unknown", "poison"):
            self._transactions.labels(self._word("outcome", outcome))
        self._duration = self._histogram(
            "transaction_duration_seconds", "From begin to its outcome.", TRANSACTION_BUCKETS
        )
        self._batch = self._histogram(
            "transaction_jobs", "Index entries settled by one transaction.", BATCH_BUCKETS
        )
        self._counts |= {"transaction": self._on_transaction, "emitted": self._on_emitted}

    def _add_commands(self) -> None:
        self._commands = self._counter("commands", "Commands executed.", "verb", "outcome")
        self._waited = self._histogram(
            "command_latency_seconds", "From the command's append to its answer.", COMMAND_BUCKETS
        )
        self._counts["answered"] = self._on_answered

    def _add_gauges(self) -> None:
        self._gauges = {
            field: (self._gauge(name, text), scale)
            for field, (name, text, scale) in DISPATCHER_GAUGES.items()
        }
        self._index_bytes = self._gauge("index_bytes", "Size of the due index on disk.")
        self._synced = self._gauge(
            "index_synced_timestamp_seconds", "Store time up to which the index has followed the log, oldest."
        )
        for gauge in (self._index_bytes, self._synced, *(gauge for gauge, _ in self._gauges.values())):
            gauge.set(math.nan)  # not known yet, which is not nothing
        self._counts["gauges"] = self._on_gauges

    def _add_lateness(self) -> None:
        self._lateness = self._histogram(
            "lateness_seconds", "Received by a waiting consumer, minus due.", LATENESS_BUCKETS, "queue"
        )
        self._emit_delay = self._histogram(
            "emit_delay_seconds", "LogAppendTime minus due.", LATENESS_BUCKETS, "queue"
        )
        self._early = self._counter("early_runs", "Runs appended before they were due: must stay 0.")
        self._probed = self._counter("probe_records", "Records the lateness probe looked at.", "kind")
        for kind in ("measured", "due_at_creation", "unreadable"):
            self._probed.labels(kind)

    # -- events -----------------------------------------------------------------------------------------------

    def _on_rebuild(self, fields: Fields) -> None:
        self._rebuilds.inc()
        self._on_restoring(fields)

    def _on_transaction(self, fields: Fields) -> None:
        self._transactions.labels(self._word("outcome", fields.get("outcome", "other"))).inc()
        if "duration_ms" in fields:
            self._duration.observe(fields["duration_ms"] / 1000)
        if fields.get("jobs"):
            self._batch.observe(fields["jobs"])

    def _on_emitted(self, fields: Fields) -> None:
        self._fired.inc(fields.get("fired", 0))
        reasons: Mapping[str, int] = fields.get("reasons") or {}
        for reason, count in reasons.items():
            self._dead.labels(self._word("reason", reason)).inc(count)
        skipped: Mapping[str, int] = fields.get("skipped") or {}
        for reason, count in skipped.items():
            self._skipped.labels(self._word("skip", reason)).inc(count)
        unsaid = fields.get("dead", 0) - sum(reasons.values())
        if unsaid > 0:
            self._dead.labels("unspecified").inc(unsaid)

    def _on_answered(self, fields: Fields) -> None:
        verb, outcome = fields.get("verb", "other"), fields.get("outcome", "other")
        self._commands.labels(self._word("verb", verb), self._word("answer", outcome)).inc()
        if "waited_ms" in fields:
            self._waited.observe(max(0, fields["waited_ms"]) / 1000)

    def _on_gauges(self, fields: Fields) -> None:
        for field, (gauge, scale) in self._gauges.items():
            if field in fields:
                gauge.set(fields[field] * scale)
        if "index_bytes" in fields:
            self._index_bytes.set(fields["index_bytes"])

    # -- once a second, and the probe -------------------------------------------------------------------------

    def synced(self, oldest_ms: int) -> None:
        """Of the partitions owned, the one whose index has followed the log the least (epoch ms)."""
        self._synced.set(oldest_ms / 1000)

    def lateness(self, queue: str, *, due_at: int, appended_at: int, received_at: int) -> None:
        """One run as a consumer already waiting received it; epoch ms by the store's clock.

        Our reading of that clock is a lower bound, so the append is one too.
        """
        if appended_at < due_at:
            self._early.inc()
        self._emit_delay.labels(queue).observe((appended_at - due_at) / 1000)
        self._lateness.labels(queue).observe((max(received_at, appended_at) - due_at) / 1000)
        self._probed.labels("measured").inc()

    def not_measured(self, kind: str) -> None:
        """A record of which lateness says nothing: `due_at_creation` (it was due before it was made), or
        `unreadable`."""
        self._probed.labels(kind).inc()


DISPATCHER_GAUGES: Mapping[str, tuple[str, str, float]] = {
    "pending": ("index_jobs", "Live entries of the due index.", 1),
    "overdue": ("jobs_overdue", "Jobs due and not fired yet.", 1),
    "oldest_overdue_ms": ("oldest_overdue_seconds", "How long the oldest of them has been due.", 0.001),
    "schedule_overdue_ms": (
        "schedule_oldest_overdue_seconds",
        "How long the oldest schedule that should have fired has been due; above the SLO something is wrong.",
        0.001,
    ),
    "generation": ("generation", "Generation of the consumer group; 0 = not a member.", 1),
}
"""Field of the event `gauges` → metric, its meaning, and the factor to its unit."""
