"""What a handler is given beside its payload."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt, as its handler sees it. Times are aware UTC datetimes.

    `idempotency_key` is what an effect is made unique by, `token` what orders competing attempts: hand both to
    the resource (a sink, an HTTP header, a conditional update). `token` grows strictly with every attempt of an
    occurrence.
    """

    job_id: str
    occurrence_id: str
    handler: str
    payload: Any
    due_at: datetime
    nominal_at: datetime
    fired_at: datetime
    run: int
    attempt: int
    idempotency_key: str
    token: int
    logger: logging.LoggerAdapter[logging.Logger]
    stopped: Callable[[], bool]

    @property
    def cancelled(self) -> bool:
        """True once the worker no longer holds the run, or is leaving: a long handler should then stop."""
        return self.stopped()
