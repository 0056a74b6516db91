"""The composition root: the only place that puts parts together, sleeps, and listens to signals."""

from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.service.apps import load_app
from pipeline.service.crew import run_worker
from pipeline.service.run import run_dispatcher

__all__ = ["ensure_topics", "load_app", "run_dispatcher", "run_worker"]
