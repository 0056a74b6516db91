"""What `dueline status` and the console show of an installation: who owns what, the queues, and the runs in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.core.backup import Hold
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Heartbeat, InFlight
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.follower.schedules import is_overdue
from pipeline.follower.values import shown_instant
from pipeline.heartbeat import Seen

View = dict[str, Any]

STUCK_MS = 600_000
"""A run without a time-out that is in flight for longer is shown as stuck. It only is shown: nobody ends it."""


def held_view(hold: Hold | None) -> View | None:
    """The restore for which the dispatch is held."""
    if hold is None:
        return None
    return {"backup": hold.id, "state": str(hold.state), "since": shown_instant(hold.at), "era": hold.era}


def schedules_view(states: Iterable[Schedule], now: int) -> View:
    """How many schedules there are, and which of them should have fired by now."""
    there = list(states)
    overdue = sorted(state.spec.id for state in there if is_overdue(state, now))
    return {"count": len(there), "overdue": overdue}


def partitions_view(names: Names, layout: Layout, processes: Iterable[Seen]) -> list[View]:
    """Every partition that somebody must own: of `jobs`, then of each queue's work topic."""
    owners = {
        (owned.topic, owned.partition): (seen.heartbeat, owned)
        for seen in processes
        for owned in seen.heartbeat.owned
    }
    places = [(names.jobs, layout.partitions)]
    places += [(names.work(queue), count) for queue, count in sorted(layout.queues.items())]
    return [
        {
            "topic": topic,
            "partition": partition,
            "owner": owner[0].process if owner else None,
            "state": owner[1].state if owner else None,
            "generation": owner[0].generation if owner else None,
        }
        for topic, count in places
        for partition in range(count)
        for owner in [owners.get((topic, partition))]
    ]


def process_view(seen: Seen) -> View:
    """One live process, of a worker one for each of its queues."""
    heartbeat = seen.heartbeat
    return {
        "process": heartbeat.process,
        "role": heartbeat.role,
        "host": heartbeat.host,
        "pid": heartbeat.pid,
        "version": heartbeat.version,
        "started_at": shown_instant(heartbeat.started_at),
        "seen_at": shown_instant(seen.at),
        "generation": heartbeat.generation,
        "owned": len(heartbeat.owned),
        "queues": list(heartbeat.queues),
        "handlers": list(heartbeat.handlers),
        "in_flight": len(heartbeat.in_flight),
    }


def queue_view(queue: str, processes: Iterable[Seen], waiting: int | None, oldest: int | None) -> View:
    """A queue: how many of its runs wait (None: nobody counted), since when the oldest is there that has not ended, and
    what its workers say of it."""
    beats = [
        seen.heartbeat
        for seen in processes
        if seen.heartbeat.role == "worker" and queue in seen.heartbeat.queues
    ]
    return {
        "queue": queue,
        "lag": waiting,
        "oldest_unacked": None if oldest is None else shown_instant(oldest),
        "workers": len(beats),
        "in_flight": sum(len(beat.in_flight) for beat in beats),
        "held": sum(len(beat.held) for beat in beats),
        "parked": sum(beat.parked for beat in beats),
        "handlers": sorted({name for beat in beats for name in beat.handlers}),
    }


def runs_view(processes: Sequence[Seen], now: int) -> list[View]:
    """The runs in flight that workers tell of (200 of each and of a queue), the oldest first; `now` is the store's."""
    flights = [(seen.heartbeat, flight) for seen in processes for flight in seen.heartbeat.in_flight]
    flights.sort(key=lambda pair: pair[1].started_at)
    held = {(one.occurrence_id, one.run, one.token) for seen in processes for one in seen.heartbeat.held}
    return [
        _run_view(beat, flight, now, held=(flight.occurrence_id, flight.run, flight.token) in held)
        for beat, flight in flights
    ]


def _run_view(beat: Heartbeat, flight: InFlight, now: int, *, held: bool) -> View:
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
