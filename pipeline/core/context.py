"""What a handler is given beside its payload."""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.core.errors import InvalidInput

if TYPE_CHECKING:
    from pipeline.core.jobref import JobRef


class Side(Protocol):
    """What an attempt may ask of its worker while it runs. Any thread may call it."""

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        """Keep a new job for the ack transaction; `request` has the names of `Dueline.schedule`. InvalidInput naming
        the option; Refused once the attempt has come to an end."""
        ...

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        partition: int | None,
    ) -> None:
        """Keep a record for the ack transaction. InvalidInput naming what is wrong; Refused as `schedule`."""
        ...

    def progress(self, fraction: float | None, note: str) -> None:
        """Show how far the attempt is, in the worker's next heartbeat."""
        ...

    def log(self, line: str) -> None:
        """Keep a line with the attempt; the first ones give way when there are too many."""
        ...

    def stopped(self) -> bool:
        """Whether the run should end: somebody stopped it, its time is over, or the worker is leaving."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt, as its handler sees it. Times are aware UTC datetimes.

    `idempotency_key` is what an effect is made unique by, `token` what orders competing attempts: hand both to
    the resource (a sink, an HTTP header, a conditional update). `token` grows strictly with every attempt of an
    occurrence.
    """

    job_id: str
    occurrence_id: str
    handler: str
    payload: Any
    due_at: datetime
    nominal_at: datetime
    fired_at: datetime
    run: int
    attempt: int
    idempotency_key: str
    token: int
    side: Side
    key: str | None = None
    queue: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    last_success_at: datetime | None = None
    """When the schedule's last successful occurrence was due; None for other jobs, or if there is none."""
    schedule_id: str | None = None
    """Of the schedule that this is an occurrence of; None for other jobs."""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs as `dueline.job.<handler>` with the ids of this attempt, and keeps the last lines with it."""
        return RunLogger(self)

    @property
    def cancelled(self) -> bool:
        """True once the run was stopped, or its time or its worker's drain time-out is over: raise then."""
        return self.side.stopped()

    def schedule(self, handler: str, payload: dict[str, Any] | None = None, **options: Any) -> JobRef:
        """Create a job together with this run's success: it exists exactly if this run is acked as succeeded, and
        once. Options as `Dueline.schedule`; a job with a key is `accepted`. Raises InvalidInput naming the option."""
        return self.side.schedule({"handler": handler, "payload": payload, **options})

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, bytes | str] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append a record to a topic of yours together with this run's success: exactly once for readers with
        isolation `read_committed`. Text is UTF-8; None as value is a tombstone; without a partition the key chooses it,
        as Kafka's Java client does. InvalidInput if the topic does not exist, or is one of the product's own."""
        texts = {name: _bytes("headers", text) for name, text in (headers or {}).items()}
        self.side.produce(topic, _maybe("value", value), _maybe("key", key), texts, partition)

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Say how far this run is: a fraction of 1, a note (its first 200 characters), or both."""
        self.side.progress(fraction, note[:200])


def _bytes(field: str, value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidInput(field, f"must be bytes or text, not {type(value).__name__}")
    return bytes(value)


def _maybe(field: str, value: bytes | str | None) -> bytes | None:
    return None if value is None else _bytes(field, value)


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Of one attempt; see `Context.logger`."""

    def __init__(self, context: Context) -> None:
        ids = {"job": context.job_id, "run": context.run, "attempt": context.attempt}
        super().__init__(logging.getLogger(f"dueline.job.{context.handler}"), ids)
        self._side = context.side

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.INFO or self.isEnabledFor(level):
            self._side.log(f"{logging.getLevelName(level)} {formatted(msg, args)}")
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def formatted(msg: object, args: tuple[object, ...]) -> str:
    try:
        return str(msg) % args if args else str(msg)
    except Exception:  # noqa: BLE001 - logging itself reports what is wrong with the arguments
        return str(msg)
