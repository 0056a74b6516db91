"""What the owners tell, counted for Prometheus, and handed on to the log (docs/metrics.md says what each means).

Counting happens on the owner's thread, once a transaction and once a second, never once a job. The thread that
answers a scrape reads only the numbers kept here: the index, the consumer and the owners belong to their thread.
Labels are bounded: a queue, a state, an outcome or another word of the protocol; never an id or a text of a user.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from pipeline.core.clock import Reading
from pipeline.core.states import PartitionState
from pipeline.ports import Events

LATENESS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60,
)  # fmt: skip
"""Seconds. Every limit that the product states (15 and 40 ms, 0.25, 1, 2, 20 and 60 s) is a bucket's edge."""
TRANSACTION_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
"""Seconds. One above a second counts as of unknown outcome; the broker ends it after ten."""
BATCH_BUCKETS = (1, 10, 100, 500, 1_000, 2_000, 4_000, 8_000, 20_000)
COMMAND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 60, 300, 1_800)
WORDS_LIMIT = 40
"""Values of one label at most; a word that comes after them is counted as `other`."""
_WORD = re.compile(r"[a-z][a-z0-9_.-]{0,59}")

Fields = Mapping[str, Any]


class Words:
    """Keeps a label bounded whatever is told: a known word, or `other`."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def bound(self, value: object) -> str:
        word = str(value)
        if word in self._known:
            return word
        if len(self._known) < WORDS_LIMIT and _WORD.fullmatch(word):
            self._known.add(word)
            return word
        return "other"


class Metrics:
    """Counts for any role, in a registry of its own. Implements `ports.Events` and hands every event on.

    Any thread may call it; the owner's does, and the probe's when it fails.
    """

    def __init__(self, *, role: str, slot: int, version: str, librdkafka: str, forward: Events) -> None:
        # A start time beside every counter and histogram would add a third to a scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._forward = forward
        self._words = {name: Words() for name in ("action", "outcome", "verb", "answer", "reason")}
        self._counts: dict[str, Callable[[Fields], None]] = {
            "assigned": self._on_restoring,
            "index_rebuild": self._on_restoring,
            "outcome_unknown": self._on_restoring,
            "running": self._on_running,
            "revoked": self._on_gone,
            "lost": self._on_gone,
        }
        self._restoring: dict[tuple[str, int], float] = {}
        """Partitions on their way to running, by queue and number, and since when."""
        build = self._gauge("build_info", "Always 1.", "version", "librdkafka", "role", "slot")
        build.labels(version, librdkafka, role, str(slot)).set(1)
        self._events = self._counter("events", "Events told in the log, by action.", "action")
        self._recycles = self._counter(
            "producer_recycles", "Transactional producers replaced, by reason.", "reason"
        )
        self._states = self._gauge(
            "partition_state",
            "Partitions of this process by state; queue is empty for jobs.",
            "queue",
            "state",
        )
        self._recovery = self._histogram(
            "recovery_seconds", "From assigned, or from a set-back, to running.", RECOVERY_BUCKETS, "queue"
        )
        self._era = self._gauge("era", "Era of the installation, the leading part of every token.")
        self._offset = self._gauge("clock_offset_seconds", "The store's clock minus this host's.")
        self._error = self._gauge("clock_error_seconds", "By how much that reading may be behind, at most.")
        self._ahead = self._gauge(
            "clock_disagreement_seconds", "A broker's clock minus the store's, its lower bound.", "broker"
        )
        self._outside = self._gauge(
            "clock_brokers_outside", "Brokers whose clock the majority does not share."
        )
        for gauge in (self._era, self._offset, self._error):
            gauge.set(math.nan)  # not known yet, which is not nothing
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"dueline_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dueline_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"dueline_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _word(self, label: str, value: object) -> str:
        return self._words[label].bound(value)

    # -- told by the owner ----------------------------------------------------------------------------------

    def on(self, action: str, **fields: Any) -> None:
        """A field that is missing counts as nothing: a metric must never end the loop that tells it."""
        self._events.labels(self._word("action", action)).inc()
        count = self._counts.get(action)
        if count is not None:
            count(fields)
        if action in RECYCLING:
            self._recycles.labels(RECYCLING[action]).inc()
        self._forward.on(action, **fields)

    def _on_restoring(self, fields: Fields) -> None:
        for place in _places(fields):
            self._restoring.setdefault(place, time.monotonic())

    def _on_running(self, fields: Fields) -> None:
        for place in _places(fields):
            since = self._restoring.pop(place, None)
            if since is not None:
                self._recovery.labels(place[0]).observe(time.monotonic() - since)

    def _on_gone(self, fields: Fields) -> None:
        for place in _places(fields):
            self._restoring.pop(place, None)

    def of_queue(self, queue: str) -> Events:
        """The same for one queue's owner: every event says which queue it is about."""
        return _OfQueue(self, queue)

    # -- once a second, on the owner's thread -----------------------------------------------------------------

    def partitions(self, queue: str, states: Iterable[PartitionState]) -> None:
        """Where the partitions of one owner stand; `queue` is empty for `jobs`."""
        tally = Tally(states)
        for state in PartitionState:
            self._states.labels(queue, state.value).set(tally[state])

    def clock(
        self, store_ms: int, error_ms: int | None = None, readings: Mapping[int, Reading] | None = None
    ) -> None:
        """The store's time now, by the clock that decides what is due, with what it knows of its error and of
        each broker."""
        self._offset.set(store_ms / 1000 - time.time())
        if error_ms is not None:
            self._error.set(error_ms / 1000)
        if readings is not None:
            self._ahead.clear()
            for broker, reading in readings.items():
                self._ahead.labels(str(broker)).set(reading.ahead_ms / 1000)
            self._outside.set(sum(reading.outside for reading in readings.values()))

    def era(self, era: int) -> None:
        self._era.set(era)


def _places(fields: Fields) -> list[tuple[str, int]]:
    """The partitions that an event is about, with the queue of their owner."""
    numbers = fields.get("partitions", ())
    alone = (fields["partition"],) if "partition" in fields else ()
    return [(fields.get("queue", ""), number) for number in (*numbers, *alone)]


RECYCLING = {"outcome_unknown": "outcome_unknown", "lost": "membership_lost", "rebuild": "fatal_error"}
"""Events after which a log has new producers (DESIGN §5.6)."""


class _OfQueue:
    """Implements `ports.Events`."""

    def __init__(self, metrics: Metrics, queue: str) -> None:
        self._metrics = metrics
        self._queue = queue

    def on(self, action: str, **fields: Any) -> None:
        self._metrics.on(action, **{"queue": self._queue, **fields})


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
    "generation": ("generation", "Generation of the consumer group; 0 = not a member.", 1),
}
"""Field of the event `gauges` → metric, its meaning, and the factor to its unit."""


class WorkerMetrics(Metrics):
    """What a worker counts: attempts by queue, and the transactions that carry their acks."""

    def __init__(self, *, slot: int, version: str, librdkafka: str, forward: Events) -> None:
        super().__init__(role="worker", slot=slot, version=version, librdkafka=librdkafka, forward=forward)
        self._started = self._counter("attempts_started", "Handlers started.", "queue")
        self._finished = self._counter(
            "attempts_finished", "Handlers that came back, by what they did.", "queue", "outcome"
        )
        self._in_flight = self._gauge(
            "attempts_in_flight", "Handlers running or waiting for a thread.", "queue"
        )
        self._acks = self._counter("acks", "Outcomes committed.", "queue")
        self._batch = self._histogram(
            "ack_transaction_outcomes", "Outcomes in one ack transaction.", BATCH_BUCKETS, "queue"
        )
        self._stopped = self._counter(
            "partitions_stopped", "Partitions stopped: metadata nobody here can read."
        )
        self._counts |= {"acked": self._on_acked, "partition_stopped": lambda _: self._stopped.inc()}

    def _on_acked(self, fields: Fields) -> None:
        queue, outcomes = fields.get("queue", ""), fields.get("outcomes", 0)
        self._acks.labels(queue).inc(outcomes)
        self._batch.labels(queue).observe(outcomes)

    def calls(self, queue: str, started: int, finished: Mapping[str, int], in_flight: int) -> None:
        """What an executor did since the last time."""
        self._started.labels(queue).inc(started)
        for outcome, count in finished.items():
            self._finished.labels(queue, outcome).inc(count)
        self._in_flight.labels(queue).set(in_flight)
