"""One handler call, as it runs in an executor: the context, the payload, the call."""

from __future__ import annotations

import json
import logging
from typing import Any

from pipeline.core import times
from pipeline.core.context import Context
from pipeline.core.handler import Dead, HandlerSpec
from pipeline.core.states import PartitionState
from pipeline.lane import Flight


def call_handler(spec: HandlerSpec, flight: Flight) -> Any:
    """What the handler returns; of an asynchronous one, its coroutine. Raises what it raises, and Dead for a
    payload that no handler could take."""
    context = _context(flight)
    return spec.invoke(context, context.payload)


def _context(flight: Flight) -> Context:
    run = flight.run
    return Context(
        job_id=run.job_id,
        occurrence_id=run.occurrence_id,
        handler=run.handler,
        payload=_payload(run.payload),
        due_at=times.aware(run.due_at),
        nominal_at=times.aware(run.nominal_at),
        fired_at=times.aware(flight.delivery.fired_at),
        run=run.run,
        attempt=flight.attempt,
        idempotency_key=run.idempotency_key,
        token=flight.token,
        logger=logging.LoggerAdapter(logging.getLogger(f"dueline.job.{run.handler}"), {"job": run.job_id}),
        stopped=lambda: flight.lane.state is PartitionState.CLOSED,
    )


def _payload(data: bytes) -> Any:
    """A foreign producer may have put anything there: what is not JSON can never be handled."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise Dead(f"payload is not JSON: {problem}") from None
