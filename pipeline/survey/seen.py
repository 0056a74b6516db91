"""What is known of one occurrence: one `Seen`, folded from its work records and their acks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """How an occurrence stands: its highest run, if it fired."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """An ack says so that is not the last word of our own workers; `failed` in a filter means `dead` too."""
    DEAD = "dead"
    CANCELLED = "cancelled"
    """Ended by its handler or by a stop, after it fired."""
    UNACKED = "unacked"
    """The group is past it, and no terminal ack says how it ended: nobody will run it."""
    WAITING = "waiting"
    """Ahead of what the group has committed: a worker will take it."""
    RUNNING = "running"
    """As WAITING, and a worker has started it."""
    RETRYING = "retrying"
    """It is to run again, and that run has not been emitted yet."""
    PENDING = "pending"
    """Due, and not fired yet."""
    UNREADABLE = "unreadable"
    """Its last record, or what says how it stands, is of a newer version (an announced schema that is unknown here)."""
    SKIPPED = "skipped"
    """An occurrence of a schedule that its policy left out; `reason` says why."""


class Seen(NamedTuple):
    """One occurrence. Times are epoch ms, UTC, by the store's clock."""

    occurrence_id: str
    job_id: str
    handler: str
    queue: str
    schedule_id: str | None
    key: str | None
    labels: Mapping[str, str]
    due_at: int
    """Of its first run; the nominal time if that run's record is not there any more; of a run that nobody here can
    read when it was appended."""
    nominal_at: int
    fired_at: int | None
    """LogAppendTime of its first run that is there; None: it has not fired, or was buried before it could."""
    run: int
    """The highest run on the work topic; 0: it has not fired."""
    state: State
    partition: int
    """Of the work topic, where its runs stand; -1: it has not fired."""
    offset: int
    """Of its highest run there."""
    payload_bytes: int
    reason: str = ""
    """Why it was skipped."""
    times: int = 1
    """Of skipped ones: how many occurrences, if their instants cannot be told apart any more."""
