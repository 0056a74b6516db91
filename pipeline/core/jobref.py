"""What a client gets for a job it created."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pipeline.core.job import Run
from pipeline.core.times import aware


class JobRef(NamedTuple):
    """A created job; `due_at` is an aware UTC datetime. `status` is `created`, its record acknowledged; of a job
    with a key also `existing`, `replaced`, `debounced`, `rejected`, and `accepted`: durable, not answered yet."""

    id: str
    status: str
    due_at: datetime

    @classmethod
    def of(cls, run: Run) -> JobRef:
        return cls(run.job_id, "created", aware(run.due_at))
