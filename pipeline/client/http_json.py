"""Requests as the HTTP API takes them, and instants as it tells them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pipeline.client.request import due_of_request, queue_or, wait_ms
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.job import EARLIEST
from pipeline.core.times import aware, format_instant, instant_of, parse_duration, parse_instant

LONGEST_WAIT_MS = 30_000
"""How long a server waits for an owner at most."""


class Waited(NamedTuple):
    """How long a server is to wait for an owner, in ms and as it is told."""

    ms: int
    query: Mapping[str, str]


def waited(wait: object) -> Waited:
    """InvalidInput('wait')."""
    ms = min(wait_ms(wait), LONGEST_WAIT_MS)
    return Waited(ms, {"wait": f"{ms}ms"})


def job_json(request: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """A request that was checked, as the API takes it; `queue` is that of jobs that name none."""
    body = {
        name: plain(name, value) for name, value in request.items() if value is not None and name != "wait"
    }
    if "in_" in body:
        body["in"] = body.pop("in_")
    body["queue"] = queue_or(queue, body.get("queue"))
    return body


def plain(name: str, value: Any) -> Any:
    """A value as JSON has it. InvalidInput naming it for an instant that is none."""
    match value:
        case datetime():
            return format_instant(instant_of(name, value))
        case timedelta():
            return f"{parse_duration(name, value)}ms"
        case Mapping():
            return dict(value)
        case _:
            return value


def due_json(at: Any, in_: Any) -> dict[str, Any]:
    """InvalidInput naming the option."""
    due_of_request(at, in_, EARLIEST)
    return {"at": plain("at", at)} if at is not None else {"in": f"{parse_duration('in_', in_)}ms"}


def instant(text: Any) -> datetime:
    """One of a server's. StoreUnreachable if it is none."""
    try:
        return aware(parse_instant("due_at", text))
    except InvalidInput as error:
        raise StoreUnreachable(f"the server answers no instant: {error}") from error
