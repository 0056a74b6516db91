"""What a handler's context stands on in tests that need nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.attempt import Means
from pipeline.core.errors import InvalidInput
from pipeline.core.jobref import JobRef
from pipeline.ports import Put


def _no_job(_request: Mapping[str, Any]) -> tuple[JobRef, Put]:
    raise InvalidInput("handler", "this test schedules nothing")


MEANS = Means(record=_no_job, partitions=lambda _topic: 0, reserved=lambda topic: topic.startswith("t."))


class Quiet:
    """`core.context.Side` that keeps nothing. `end` = whether the run should stop."""

    def __init__(self) -> None:
        self.end = False

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        return MEANS.record(request)[0]

    def produce(self, topic: str, value: Any, key: Any, headers: Any, partition: Any) -> None:
        raise InvalidInput("topic", "this test produces nothing")

    def progress(self, fraction: float | None, note: str) -> None:
        pass

    def log(self, line: str) -> None:
        pass

    def stopped(self) -> bool:
        return self.end
