"""What `dueline queue list` and `dueline status` say of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.cli.output import harmless, table
from pipeline.core.queues import Pause, Purge, QueueState
from pipeline.follower import shown_instant
from pipeline.heartbeat import Seen

if TYPE_CHECKING:
    from pipeline.cli.queue import Desk

DANGEROUS = 0.2
"""Part of its topic's retention from which on a run that waits in a paused queue is warned of, as the doctor does."""


def queue_views(here: Desk) -> list[dict[str, Any]]:
    """Every queue, by name (schemas/cli/queue_list.json). StoreUnreachable."""
    from pipeline.queues import read_states

    store, now = here.store, here.now()
    states = read_states(store.parts.reader, store.parts.names.meta)
    processes = store.follower.processes(now)
    return [
        _queue_view(here, queue, states.get(queue), processes, now) for queue in sorted(store.layout.queues)
    ]


def _queue_view(
    here: Desk, queue: str, state: QueueState | None, processes: Sequence[Seen], now: int
) -> dict[str, Any]:
    from pipeline.queues import waiting

    partitions = here.store.layout.queues[queue]
    beats = [
        seen.heartbeat
        for seen in processes
        if seen.heartbeat.role == "worker" and queue in seen.heartbeat.queues
    ]
    found = waiting(here.scan, here.store.parts.names, queue, partitions)
    return {
        "queue": queue,
        "partitions": partitions,
        "rate": here.rates.get(queue),
        "waiting": found.count,
        "oldest_waiting": None if found.oldest is None else shown_instant(found.oldest),
        "age_ms": None if found.oldest is None else max(0, now - found.oldest),
        "kept_ms": here.queues.retention_ms(queue),
        "running": sum(len(beat.in_flight) for beat in beats),
        "workers": sorted(beat.process for beat in beats),
        "paused": pause_view(None if state is None else state.pause),
        "purge": None if state is None or state.purge is None else _purge_view(here, queue, state.purge),
        "changed": None if state is None else _changed_view(state),
    }


def pause_view(pause: Pause | None) -> dict[str, Any] | None:
    """Who has paused a queue, since when and why."""
    if pause is None:
        return None
    return {"by": pause.by, "at": shown_instant(pause.at), "reason": pause.reason}


def _purge_view(here: Desk, queue: str, purge: Purge) -> dict[str, Any]:
    """The last purge, and how many of the runs that it means still wait for their end."""
    return {
        "id": purge.id,
        "by": purge.by,
        "at": shown_instant(purge.at),
        "before": None if purge.before is None else shown_instant(purge.before),
        "left": left_of(here, queue, purge),
    }


def left_of(here: Desk, queue: str, purge: Purge) -> int:
    """Runs that a purge means and that wait still."""
    from pipeline.queues import waiting

    if purge.topic_id != here.queues.topic_id(queue):
        return 0
    names, partitions = here.store.parts.names, here.store.layout.queues[queue]
    return waiting(here.scan, names, queue, partitions, purge.ends).count


def _changed_view(state: QueueState) -> dict[str, Any]:
    return {"what": str(state.changed), "by": state.by, "at": shown_instant(state.at)}


# -- for a person -------------------------------------------------------------------------------------------


def queue_table(views: Sequence[Mapping[str, Any]]) -> str:
    columns = ("queue", "partitions", "rate", "waiting", "oldest", "running", "workers", "paused", "purge")
    rows = [
        (
            view["queue"],
            view["partitions"],
            view["rate"],
            view["waiting"],
            None if view["age_ms"] is None else spoken(view["age_ms"]),
            view["running"],
            len(view["workers"]),
            paused_words(view["paused"]),
            _purge_words(view["purge"]),
        )
        for view in views
    ]
    return table(columns, rows)


def paused_words(pause: Mapping[str, Any] | None) -> str:
    if pause is None:
        return ""
    why = harmless(pause["reason"], 80)
    return f"by {pause['by']} since {pause['at']}" + (f": {why}" if why else "")


def _purge_words(purge: Mapping[str, Any] | None) -> str:
    if purge is None or not purge["left"]:
        return ""
    return f"{purge['left']} to be cancelled, by {purge['by']}"


def spoken(ms: int) -> str:
    """A length of time for a person: its largest unit of which there are at least two."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms / 1000:.0f} s"
