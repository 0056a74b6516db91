"""What `dueline status` says of workers: their queues, and the runs that they have in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.cli.store import Store
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Heartbeat, InFlight
from pipeline.follower import shown_instant
from pipeline.heartbeat import Seen

STUCK_MS = 600_000
"""A run without a time-out that is in flight for longer is shown as stuck. It only is shown: nobody ends it."""


def queues_view(store: Store, processes: Sequence[Seen]) -> list[dict[str, Any]]:
    """Every queue: how far its workers are behind, and what they say of it."""
    return [_queue_view(store, queue, processes) for queue in sorted(store.layout.queues)]


def _queue_view(store: Store, queue: str, processes: Sequence[Seen]) -> dict[str, Any]:
    beats = [
        seen.heartbeat
        for seen in processes
        if seen.heartbeat.role == "worker" and queue in seen.heartbeat.queues
    ]
    lag, oldest = _behind(store, queue)
    return {
        "queue": queue,
        "lag": lag,
        "oldest_unacked": None if oldest is None else shown_instant(oldest),
        "workers": len(beats),
        "in_flight": sum(len(beat.in_flight) for beat in beats),
        "held": sum(len(beat.held) for beat in beats),
        "parked": sum(beat.parked for beat in beats),
        "handlers": sorted({name for beat in beats for name in beat.handlers}),
    }


def _behind(store: Store, queue: str) -> tuple[int, int | None]:
    """Offsets between what is committed and the end, and the time of the oldest record there.

    Markers of transactions take offsets too, and nobody acks them: a partition where nothing else lies there counts
    as read, and elsewhere the sum is a little too high.
    """
    names = store.parts.names
    topic, group = names.work(queue), names.worker_group(queue)
    lag, times = 0, []
    for partition, at in enumerate(store.parts.group_progress(group, topic, store.layout.queues[queue])):
        start = max(at.low, at.committed or 0)
        first = store.parts.reader.tail(topic, partition, start, 1) if start < at.end else ()
        if first:
            lag += at.end - start
            times.append(first[0].timestamp()[1])
    return lag, min(times, default=None)


def runs_view(processes: Sequence[Seen], now: int) -> list[dict[str, Any]]:
    """The runs in flight that workers tell of (200 of each and of a queue), the oldest first; `now` is the store's."""
    flights = [(seen.heartbeat, flight) for seen in processes for flight in seen.heartbeat.in_flight]
    flights.sort(key=lambda pair: pair[1].started_at)
    held = {(one.occurrence_id, one.run, one.token) for seen in processes for one in seen.heartbeat.held}
    return [
        _run_view(beat, flight, now, held=(flight.occurrence_id, flight.run, flight.token) in held)
        for beat, flight in flights
    ]


def _run_view(beat: Heartbeat, flight: InFlight, now: int, *, held: bool) -> dict[str, Any]:
    age = max(0, now - flight.started_at)
    return {
        "job": _job_of(flight.occurrence_id),
        "occurrence": flight.occurrence_id,
        "run": flight.run,
        "attempt": flight.attempt,
        "handler": flight.handler,
        "queue": beat.queues[0] if beat.queues else None,
        "worker": beat.process,
        "started_at": shown_instant(flight.started_at),
        "age_ms": age,
        "progress": None if flight.progress_permille is None else flight.progress_permille / 1000,
        "note": flight.note,
        "held": held,
        "stuck": age > (STUCK_MS if flight.timeout_ms is None else flight.timeout_ms),
    }


def _job_of(occurrence_id: str) -> str:
    try:
        parsed = parse_id(occurrence_id)
    except Undecodable:
        return occurrence_id
    return parsed.id if isinstance(parsed, KeyedId) else occurrence_id
