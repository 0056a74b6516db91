"""What the server counts for Prometheus (docs/metrics.md).

Labels are names of endpoints and statuses, never a user's text.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class ServerMetrics:
    """In a registry of its own. Any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "dueline_server_requests",
            "Requests by endpoint and status.",
            ["endpoint", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "dueline_server_request_seconds",
            "From the head of a request to its answer.",
            ["endpoint"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        """By endpoint and status: to look for the labels costs more than to count."""
        self.streams = Gauge("dueline_server_streams", "Event streams that are open.", registry=self.registry)
        self.behind = Gauge(
            "dueline_server_behind_seconds",
            "Age of the oldest record that the read model has not folded.",
            registry=self.registry,
        )

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        known = self._known.get((endpoint, status))
        if known is None:
            labelled = self._requests.labels(endpoint, str(status)), self._seconds.labels(endpoint)
            known = self._known[endpoint, status] = labelled
        known[0].inc()
        known[1].observe(seconds)
