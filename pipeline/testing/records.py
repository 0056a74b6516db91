"""What would have been written, as a test wants to look at it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.client.request import Requests
from pipeline.config import Settings
from pipeline.core.ids import keyed_id
from pipeline.core.job import Command, Run
from pipeline.core.jobref import JobRef
from pipeline.core.keys import command_key, job_key
from pipeline.core.times import aware
from pipeline.ports import Put
from pipeline.testing.clock import FakeClock
from pipeline.tray import Means


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledJob:
    """A job that was asked for. `due_at` is aware, in UTC; options that were not given have their defaults."""

    id: str
    handler: str
    payload: Any
    due_at: datetime
    queue: str
    idempotency_key: str
    key: str | None
    serial: str | None
    labels: Mapping[str, str]
    headers: Mapping[str, str]


class ProducedRecord(NamedTuple):
    """A record that `ctx.produce` was given; text is UTF-8."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Mapping[str, bytes]


def scheduled(asked: Run | Command) -> ScheduledJob:
    """From the record that asks for the job: its first run, or the command that creates one with a key."""
    id_ = asked.job_id if isinstance(asked, Run) else keyed_id(asked.key or "")
    return ScheduledJob(
        id=id_ or "",
        handler=asked.handler or "",
        payload=json.loads(asked.payload or b"{}"),
        due_at=aware(asked.due_at or 0),
        queue=asked.queue or "",
        idempotency_key=asked.idempotency_key or id_ or "",
        key=asked.key,
        serial=asked.serial,
        labels=asked.labels,
        headers=asked.headers,
    )


def requests_of(settings: Settings, clock: FakeClock) -> Requests:
    """What checks requests as the client does."""
    return Requests(
        now=clock.store.now,
        random80=lambda: random.getrandbits(80),
        payload_limit=settings.payload_limit,
        default_queue=settings.queue,
    )


def means_of(settings: Settings, clock: FakeClock) -> Means:
    """What a handler makes records with: every topic exists that is not the product's own, and every queue."""
    requests, names = requests_of(settings, clock), settings.names

    def record(request: Mapping[str, Any]) -> tuple[JobRef, Put]:
        if request.get("key") is None:
            run = requests.run(request)
            return JobRef.of(run), Put(names.jobs, 0, job_key(run.job_id), codec.RUN.encode(run))
        command = requests.command(request)
        ref = JobRef(keyed_id(command.key or ""), "accepted", aware(command.due_at or 0))
        return ref, Put(names.jobs, 0, command_key(command.command_id), codec.COMMAND.encode(command))

    return Means(record=record, partitions=lambda _topic: 1 << 31, reserved=names.owns)


def read_job(put: Put) -> Run | Command:
    """The record of a new job, as `record` above and the client make them."""
    value = put.value or b""
    return codec.RUN.decode(value) if put.key.startswith(b"j/") else codec.COMMAND.decode(value)
