"""What a worker says of itself in its heartbeat (schemas/heartbeat.avsc)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.core.identity import Identity
from pipeline.core.job import Heartbeat, Held, InFlight, Owned
from pipeline.core.registry import Registry
from pipeline.desk import Desk
from pipeline.lane import Flight, Hold, Lane

LIMIT = 200
"""Attempts that one heartbeat names, and held runs of one partition."""


def worker_heartbeat(
    me: Identity,
    desk: Desk,
    registry: Registry,
    transactional_ids: tuple[str, ...],
    generation: int,
    lanes: Iterable[Lane],
    flights: Sequence[Flight],
    taking: bool = True,
) -> Heartbeat:
    """`flights` = attempts under way, those of partitions that were lost among them. A worker that is `taking` no
    further run handles nothing: nobody shall count on it."""
    lanes, topic = list(lanes), desk.names.work(desk.queue)
    return Heartbeat(
        process=me.process, role="worker", version=me.version, host=me.host, pid=me.pid, started_at=me.started_at,
        generation=generation, transactional_ids=transactional_ids, handlers=registry.names() if taking else (),
        queues=(desk.queue,),
        owned=tuple(
            Owned(topic=topic, partition=lane.number, state=lane.state.name.lower()) for lane in lanes
        ),
        in_flight=tuple(_in_flight(flight, registry) for flight in flights[:LIMIT]),
        held=tuple(_held(hold, lane) for lane in lanes for hold in list(lane.held.values())[:LIMIT]),
        parked=sum(len(lane.parked) for lane in lanes),
    )  # fmt: skip


def _in_flight(flight: Flight, registry: Registry) -> InFlight:
    run, tray, spec = flight.run, flight.side, registry.get(flight.run.handler)
    fraction = None if tray is None else tray.fraction
    return InFlight(
        occurrence_id=run.occurrence_id, run=run.run, attempt=flight.attempt, token=flight.token,
        handler=run.handler, started_at=flight.started_at,
        progress_permille=None if fraction is None else round(fraction * 1000),
        note=None if tray is None else tray.note or None,
        timeout_ms=run.timeout_ms or (spec.timeout_ms if spec is not None else None),
    )  # fmt: skip


def _held(hold: Hold, lane: Lane) -> Held:
    run = hold.delivery.run
    return Held(
        occurrence_id=run.occurrence_id, run=run.run, token=hold.start.token, worker=hold.start.worker,
        work_partition=lane.number,
    )  # fmt: skip
