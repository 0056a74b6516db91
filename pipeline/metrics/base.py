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
from pipeline.core.names import NAME
from pipeline.core.states import PartitionState
from pipeline.metrics.spread import Spreads
from pipeline.ports import Events

LATENESS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 60,
)  # fmt: skip
"""Seconds. Every limit that the product states (15 and 40 ms, 0.25, 1, 2, 20 and 60 s) is a bucket's edge."""
BATCH_BUCKETS = (1, 10, 100, 500, 1_000, 2_000, 4_000, 8_000, 20_000)
RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 60, 300, 1_800)
WORDS_LIMIT = 40
"""Values of one label at most; a word that comes after them is counted as `other`."""
WORD = re.compile(r"[a-z][a-z0-9_.-]{0,59}")

Fields = Mapping[str, Any]


class Words:
    """Keeps a label bounded whatever is told: a known word, or `other`."""

    def __init__(self, pattern: re.Pattern[str] = WORD) -> None:
        self._pattern = pattern
        self._known: set[str] = set()

    def bound(self, value: object) -> str:
        word = str(value)
        if word in self._known:
            return word
        if len(self._known) < WORDS_LIMIT and self._pattern.fullmatch(word):
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
        self._words["handler"] = Words(NAME)
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

    def _spreads(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Spreads:
        return Spreads(f"dueline_{name}", text, labels, buckets, self.registry)

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
