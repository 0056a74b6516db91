"""What a client is made of; the package root puts it together, since a client knows no adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # so that the package root can set `connector` at little cost
    from pipeline.config import Settings
    from pipeline.core.job import Run
    from pipeline.core.layout import Layout
    from pipeline.core.names import Names
    from pipeline.core.schedule import Schedule
    from pipeline.core.sight import Sight
    from pipeline.ports import Appender, Clock, Feed, GroupProgress, Reader, Scan

Report = Callable[[Exception | None, int, int], None]
"""(error, offset, LogAppendTime) of one record."""


class JobWatch(Protocol):
    """One job that is followed (pipeline.follower); one thread at a time."""

    def look(self) -> Sight | None:
        """Where it stands now; None if the store has nothing under its id. Raises StoreUnreachable."""
        ...

    def run(self) -> Run | None:
        """The last run that was emitted, if it is readable. Raises StoreUnreachable."""
        ...


class JobFinder(Protocol):
    """Answers from the topics (pipeline.follower); one thread at a time."""

    def job(self, job_id: str) -> dict[str, Any]:
        """The job as `dueline job get` shows it. Raises NotFound, InvalidInput, StoreUnreachable."""
        ...

    def run_of(self, job_id: str) -> tuple[Run, int]:
        """The job as it is to be run once more, and the highest run emitted so far. Raises as `job`."""
        ...

    def watch(self, job_id: str) -> JobWatch:
        """The job, to be looked at again and again. InvalidInput('id') if that is none."""
        ...

    def schedule(self, schedule_id: str) -> Schedule:
        """The schedule as its owner keeps it. Raises NotFound, StoreUnreachable."""
        ...

    def schedules(self) -> list[Schedule]:
        """All schedules there are, by id."""
        ...

    def schedule_view(self, schedule_id: str, now: int) -> dict[str, Any]:
        """The schedule at `now`, the store's clock in ms, as `dueline cron describe` shows it. Raises as `schedule`."""
        ...

    def schedule_views(self, now: int, **wanted: Any) -> list[dict[str, Any]]:
        """Those of this state, source and handler, as `dueline cron list` shows them. InvalidInput('state')."""
        ...

    def live_handlers(self, now: int) -> frozenset[str]:
        """Handlers of workers whose heartbeat is fresh at `now`, the store's clock in ms."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The outside of a client. `load_layout` raises Refused, StoreUnreachable; `open_feed` is one of `events`;
    `group_progress(group, topic, partitions)` is by partition."""

    appender: Appender
    clock: Clock
    reader: Reader
    names: Names
    load_layout: Callable[[], Layout]
    finder: Callable[[Layout], JobFinder]
    open_feed: Callable[[], Feed]
    group_progress: Callable[[str, str, int], list[GroupProgress]]
    open_scan: Callable[[], Scan]


connector: Callable[[Settings], Parts] | None = None
"""Makes the real parts for some settings. Set by the package root, which any import of this module runs."""


def connect(settings: Settings) -> Parts:
    """The parts for `settings`. Raises StoreUnreachable if no store is known."""
    assert connector is not None, "the package root sets it"
    return connector(settings)
