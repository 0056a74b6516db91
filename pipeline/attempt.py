"""One handler call, as it runs in an executor: the context, the payload, the call, and what it leaves on its tray."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from pipeline.core import times
from pipeline.core.context import Context, Side
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.handler import HandlerSpec, InvalidPayload
from pipeline.core.hashing import murmur2
from pipeline.core.job import Run
from pipeline.core.jobref import JobRef
from pipeline.lane import Flight
from pipeline.ports import Put

LOG_LIMIT = 8_000
"""Characters of log lines kept with an attempt."""
LINE_LIMIT = 2_000
OUTPUTS_LIMIT = 1_000
OUTPUT_BYTES = 16 * 1024 * 1024
"""Records, and bytes of them, that one attempt may hand to its ack transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What the attempts of a worker have to make records with. Any thread may call these.

    `record(request)` makes the record of a new job; InvalidInput naming the option. `partitions(topic)` is 0 for a
    topic that does not exist. `reserved(topic)`: whether it is one of the product's own.
    """

    record: Callable[[Mapping[str, Any]], tuple[JobRef, Put]]
    partitions: Callable[[str], int]
    reserved: Callable[[str], bool]


class Tray:
    """What an attempt puts aside while its handler runs: records for its ack transaction, log lines, its progress.
    Implements `core.context.Side`; appends are atomic, so threads of the handler may share it."""

    def __init__(self, means: Means, stopped: Callable[[], bool]) -> None:
        self._means = means
        self._stopped = stopped
        self._closed = False
        self._bytes = 0
        self._lines: deque[str] = deque()
        self._chars = 0
        self.outputs: list[Put] = []
        self.fraction: float | None = None
        self.note = ""

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        ref, put = self._means.record(request)
        self._keep("schedule", put)
        return ref

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes],
        partition: int | None,
    ) -> None:
        if self._means.reserved(topic):
            raise InvalidInput("topic", f"{topic!r} is one of Dueline's own")
        count = self._means.partitions(topic)
        if count < 1:
            raise InvalidInput("topic", f"{topic!r} does not exist")
        if partition is None:
            partition = murmur2(key or b"") % count
        if not 0 <= partition < count:
            raise InvalidInput("partition", f"{partition} is not within 0 … {count - 1}")
        self._keep("produce", Put(topic, partition, key or b"", value, list(headers.items())))

    def _keep(self, what: str, put: Put) -> None:
        size = len(put.key) + len(put.value or b"")
        if self._closed:
            raise Refused(f"{what}: the attempt has come to an end")
        if len(self.outputs) >= OUTPUTS_LIMIT or self._bytes + size > OUTPUT_BYTES:
            raise InvalidInput(
                what, f"one run hands on {OUTPUTS_LIMIT} records or {OUTPUT_BYTES} bytes at most"
            )
        self._bytes += size
        self.outputs.append(put)

    def progress(self, fraction: float | None, note: str) -> None:
        if fraction is not None:
            self.fraction = min(1.0, max(0.0, float(fraction)))
        self.note = note or self.note

    def log(self, line: str) -> None:
        line = line[:LINE_LIMIT]
        self._lines.append(line)
        self._chars += len(line) + 1
        while self._chars > LOG_LIMIT:
            self._chars -= len(self._lines.popleft()) + 1

    def tail(self) -> str | None:
        """The last lines logged; None if there were none."""
        return "\n".join(self._lines) or None

    def stopped(self) -> bool:
        return self._closed or self._stopped()

    def close(self) -> None:
        """Its outcome is decided: what comes later has no transaction to go into."""
        self._closed = True


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs as `dueline.job.<handler>` with ids, and keeps the lines with the run."""

    def __init__(self, run: Run, attempt: int, side: Side) -> None:
        super().__init__(
            logging.getLogger(f"dueline.job.{run.handler}"),
            {"job": run.job_id, "run": run.run, "attempt": attempt},
        )
        self._side = side

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            self._side.log(f"{logging.getLevelName(level)} {_formatted(msg, args)}")
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _formatted(msg: object, args: tuple[object, ...]) -> str:
    try:
        return str(msg) % args if args else str(msg)
    except Exception:  # noqa: BLE001 - logging itself reports what is wrong with the arguments
        return str(msg)


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
        logger=RunLogger(run, attempt, side),
        side=side,
        key=run.key,
        queue=run.queue,
        labels=run.labels,
        headers=run.headers,
    )


def _payload(data: bytes) -> Any:
    """A foreign producer may have put anything there: what is not JSON can never be handled."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise InvalidPayload(f"payload is not JSON: {problem}") from None
