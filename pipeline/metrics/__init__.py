"""What the owners tell, counted for Prometheus (docs/metrics.md says what each number means)."""

from pipeline.metrics.base import WORDS_LIMIT, Metrics
from pipeline.metrics.dispatcher import DispatcherMetrics
from pipeline.metrics.worker import WorkerMetrics

__all__ = ["WORDS_LIMIT", "DispatcherMetrics", "Metrics", "WorkerMetrics"]
