"""Many jobs: what a partition still has to run, filtered while it is read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import JobStatus, Run
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.follower.job import View
from pipeline.follower.occurrence import runs_to_come
from pipeline.follower.values import error_line, readable_key_state, readable_run, readable_schedule
from pipeline.ports import Record, Scan
from pipeline.queues import open_runs

_LIVE: Mapping[bytes, JobStatus] = {
    b"j/": JobStatus.PENDING,
    b"a/": JobStatus.PENDING,
    b"k/": JobStatus.PENDING,
    b"r/": JobStatus.RETRYING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs to list; None and empty = any. Instants are epoch ms, `due_to` exclusive. `text` is part of an id, key
    or handler. `order`: by due time, or the latest first ("-due")."""

    statuses: frozenset[JobStatus] = frozenset()
    handler: str | None = None
    queue: str | None = None
    schedule: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    key_prefix: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    text: str | None = None
    order: str = "due"

    def matches(self, run: Run, status: JobStatus) -> bool:
        return (
            (not self.statuses or status in self.statuses)
            and self.handler in (None, run.handler)
            and self.queue in (None, run.queue)
            and self.schedule in (None, run.schedule_id)
            and self.labels.items() <= run.labels.items()
            and self.key in (None, run.key)
            and (self.key_prefix is None or (run.key is not None and run.key.startswith(self.key_prefix)))
            and (self.due_from is None or run.due_at >= self.due_from)
            and (self.due_to is None or run.due_at < self.due_to)
            and (self.text is None or self._is_in(self.text, run))
        )

    @staticmethod
    def _is_in(text: str, run: Run) -> bool:
        return text in run.occurrence_id or text in run.handler or text in (run.key or "")


class Backlog(NamedTuple):
    """What one partition of `jobs` still owes: jobs and retries, and when the first of them is due."""

    pending: int
    oldest_due: int | None


def fold_live(records: Iterable[Record], wanted: Wanted) -> list[View]:
    """The wanted jobs of one partition that have a run pending, and the instants that its schedules have to come, in
    order of due time, `due_at` in ms."""
    live: dict[bytes, View] = {}
    schedules: dict[bytes, Schedule] = {}
    for record in records:
        key = record.key() or b""
        if key.startswith(keys.SCHEDULE):
            schedules.pop(key, None)
            if (state := readable_schedule(record.value())) is not None:
                schedules[key] = state
        status = _LIVE.get(key[:2])
        if status is None:
            continue
        live.pop(key, None)
        run = _to_come(key, record.value())
        if run is not None and wanted.matches(run, status):
            live[key] = live_view(run, status)
    instants = (run for state in schedules.values() for run in runs_to_come(state))
    planned = (run for run in instants if wanted.matches(run, JobStatus.PENDING))
    return sorted([*live.values(), *(live_view(run, JobStatus.PENDING) for run in planned)], key=by_due)


def open_jobs(scan: Scan, names: Names, queues: Mapping[str, int], wanted: Wanted) -> Iterator[View]:
    """The wanted jobs that have fired and not ended, `due_at` in ms; `queues` by their partitions. What fires while
    others are read may have been listed as pending."""
    for queue in sorted(queues):
        if wanted.queue not in (None, queue):
            continue
        for record, started in open_runs(scan, names, queue, queues[queue]):
            run, status = readable_run(record.value()), JobStatus.RUNNING if started else JobStatus.QUEUED
            if run is not None and wanted.matches(run, status):
                yield live_view(run, status)


def _to_come(key: bytes, value: bytes | None) -> Run | None:
    if not key.startswith(keys.KEYED):
        return readable_run(value)
    state = readable_key_state(value)
    return state.run if state is not None and state.phase == "pending" else None


def live_view(run: Run, status: JobStatus) -> View:
    """A row of the list (schemas/cli/job_list.json), `due_at` in ms. A keyed job that has fired is named with its
    incarnation: there may be a newer one by now."""
    return {
        "id": run.job_id if status is JobStatus.PENDING else run.occurrence_id,
        "handler": run.handler,
        "status": str(status),
        "due_at": run.due_at,
        "queue": run.queue,
        "key": run.key,
        "run": run.run,
        "failures": run.failures,
        "labels": dict(run.labels),
        "schedule": run.schedule_id,
        "ended_at": None,
        "error": _error_line(run) if status is JobStatus.RETRYING else None,
    }


def _error_line(run: Run) -> str | None:
    """What the attempt before it ended with, in one line."""
    return error_line(run.history[-1].error) if run.history else None


def by_due(view: View) -> tuple[int, str]:
    """Order of a list."""
    return view["due_at"], view["id"]


def chosen(views: Iterable[View], order: str, limit: int | None) -> Iterator[View]:
    """The first `limit` of all in that order. By due time and without a limit they are as they come, so that nothing
    is held."""
    backwards = order == "-due"
    if limit is not None:
        return iter((heapq.nlargest if backwards else heapq.nsmallest)(limit, views, key=by_due))
    return iter(sorted(views, key=by_due, reverse=True) if backwards else views)


def fold_backlog(records: Iterable[Record], due_before: int | None = None) -> Backlog:
    """How much is pending in one partition (due before that, epoch ms), and since when."""
    due = fold_due(records, due_before)
    return Backlog(len(due), min(due.values(), default=None))


def fold_due(records: Iterable[Record], due_before: int | None = None) -> dict[bytes, int]:
    """When each job and retry that is pending in one partition is due, by record key."""
    due: dict[bytes, int] = {}
    for record in records:
        key, value = record.key() or b"", record.value()
        if key[:2] not in _LIVE:
            continue
        at = None if value is None else _due_at(key, value)
        if at is None or (due_before is not None and at >= due_before):
            due.pop(key, None)
        else:
            due[key] = at
    return due


def _due_at(key: bytes, value: bytes) -> int | None:
    """None: nothing is to come. What nobody can read is owed at once: it goes to `dead`."""
    if key.startswith(keys.KEYED):
        run = _to_come(key, value)
        return None if run is None else run.due_at
    try:
        return codec.peek_run(value).due_at
    except Undecodable:
        return 0
