"""The read model: what the topics say about jobs and processes, folded from plain reads (DESIGN §9).

Nothing here belongs to a group or owns anything. Reads are filtered while they stream, so memory follows what
matches, not what is stored.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput, NotFound, Undecodable
from pipeline.core.job import Ack, AckState, JobStatus, Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names, check_name
from pipeline.core.times import format_instant
from pipeline.heartbeat import Seen, read_fleet
from pipeline.ports import Reader, Record

BEFORE_TOMBSTONE_MS = 60_000
"""How far before its tombstone a run may stand on the work topic: one transaction, but several clocks."""
FRESH_MS = 5_000
"""Age of a heartbeat up to which its process counts as alive in what is shown; no decision rests on it."""

PLACE_DIGITS = 9
"""Of a partition's number: more does not fit the client library's 32 bits."""

View = dict[str, Any]

_NOTHING = "nothing is stored under this id (what ended over 7 days ago is no longer kept)"
_NOTHING_READABLE = "what is stored under this id is no record of a job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs to list; None = any. Instants are epoch ms, `due_to` exclusive."""

    status: JobStatus | None = None
    handler: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    due_from: int | None = None
    due_to: int | None = None

    def matches(self, run: Run, status: JobStatus) -> bool:
        return (
            self.status in (None, status)
            and self.handler in (None, run.handler)
            and self.labels.items() <= run.labels.items()
            and (self.due_from is None or run.due_at >= self.due_from)
            and (self.due_to is None or run.due_at < self.due_to)
        )


class Backlog(NamedTuple):
    """What one partition of `jobs` still owes: jobs and retries, and when the first of them is due."""

    pending: int
    oldest_due: int | None


class Follower:
    """Answers questions from the topics. Every read raises StoreUnreachable if the store does not answer."""

    def __init__(self, *, reader: Reader, names: Names, layout: Layout) -> None:
        self._reader = reader
        self._names = names
        self._layout = layout

    def job(self, job_id: str) -> View:
        """The job as `dueline job get` shows it (schemas/cli/job_get.json): from its home partition
        and, if it fired, from the work and acks partition named there.

        Raises InvalidInput('id') if malformed, NotFound if the store has nothing under it.
        """
        try:
            home = self._layout.home(job_id)
        except Undecodable as error:
            raise InvalidInput("id", str(error)) from error
        trail = fold_trail(self._reader.read(self._names.jobs, home), job_id)
        if trail.first is None and trail.retry is None and trail.end is None:
            raise NotFound(f"{job_id}: {_NOTHING_READABLE if trail.unreadable else _NOTHING}")
        runs, acks = self._fired(trail, job_id)
        return job_view(job_id, trail, runs, acks)

    def _fired(self, trail: Trail, job_id: str) -> tuple[dict[int, Emitted], list[Ack]]:
        """What stands at the place that the trail names; nothing if there is no such place."""
        if trail.work is None:
            return {}, []
        queue, partition, since = trail.work
        try:
            runs = fold_runs(self._reader.read(self._names.work(queue), partition, since_ms=since), job_id)
            acks = fold_acks(self._reader.read(self._names.acks(queue), partition, since_ms=since), job_id)
        except NotFound:
            # The header was forged or its topic is gone; what the home says is true all the same.
            return {}, []
        return runs, acks

    def jobs(self, wanted: Wanted, limit: int | None = None) -> Iterator[View]:
        """Pending and retrying jobs (schemas/cli/job_list.json). With `limit` the first due of all; without,
        partition after partition, each in order of due time, so memory holds one partition's matches."""
        found = (
            view
            for partition in range(self._layout.partitions)
            for view in fold_live(self._reader.read(self._names.jobs, partition), wanted)
        )
        return map(_dated, found if limit is None else heapq.nsmallest(limit, found, key=_by_due))

    def backlog(self, partition: int) -> Backlog:
        """What one partition of `jobs` still owes; reads all of it."""
        return fold_backlog(self._reader.read(self._names.jobs, partition))

    def live_handlers(self, now: int) -> frozenset[str]:
        """Handlers of workers whose heartbeat is fresh at `now`, the store's clock in ms."""
        return frozenset(name for seen in self.processes(now) for name in seen.heartbeat.handlers)

    def processes(self, now: int) -> list[Seen]:
        """Processes whose heartbeat is fresh at `now` (the store's clock, ms), by role and name."""
        return sorted(read_fleet(self._reader, self._names.fleet, now - FRESH_MS), key=_by_role)


# -- one job ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trail:
    """What a home partition says about one job."""

    first: Run | None = None
    """The job as created (or changed), even if it is no longer pending."""
    pending: Run | None = None
    retry: Run | None = None
    end: str | None = None
    work: tuple[str, int, int] | None = None
    """Queue, work partition, and the time from which its runs stand there."""
    unreadable: bool = False
    """Whether a record under its keys cannot be decoded; its owner moves such a record to `dead`."""


class Emitted(NamedTuple):
    """A run on a work topic and its LogAppendTime."""

    run: Run
    at: int


def fold_trail(records: Iterable[Record], job_id: str) -> Trail:
    """What the records of its home partition say about one job."""
    trail = Trail()
    own = (keys.job_key(job_id), keys.changed_key(job_id))
    retries = f"r/{job_id}/".encode()
    for record in records:
        key = record.key() or b""
        if key not in own and not key.startswith(retries):
            continue
        value = record.value()
        run = _readable(value)
        if value is None:
            _end(trail, record)
        elif run is None:
            trail.unreadable = True
            continue
        if key in own:
            trail.pending = run
            trail.first = run or trail.first
        else:
            trail.retry = run
    return trail


def _end(trail: Trail, record: Record) -> None:
    headers = headers_of(record)
    # A duplicate or superseded record ends by itself; what it repeats ended, or goes on, as told before.
    if headers.get("end") not in ("duplicate", "superseded", "moved"):
        trail.end = headers.get("end", "unknown")
    place = _place(headers.get("work", ""))
    if trail.work is None and place is not None:
        trail.work = (*place, record.timestamp()[1] - BEFORE_TOMBSTONE_MS)


def headers_of(record: Record) -> dict[str, str]:
    """The headers of a record as text, whatever bytes they hold; none if the client library cannot read them:
    it raises SystemError for a name that is not UTF-8."""
    try:
        pairs = record.headers() or ()
    except (SystemError, UnicodeDecodeError):
        return {}
    return {name: (value or b"").decode(errors="replace") for name, value in pairs}


def _place(text: str) -> tuple[str, int] | None:
    """Queue and partition of a `work` header; None if it is not one of ours."""
    queue, _, number = text.rpartition("/")
    if not (number.isascii() and number.isdecimal() and len(number) <= PLACE_DIGITS):
        return None
    try:
        return check_name("queue", queue), int(number)
    except InvalidInput:
        return None


def fold_runs(records: Iterable[Record], occurrence_id: str) -> dict[int, Emitted]:
    """Runs of one occurrence on a work partition, by number; the first record of a run counts."""
    key = occurrence_id.encode()
    runs: dict[int, Emitted] = {}
    for record in records:
        if record.key() == key and (run := _readable(record.value())) is not None:
            runs.setdefault(run.run, Emitted(run, record.timestamp()[1]))
    return runs


def fold_acks(records: Iterable[Record], occurrence_id: str) -> list[Ack]:
    """Started and terminal acks of one occurrence, in log order."""
    prefixes = (f"s/{occurrence_id}/".encode(), f"t/{occurrence_id}/".encode())
    found = (_readable_ack(r.value()) for r in records if (r.key() or b"").startswith(prefixes))
    return [ack for ack in found if ack is not None]


def _readable_ack(value: bytes | None) -> Ack | None:
    try:
        return codec.ACK.decode(value) if value is not None else None
    except Undecodable:
        return None


def job_view(job_id: str, trail: Trail, runs: Mapping[int, Emitted], acks: Iterable[Ack]) -> View:
    """The JSON of `dueline job get`. `due_at` is when the next run is due while one is pending, else when the
    job was first due."""
    attempts = fold_attempts(acks)
    first = trail.first or (runs[min(runs)].run if runs else None)
    shown = trail.pending or trail.retry or first
    last = attempts.get(max(runs), {}) if runs else {}
    outcome = last[max(last)] if last else None
    return {
        "id": job_id,
        "handler": shown and shown.handler,
        "status": str(_status(trail, outcome)),
        "due_at": shown and shown_instant(shown.due_at),
        "key": shown and shown.key,
        "queue": shown.queue if shown else trail.work and trail.work[0],
        "result": _result(outcome),
        "runs": [
            {
                "run": number,
                "fired_at": shown_instant(runs[number].at),
                "attempts": _attempts_view(attempts.get(number, {})),
            }
            for number in sorted(runs)
        ],
    }


def fold_attempts(acks: Iterable[Ack]) -> dict[int, dict[int, Ack]]:
    """The last word on each attempt, by run and attempt: a terminal ack outranks every start of its run,
    whatever the order (DESIGN §3)."""
    attempts: dict[int, dict[int, Ack]] = {}
    for ack in acks:
        of_run = attempts.setdefault(ack.run, {})
        known = of_run.get(ack.attempt)
        if known is None or ack.state.terminal or not known.state.terminal:
            of_run[ack.attempt] = ack
    return attempts


def _status(trail: Trail, last: Ack | None) -> JobStatus:
    if trail.pending is not None:
        return JobStatus.PENDING
    if trail.retry is not None:
        return JobStatus.RETRYING
    if trail.end is not None and trail.end in _ENDED:
        return _ENDED[trail.end]
    return JobStatus.QUEUED if last is None else _ATTEMPTED[last.state]


_ENDED = {
    "dead": JobStatus.DEAD,
    "cancelled": JobStatus.CANCELLED,
    "stopped": JobStatus.STOPPED,
    "skipped": JobStatus.SKIPPED,
}
_ATTEMPTED = {
    AckState.STARTED: JobStatus.RUNNING,
    AckState.RELEASED: JobStatus.QUEUED,
    AckState.SUCCEEDED: JobStatus.SUCCEEDED,
    AckState.FAILED: JobStatus.DEAD,
    AckState.RETRYING: JobStatus.RETRYING,
    AckState.DEAD: JobStatus.DEAD,
    AckState.CANCELLED: JobStatus.CANCELLED,
}


def _result(last: Ack | None) -> Any:
    return None if last is None or last.result is None else _json(last.result)


def _json(stored: bytes) -> Any:
    """The stored JSON; as text if it is none, or none that can be written again (NaN, a lone surrogate)."""
    try:
        value = json.loads(stored)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return stored.decode(errors="replace")
    return value


def _attempts_view(attempts: Mapping[int, Ack]) -> list[View]:
    latest = max(attempts, default=0)
    ended = any(ack.state.terminal for ack in attempts.values())
    return [_attempt_view(attempts[n], over=ended or n < latest) for n in sorted(attempts)]


def _attempt_view(ack: Ack, *, over: bool) -> View:
    """`over`: the run went on without this attempt, so one that never finished was lost with its worker."""
    finished = ack.state is not AckState.STARTED
    started = ack.started_at if ack.started_at is not None else ack.at
    return {
        "attempt": ack.attempt,
        "worker": ack.worker,
        "token": str(ack.token),
        "started_at": shown_instant(started),
        "finished_at": shown_instant(ack.at) if finished else None,
        "outcome": str(ack.state) if finished else "lost" if over else None,
        "error": ack.error
        and {"type": ack.error.type, "message": ack.error.message, "trace": ack.error.trace},
    }


# -- many jobs ----------------------------------------------------------------------------------------------

_LIVE: Mapping[bytes, JobStatus] = {
    b"j/": JobStatus.PENDING,
    b"a/": JobStatus.PENDING,
    b"r/": JobStatus.RETRYING,
}


def fold_live(records: Iterable[Record], wanted: Wanted) -> list[View]:
    """The wanted jobs of one partition that have a run pending, in order of due time, `due_at` in ms."""
    live: dict[bytes, View] = {}
    for record in records:
        key = record.key() or b""
        status = _LIVE.get(key[:2])
        if status is None:
            continue
        live.pop(key, None)
        run = _readable(record.value())
        if run is not None and wanted.matches(run, status):
            live[key] = _live_view(run, status)
    return sorted(live.values(), key=_by_due)


def _readable(value: bytes | None) -> Run | None:
    """None also for what nobody can read: its owner moves it to `dead`, a list shows jobs."""
    try:
        return codec.RUN.decode(value) if value is not None else None
    except Undecodable:
        return None


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


def _by_due(view: View) -> tuple[int, str]:
    return view["due_at"], view["id"]


def _dated(view: View) -> View:
    return {**view, "due_at": shown_instant(view["due_at"])}


def shown_instant(ms: int) -> str:
    """Epoch ms as RFC 3339, or the bare number if it is no instant: whoever may append can store any."""
    try:
        return format_instant(ms)
    except OverflowError:
        return str(ms)


def fold_backlog(records: Iterable[Record]) -> Backlog:
    """How much is pending in one partition, and since when."""
    due: dict[bytes, int] = {}
    for record in records:
        key, value = record.key() or b"", record.value()
        if key[:2] not in _LIVE:
            continue
        if value is None:
            due.pop(key, None)
        else:
            due[key] = _due_at(value)
    return Backlog(len(due), min(due.values(), default=None))


def _due_at(value: bytes) -> int:
    try:
        return codec.peek_run(value).due_at
    except Undecodable:
        return 0  # owed at once: it goes to `dead`


def _by_role(seen: Seen) -> tuple[str, str, tuple[str, ...]]:
    return seen.heartbeat.role, seen.heartbeat.process, seen.heartbeat.queues
