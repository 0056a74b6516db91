"""Many jobs: what a partition still has to run, filtered while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.job import JobStatus, Run
from pipeline.follower.job import View
from pipeline.follower.values import readable_key_state, readable_run
from pipeline.ports import Record

_LIVE: Mapping[bytes, JobStatus] = {
    b"j/": JobStatus.PENDING,
    b"a/": JobStatus.PENDING,
    b"k/": JobStatus.PENDING,
    b"r/": JobStatus.RETRYING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs to list; None = any. Instants are epoch ms, `due_to` exclusive."""

    status: JobStatus | None = None
    handler: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key_prefix: str | None = None
    due_from: int | None = None
    due_to: int | None = None

    def matches(self, run: Run, status: JobStatus) -> bool:
        return (
            self.status in (None, status)
            and self.handler in (None, run.handler)
            and self.labels.items() <= run.labels.items()
            and (self.key_prefix is None or (run.key or "").startswith(self.key_prefix))
            and (self.key_prefix is None or run.key is not None)
            and (self.due_from is None or run.due_at >= self.due_from)
            and (self.due_to is None or run.due_at < self.due_to)
        )


class Backlog(NamedTuple):
    """What one partition of `jobs` still owes: jobs and retries, and when the first of them is due."""

    pending: int
    oldest_due: int | None


def fold_live(records: Iterable[Record], wanted: Wanted) -> list[View]:
    """The wanted jobs of one partition that have a run pending, in order of due time, `due_at` in ms."""
    live: dict[bytes, View] = {}
    for record in records:
        key = record.key() or b""
        status = _LIVE.get(key[:2])
        if status is None:
            continue
        live.pop(key, None)
        run = _to_come(key, record.value())
        if run is not None and wanted.matches(run, status):
            live[key] = _live_view(run, status)
    return sorted(live.values(), key=by_due)


def _to_come(key: bytes, value: bytes | None) -> Run | None:
    if not key.startswith(keys.KEYED):
        return readable_run(value)
    state = readable_key_state(value)
    return state.run if state is not None and state.phase == "pending" else None


def _live_view(run: Run, status: JobStatus) -> View:
    return {
        "id": run.job_id,
        "handler": run.handler,
        "status": str(status),
        "due_at": run.due_at,
        "queue": run.queue,
        "key": run.key,
        "run": run.run,
        "failures": run.failures,
        "labels": dict(run.labels),
    }


def by_due(view: View) -> tuple[int, str]:
    """Order of a list."""
    return view["due_at"], view["id"]


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
