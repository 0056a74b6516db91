"""What `Dueline` needs of whatever carries its verbs: Kafka (`direct`) or a server (`http`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pipeline.client.commands import JobChange
    from pipeline.client.parts import JobWatch
    from pipeline.core.handler import Duration
    from pipeline.core.jobref import JobRef


class Watching(Protocol):
    """What shows where jobs stand."""

    def watch(self, job_id: str) -> JobWatch:
        """The job, to be looked at again and again. InvalidInput('id') if that is none."""
        ...


class Reading(Protocol):
    """What can be read from, by one thread at a time."""

    def reading(self) -> AbstractContextManager[Watching]: ...


class Transport(Reading, Protocol):
    """The verbs, as `Dueline` documents them. Requests have the names of `schedule`. Any thread may ask."""

    def schedule(self, request: Mapping[str, Any]) -> JobRef: ...
    async def aschedule(self, request: Mapping[str, Any]) -> JobRef: ...
    def schedule_many(self, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]: ...
    def change(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange:
        """`verb` cancel | reschedule | update | requeue; the id is well-formed."""
        ...

    async def achange(self, verb: str, job_id: str, wait: Duration, **options: Any) -> JobChange: ...
    def stop(self, job_id: str, wait: Duration) -> JobChange: ...
    async def astop(self, job_id: str, wait: Duration) -> JobChange: ...
    def get(self, job_id: str) -> dict[str, Any]: ...
    def live_handlers(self) -> frozenset[str]: ...
    def flush(self, timeout_ms: int) -> None: ...
    def close(self, timeout_ms: int) -> None: ...
