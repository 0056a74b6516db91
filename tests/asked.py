"""A context for calling handlers without a worker, and a side that keeps what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from pipeline.core.context import Context

T0 = datetime(2027, 1, 15, 8, tzinfo=UTC)


class Keeping:
    """`core.context.Side` that keeps records and lines. `end` = whether the run should stop."""

    def __init__(self) -> None:
        self.end = False
        self.produced: list[tuple[Any, ...]] = []
        self.lines: list[str] = []

    def produce(self, topic: str, value: Any, key: Any, headers: Any, partition: Any) -> None:
        self.produced.append((topic, value, key, headers, partition))

    def log(self, line: str) -> None:
        self.lines.append(line)

    def stopped(self) -> bool:
        return self.end

    def schedule(self, request: Mapping[str, Any]) -> NoReturn:
        raise AssertionError("a built-in handler schedules nothing")

    def progress(self, fraction: float | None, note: str) -> None:
        """Nothing is shown here."""


def context(**changes: Any) -> Context:
    values: dict[str, Any] = {
        "job_id": "j0", "occurrence_id": "j0", "handler": "http", "payload": None, "due_at": T0, "nominal_at": T0,
        "fired_at": T0, "run": 2, "attempt": 3, "idempotency_key": "invoice-55", "token": 2**62 + 1,
        "side": Keeping(),
    }  # fmt: skip
    return Context(**{**values, **changes})
