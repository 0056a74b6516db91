"""What the API and the console ask.

Views are plain JSON values, with the names of `schemas/cli/` wherever a command shows the same thing; instants in
them are RFC 3339 UTC with milliseconds and `Z`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pipeline.core.job import JobStatus, Run
from pipeline.follower import WantedLetters, WantedSchedules

View = dict[str, Any]

LIST_LIMIT = 200
"""Rows of a page at most."""


class Position(NamedTuple):
    """Something that was written: the log has it at this offset."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsWanted:
    """Which jobs; empty = any. Instants are epoch ms, the upper ends exclusive.

    `text` is part of an id, key or handler. `queues`: of these only, beside `queue` (None: of any), as whoever asks is
    limited to them. `order`: by due time, or the latest first ("-due").
    """

    statuses: frozenset[JobStatus] = frozenset()
    handler: str | None = None
    queue: str | None = None
    queues: frozenset[str] | None = None
    schedule: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    key_prefix: str | None = None
    due_from: int | None = None
    due_to: int | None = None
    text: str | None = None
    order: str = "due"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows (schemas/cli/job_list.json and the like) and where to go on.

    `cursor` None: there is nothing more. A page may hold fewer rows than asked for, even none, with a cursor:
    so much was
    looked at without finding more (a scan has a budget); `scanned` tells how much.
    """

    rows: Sequence[View]
    cursor: str | None
    scanned: int = 0


class Count(NamedTuple):
    """How many match: exactly, or at least so many when the scan's budget ran out (`capped`)."""

    number: int
    capped: bool


class Made(NamedTuple):
    """What a job is made of: its run as it was stored, with all that an emission needs (None: that is not kept any
    more), and the highest run that is known to have been emitted (0: none)."""

    id: str
    run: Run | None
    highest: int


class Freshness(NamedTuple):
    """How far the read model is behind: records not folded yet, as far as is known, and how old what it shows may be,
    in ms. `ready`: it has caught up once since it was opened. `problem`: why it does not follow at the moment, in one
    line; its age grows then."""

    behind: int
    age_ms: int
    ready: bool
    problem: str | None


def etag_of(incarnation: str, revision: str, state: str) -> str:
    """Of a schedule: changes with its definition and with its state (active | paused | ended), not with each run."""
    return f"{incarnation}-{revision}-{state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWanted:
    """Which changes; None: whichever."""

    job: str | None = None
    schedule: str | None = None
    by: str | None = None


class Questions(Protocol):
    """Every answer is from memory or the read model's disk, in bounded time, but where it says that it asks
    the store.

    Thread-safe. Raises NotFound, InvalidInput (naming the field, also for a cursor that is none of ours),
    StoreUnreachable.
    """

    def freshness(self) -> Freshness: ...

    def wait_for(self, position: Position, timeout_ms: int) -> bool:
        """Until what was written there has been folded; False: it was not within the time."""
        ...

    def awaited(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """For who must not block: within this, `wake` is called from another thread whenever more has been folded. It
        must be quick."""
        ...

    def give_way(self) -> None:
        """Whoever takes in many jobs, and computes all the time, says so again and again: for a moment each time the
        follower leaves most of the interpreter to them, unless somebody waits for what they wrote, or the rows are half
        a minute old."""
        ...

    # -- jobs ----------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> View:
        """As `dueline job get`, also once its records are gone from the topics (then without payload: `kept`
        is False).
        With `created_at`, `due_at`, `labels`, `payload` (JSON text, so that big integers stay exact),
        `schedule`."""
        ...

    def runs_of(self, job_ids: Iterable[str]) -> Iterator[Made]:
        """What each of these is made of, not in their order, some at a time as they are taken; those of which nothing
        is known are left out. Asks the store, and keeps others who do from it only for moments."""
        ...

    def why(self, job_id: str) -> View:
        """As `dueline job why`. Asks the store."""
        ...

    def jobs(self, wanted: JobsWanted, *, limit: int = 50, cursor: str | None = None) -> Page:
        """In the order wanted; rows as in schemas/cli/job_list.json, with `ended_at` and `error` (one line) of
        what ended."""
        ...

    def count(self, wanted: JobsWanted, *, at_most: int = 10_000) -> Count: ...

    # -- schedules -----------------------------------------------------------------------------------------

    def schedules(self, wanted: WantedSchedules, *, limit: int = 50, cursor: str | None = None) -> Page:
        """By id. Rows as `dueline cron list` shows them, with `words`, `upcoming` (3 instants; of one that is paused
        those that it would have if it were resumed now), `recent` (the
        last 20 runs, the latest first:
        [{"occurrence", "nominal_at", "due_at", "outcome", "lateness_ms", "took_ms"}]), `last_outcome`, `overdue`."""
        ...

    def schedule(self, schedule_id: str) -> View:
        """As `dueline cron describe`, with `recent` and `etag` (changes with each change of its definition or
        state)."""
        ...

    # -- what ended badly, times, places --------------------------------------------------------------------

    def letters(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Dead letters, the latest first; rows as `dueline dead list` shows them. Those of records that nobody can read
        are of no queue."""
        ...

    def letter_groups(self, wanted: WantedLetters, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Of a stretch of the dead letters, from the latest on: how many of which kind, as `dueline dead groups` shows
        them. A group may go on in the next stretch: `letter_groups.joined` adds them up. `limit`: kinds."""
        ...

    def buckets(self, since: int, until: int, width_ms: int) -> Sequence[View]:
        """Counts by due time, from the minute of `since` on: [{"from", "to", "counts": {status: n}, "late": n}], empty
        ones left out."""
        ...

    def overview(self, queues: frozenset[str] | None = None) -> View:
        """Figures of all; with `queues` nothing is named but what is of these. Of the last hour by minute:
        {"at", "pending", "oldest_overdue", "overdue": n, "lateness": {"p50_ms",
        "p99_ms"},
        "minutes": [{"at", "fired", "succeeded", "failed", "dead", "lateness_p50_ms", "lateness_p99_ms"}],
        "handlers": [{"handler", "succeeded", "failed", "dead"}], "schedules": {"count", "paused", "overdue":
        [ids]},
        "held": as in `dueline status`, "freshness": {...}}. `dead` is a part of `failed`. Late is what came after
        the later of due and created: a job for a time in the past could not come before it was made."""
        ...

    def queues(self) -> Sequence[View]:
        """As `queues` of `dueline status`, with `started_per_min`, `ended_per_min`, `paused` ({"by", "at",
        "reason"}, as `dueline queue list` shows it, or None), `purge` (the last one: {"id", "by", "at", "before",
        "waiting", "left"}; `waiting` = runs when it was asked for, `left` = those that had not ended a few seconds
        ago; each None: not known)."""
        ...

    def fleet(self) -> View:
        """`partitions`, `processes`, `runs` of `dueline status`, with the era and group generation of each owner. What
        is pending is not counted by partition."""
        ...

    def replays(self) -> Sequence[View]:
        """As `dueline replay list`."""
        ...

    def replay(self, replay_id: str) -> View:
        """As `dueline replay show`: with `outcomes`, how what it has emitted stands now ({"counts": {status: n},
        "capped"}). NotFound."""
        ...

    def events(self, after: str | None = None, limit: int = 500) -> Page:
        """What happened since the cursor, the oldest first: {"id" (a cursor), "at", "kind", "job", "schedule",
        "outcome", "by", "reason", "detail"}; the last ones if there is no cursor. For server-sent events and the action
        log."""
        ...

    def audit(self, wanted: AuditWanted, limit: int = 50, cursor: str | None = None) -> Page:
        """Who changed what through a server, the latest first: {"at", "by", "role", "verb", "outcome", "job",
        "schedule", "detail"}. Of the events that are kept here; a page may be short of rows and have a cursor, as that
        of `jobs`."""
        ...

    def close(self) -> None: ...
