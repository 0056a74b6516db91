"""One handler call, as it runs in an executor: the context, the payload, the call."""

from __future__ import annotations

import json
from typing import Any

from pipeline.core import times
from pipeline.core.context import Context, Side
from pipeline.core.handler import HandlerSpec, InvalidPayload
from pipeline.core.job import Run
from pipeline.lane import Flight
from pipeline.tray import Means, Tray

_decode = json.JSONDecoder().decode

__all__ = ["Means", "Tray", "call_handler", "context_of"]


def call_handler(spec: HandlerSpec, flight: Flight, side: Side) -> Any:
    """What the handler returns; of an asynchronous one, its coroutine. Raises what it raises, and InvalidPayload for
    a payload that no attempt could take."""
    context = context_of(flight.run, flight.attempt, flight.token, flight.delivery.fired_at, side)
    return spec.invoke(context, context.payload)


def context_of(run: Run, attempt: int, token: int, fired_at: int, side: Side) -> Context:
    """InvalidPayload if the payload is not JSON."""
    return Context(
        job_id=run.job_id,
        occurrence_id=run.occurrence_id,
        handler=run.handler,
        payload=_payload(run.payload),
        due_at=times.aware(run.due_at),
        nominal_at=times.aware(run.nominal_at),
        fired_at=times.aware(fired_at),
        run=run.run,
        attempt=attempt,
        idempotency_key=run.idempotency_key,
        token=token,
        side=side,
        key=run.key,
        queue=run.queue,
        labels=run.labels,
        headers=run.headers,
    )


def _payload(data: bytes) -> Any:
    """A foreign producer may have put anything there: what is not JSON can never be handled."""
    try:
        return _decode(data.decode())
    except (ValueError, RecursionError) as problem:
        raise InvalidPayload(f"payload is not JSON: {problem}") from None
