"""What stands in the topics after the night, read back record by record; nothing here remembers the run
itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core.job import Ack, AckState, Run
from pipeline.core.keys import AcksKind, JobsKind, parse_acks_key, parse_jobs_key
from pipeline.core.names import Names
from pipeline.dev.demo.mailbox import Stopped, Stored
from pipeline.ports import Reader, Record


class Created(NamedTuple):
    """A job record."""

    idempotency_key: str
    handler: str


class Emission(NamedTuple):
    """A record of the work topic. `appended_at` is its LogAppendTime, `due_at` when its run was due."""

    occurrence_id: str
    run: int
    idempotency_key: str
    due_at: int
    appended_at: int


class Start(NamedTuple):
    """A started attempt. `at` is the LogAppendTime of its record."""

    occurrence_id: str
    run: int
    attempt: int
    token: int
    worker: str
    at: int


class End(NamedTuple):
    """The outcome of an attempt. `result` is the handler's, as JSON."""

    occurrence_id: str
    run: int
    attempt: int
    worker: str
    state: AckState
    result: bytes | None


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that the report is made of."""

    created: list[Created] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    dead: int = 0
    processes: dict[int, str] = field(default_factory=dict)
    """Process ids of the workers by pid, from their heartbeats."""
    mails: list[Stored] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)


def read_topics(reader: Reader, names: Names, queue: str) -> Evidence:
    """All that the topics of one installation hold about one queue. Undecodable if a record is not ours."""
    found = Evidence()
    for record in _records(reader, names.jobs):
        _job(found, record)
    for record in _records(reader, names.work(queue)):
        run = codec.RUN.decode(record.value() or b"")
        found.emissions.append(emission(run, record.timestamp()[1]))
    for record in _records(reader, names.acks(queue)):
        _fact(found, record)
    found.dead = sum(1 for _ in _records(reader, names.dead))
    found.processes = worker_processes(reader, names)
    return found


def emission(run: Run, appended_at: int) -> Emission:
    return Emission(run.occurrence_id, run.run, run.idempotency_key, run.due_at, appended_at)


def worker_processes(reader: Reader, names: Names) -> dict[int, str]:
    """Process ids of the workers by pid."""
    beats = (codec.HEARTBEAT.decode(value) for value in _values(reader, names.fleet))
    return {beat.pid: beat.process for beat in beats if beat.role == "worker"}


def _records(reader: Reader, topic: str) -> Iterator[Record]:
    for partition in range(reader.partitions(topic)):
        yield from reader.read(topic, partition)


def _values(reader: Reader, topic: str) -> Iterator[bytes]:
    for record in _records(reader, topic):
        value = record.value()
        if value is not None:
            yield value


def _job(found: Evidence, record: Record) -> None:
    value = record.value()
    if value is not None and parse_jobs_key(record.key() or b"").kind is JobsKind.JOB:
        run = codec.RUN.decode(value)
        found.created.append(Created(run.idempotency_key, run.handler))


def _fact(found: Evidence, record: Record) -> None:
    value = record.value()
    if value is None or parse_acks_key(record.key() or b"").kind not in (AcksKind.STARTED, AcksKind.TERMINAL):
        return
    ack = codec.ACK.decode(value)
    if ack.state is AckState.STARTED:
        found.starts.append(_start(ack, record.timestamp()[1]))
    elif ack.state.terminal:
        found.ends.append(End(ack.occurrence_id, ack.run, ack.attempt, ack.worker, ack.state, ack.result))


def _start(ack: Ack, at: int) -> Start:
    return Start(ack.occurrence_id, ack.run, ack.attempt, ack.token, ack.worker, at)
