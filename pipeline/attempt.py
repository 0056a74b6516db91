"""One handler call, as it runs in an executor: the context, the payload, the call."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from pipeline.core import times
from pipeline.core.context import Context, Side
from pipeline.core.handler import HandlerSpec, InvalidPayload
from pipeline.core.job import Run
from pipeline.lane import Flight
from pipeline.tray import Means, Tray

_read_json = json.JSONDecoder().raw_decode
_SPACE = " \t\n\r"
_aware = lru_cache(maxsize=1024)(times.aware)
"""Runs are due, meant and fired at the same instants."""

# Every run has a context, so it is filled as a draft and then given its class: `codec.run_wire` says why.
_Context: Any = Context


class _ContextDraft:
    __slots__ = _Context.__slots__


__all__ = ["Means", "Tray", "call_handler", "context_of"]


def call_handler(spec: HandlerSpec, flight: Flight, side: Side) -> Any:
    """What the handler returns; of an asynchronous one, its coroutine. Raises what it raises, and InvalidPayload for
    a payload that no attempt could take."""
    context = context_of(flight.run, flight.attempt, flight.token, flight.delivery.fired_at, side)
    return spec.invoke(context, context.payload)


def context_of(run: Run, attempt: int, token: int, fired_at: int, side: Side) -> Context:
    """InvalidPayload if the payload is not JSON."""
    context: Any = _ContextDraft()
    context.job_id = run.job_id
    context.occurrence_id = run.occurrence_id
    context.handler = run.handler
    context.payload = _payload(run.payload)
    context.due_at = _aware(run.due_at)
    context.nominal_at = _aware(run.nominal_at)
    context.fired_at = _aware(fired_at)
    context.run = run.run
    context.attempt = attempt
    context.idempotency_key = run.idempotency_key
    context.token = token
    context.side = side
    context.key = run.key
    context.queue = run.queue
    context.labels = run.labels
    context.headers = run.headers
    context.last_success_at = None if run.last_success_at is None else _aware(run.last_success_at)
    context.schedule_id = run.schedule_id
    context.__class__ = Context
    built: Context = context
    return built


def _payload(data: bytes) -> Any:
    """A foreign producer may have put anything there: what is not JSON can never be handled."""
    try:
        text = data.decode().strip(_SPACE)
        value, end = _read_json(text)
        if end != len(text):
            raise ValueError(f"{text[end : end + 20]!r} stands behind it")
    except (ValueError, RecursionError) as problem:
        raise InvalidPayload(f"payload is not JSON: {problem}") from None
    return value
