"""What a client sees of a job that it follows."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.core.job import Failure, JobStatus

OVER = frozenset(
    {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.SKIPPED}
)
"""How a job ends, unless somebody runs it again."""


class Sight(NamedTuple):
    """Where a job stands: its status, the highest run emitted (0: none), and how its last run ended."""

    status: JobStatus
    run: int
    result: Any = None
    error: Failure | None = None
