"""The read model of a server: what the topics say, kept on disk and followed live, for lists and pages (DESIGN §9).

It folds what every partition holds and never fires, owns or acknowledges anything; any number of servers each keep one.

    from pipeline.config import load_settings
    from pipeline.readmodel import open_readmodel

    questions = open_readmodel(load_settings())     # follows at once, in a thread of its own; the store may be down
    questions.freshness()                           # Freshness(behind, age_ms, ready, problem)
    questions.close()

Over the twins in memory, for tests:

    from pipeline.readmodel.memory import memory_readmodel

    questions = memory_readmodel(cluster, names, layout, clock, tmp_path / "readmodel")
"""

from __future__ import annotations

from pipeline.config import Settings
from pipeline.readmodel.forgetting import DAY_MS, Retention
from pipeline.readmodel.model import ReadModel
from pipeline.readmodel.questions import (
    LIST_LIMIT,
    Count,
    Freshness,
    JobsWanted,
    Page,
    Position,
    Questions,
    View,
)

__all__ = [
    "LIST_LIMIT",
    "Count",
    "Freshness",
    "JobsWanted",
    "Page",
    "Position",
    "Questions",
    "ReadModel",
    "Retention",
    "View",
    "open_readmodel",
    "retention_of",
]


def retention_of(settings: Settings) -> Retention:
    """How long and how many jobs are kept that have ended."""
    return Retention(ended_ms=settings.history_days * DAY_MS, ended_most=settings.history_jobs)


def open_readmodel(settings: Settings, retention: Retention | None = None) -> ReadModel:
    """The read model under `<state dir>/readmodel/<prefix>`. Refused if another process has it open; InvalidInput for a
    bad setting."""
    from pipeline.readmodel.kafka import connector

    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return ReadModel(
        settings.state_dir / "readmodel" / settings.prefix,
        connector(settings),
        retention or retention_of(settings),
    )
