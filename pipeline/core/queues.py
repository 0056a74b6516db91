"""A queue that is paused, or purged of what waits in it: what its record on `meta` says (docs/queues.md).

The record, `q/<queue>`, is an Event whose `detail` tells the rest, so it has no schema of its own. It is replaced by
each change and never removed, so it also says who has resumed a queue, and when. Workers only read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Event

KIND = "queue"
REASON_LIMIT = 500
"""Characters of a reason at most."""


class QueueChange(StrEnum):
    """What was last done to a queue."""

    PAUSED = "paused"
    RESUMED = "resumed"
    PURGED = "purged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing of the queue starts. `by` = who wanted it, `at` = since when by the store's clock, epoch ms."""

    by: str
    at: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """What waited in the queue ends as cancelled: of partition n what stands below offset `ends[n]` and was never
    started. `topic_id` is that of the work topic whose offsets they are; `before` = only what was emitted before, epoch
    ms."""

    id: str
    by: str
    at: int
    topic_id: str
    ends: tuple[int, ...]
    before: int | None = None
    waiting: int | None = None
    """How many waited when it was asked for; None: whoever asked did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """What stands on `meta` of one queue. `changed` = the last change, by whom and when (epoch ms)."""

    queue: str
    changed: QueueChange
    by: str
    at: int
    pause: Pause | None = None
    purge: Purge | None = None
    """The last one. It is never taken back: what it meant has ended when all partitions are beyond its offsets."""


# -- changes ------------------------------------------------------------------------------------------------


def paused(state: QueueState | None, queue: str, pause: Pause) -> QueueState:
    """The queue paused. Whoever had paused it stays the one who did. InvalidInput('reason') if that is not one line."""
    if len(pause.reason) > REASON_LIMIT or not pause.reason.isprintable():
        raise InvalidInput("reason", f"is not one line of at most {REASON_LIMIT} characters")
    if state is not None and state.pause is not None:
        return state
    return replace(_changed(state, queue, QueueChange.PAUSED, pause.by, pause.at), pause=pause)


def resumed(state: QueueState | None, queue: str, by: str, at: int) -> QueueState | None:
    """The queue resumed; as it was if it was not paused."""
    if state is None or state.pause is None:
        return state
    return replace(_changed(state, queue, QueueChange.RESUMED, by, at), pause=None)


def purged(state: QueueState | None, queue: str, purge: Purge) -> QueueState:
    """The queue purged. What an earlier purge of the same topic has yet to end is not forgotten."""
    earlier = None if state is None else state.purge
    if earlier is not None and earlier.topic_id == purge.topic_id:
        highest = tuple(max(pair) for pair in zip(earlier.ends, purge.ends, strict=True))
        purge = replace(purge, ends=highest)
    return replace(_changed(state, queue, QueueChange.PURGED, purge.by, purge.at), purge=purge)


def unreadable(queue: str) -> QueueState:
    """What a record that nobody can read counts as: it may be a pause by a later version. Resuming writes it anew."""
    pause = Pause(
        by="", at=0, reason="what is said of it cannot be read: `dueline queue resume` writes it anew"
    )
    return QueueState(queue=queue, changed=QueueChange.PAUSED, by="", at=0, pause=pause)


def _changed(state: QueueState | None, queue: str, changed: QueueChange, by: str, at: int) -> QueueState:
    if state is None:
        return QueueState(queue=queue, changed=changed, by=by, at=at)
    return replace(state, changed=changed, by=by, at=at)


# -- what a worker asks -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Gate:
    """What the lanes of a queue ask before anything starts. Its worker keeps it up to date; one that does not know yet
    what is said of its queue keeps it closed."""

    closed: bool = False
    ends: Sequence[int] = ()
    """By partition: what was never started below this offset ends as cancelled."""
    reason: str = ""
    """Of those ends, for whoever asks what became of a run."""

    def end(self, partition: int) -> int:
        return self.ends[partition] if partition < len(self.ends) else 0

    def follow(self, state: QueueState | None, topic_id: str) -> None:
        """Take in what is said of the queue; `topic_id` is that of its work topic now."""
        self.closed = state is not None and state.pause is not None
        purge = None if state is None else state.purge
        if purge is not None and purge.topic_id == topic_id:
            self.ends, self.reason = purge.ends, purge_reason(purge)
        else:
            self.ends, self.reason = (), ""


def purge_reason(purge: Purge) -> str:
    """What the ack of a run says that was purged."""
    return f"purge {purge.id} of the queue by {purge.by}"


# -- the record ---------------------------------------------------------------------------------------------


def to_event(state: QueueState) -> Event:
    detail = {"by": state.by}
    if (pause := state.pause) is not None:
        detail |= {"paused_by": pause.by, "paused_at": str(pause.at)}
    if (purge := state.purge) is not None:
        detail |= {
            "purge_id": purge.id,
            "purge_by": purge.by,
            "purge_at": str(purge.at),
            "purge_before": "" if purge.before is None else str(purge.before),
            "topic_id": purge.topic_id,
            "ends": " ".join(map(str, purge.ends)),
        }
        if purge.waiting is not None:
            detail["purge_waiting"] = str(purge.waiting)
    reason = None if pause is None else pause.reason or None
    return Event(
        id=state.queue, kind=KIND, at=state.at, outcome=state.changed.value, reason=reason, detail=detail
    )


def of_event(event: Event) -> QueueState:
    """Undecodable if it is no record of a queue."""
    try:
        if event.kind != KIND:
            raise ValueError(f"a {event.kind}")
        return QueueState(
            queue=event.id,
            changed=QueueChange(event.outcome or ""),
            by=event.detail["by"],
            at=event.at,
            pause=_pause(event.detail, event.reason or ""),
            purge=_purge(event.detail),
        )
    except (KeyError, ValueError) as problem:
        raise Undecodable(f"no record of a queue: {problem!r:.200}") from problem


def _pause(detail: Mapping[str, str], reason: str) -> Pause | None:
    if "paused_by" not in detail:
        return None
    return Pause(by=detail["paused_by"], at=int(detail["paused_at"]), reason=reason)


def _purge(detail: Mapping[str, str]) -> Purge | None:
    if "purge_id" not in detail:
        return None
    return Purge(
        id=detail["purge_id"],
        by=detail["purge_by"],
        at=int(detail["purge_at"]),
        before=int(detail["purge_before"]) if detail["purge_before"] else None,
        topic_id=detail["topic_id"],
        ends=tuple(map(int, detail["ends"].split())),
        waiting=int(detail["purge_waiting"]) if "purge_waiting" in detail else None,
    )
