"""Many jobs through one producer: bounded memory, many records in flight, references in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.client.commands import append_create
from pipeline.client.connection import Connection, Delivery
from pipeline.core.errors import InvalidInput
from pipeline.core.jobref import JobRef

CHUNK_JOBS = 1_000
CHUNK_BYTES = 2 * 1024 * 1024
CHUNK_AGE_MS = 100
"""A chunk is closed at any of these: a slow source still sees its references soon."""
PUMP_JOBS = 100
"""Reports are taken so often: after a pause the connection's own thread begins to take them, and passing the
interpreter lock to and fro for each makes this thread so slow that the pauses stay."""
IN_FLIGHT = 8
"""Chunks that may wait for the store: at most 8,000 jobs or about 16 MiB in the producer."""


class Chunk:
    """Jobs whose delivery reports are awaited together. `problem` is what ended the stream behind them."""

    __slots__ = ("bytes", "delivery", "opened", "problem", "refs", "report")

    def __init__(self, opened: int) -> None:
        self.opened = opened
        self.bytes = 0
        self.refs: list[JobRef] = []
        self.delivery = Delivery()
        self.report = self.delivery.report  # one object for all of them, see `KafkaAppender`
        self.problem: Exception | None = None

    def hold(self, ref: JobRef, size: int) -> None:
        self.refs.append(ref)
        self.bytes += size

    def add(self, connection: Connection, job: Mapping[str, Any]) -> None:
        """A job that asks for more than `Recorder` knows, as if it were alone."""
        if job.get("key") is not None:
            self.hold(*append_create(connection, job, self.report))
            return
        run = connection.requests.run(job)
        size = connection.append(run, self.report)
        self.hold(JobRef.of(run), size)

    def seal(self, problem: Exception | None = None) -> Chunk:
        self.problem = problem
        self.delivery.expect(len(self.refs))
        return self

    def confirmed(self, connection: Connection) -> Iterator[JobRef]:
        """Wait for the reports, then hand out the references; then raise the problem, if there is one."""
        connection.pump_until(self.delivery)
        yield from self.refs
        if self.problem is not None:
            raise self.problem


def schedule_all(connection: Connection, jobs: Iterable[Mapping[str, Any]]) -> Iterator[JobRef]:
    """References of `jobs`, in their order, each once its record is acknowledged."""
    window: deque[Chunk] = deque()
    for chunk in _chunks(connection, jobs):
        window.append(chunk)
        while len(window) > IN_FLIGHT or (window and window[0].delivery.future.done()):
            yield from window.popleft().confirmed(connection)
    for chunk in window:
        yield from chunk.confirmed(connection)


def _chunks(connection: Connection, jobs: Iterable[Mapping[str, Any]]) -> Iterator[Chunk]:
    monotonic, now_at = connection.parts.clock.monotonic, connection.clock.at
    append, record = connection.parts.appender.append, connection.recorder().record
    chunk = Chunk(monotonic())
    try:
        for number, job in enumerate(jobs, 1):
            here = monotonic()
            if type(job) is not dict and not isinstance(job, Mapping):
                raise InvalidInput(f"item {number}", f"{job!r:.80} is no mapping")
            try:
                recorded = record(job, now_at(here))
                if recorded is None:
                    chunk.add(connection, job)
            except InvalidInput as error:
                raise InvalidInput(f"item {number}: {error.field}", error.problem) from error
            if recorded is not None:
                ref, put = recorded
                append(put, chunk.report)
                chunk.refs.append(ref)
                chunk.bytes += len(put.value or b"")
            if not number % PUMP_JOBS:
                connection.pump(0)
            if (
                len(chunk.refs) >= CHUNK_JOBS
                or chunk.bytes >= CHUNK_BYTES
                or here - chunk.opened >= CHUNK_AGE_MS
            ):
                connection.pump(0)
                yield chunk.seal()
                chunk = Chunk(monotonic())
    except Exception as problem:  # noqa: BLE001 -- `confirmed` raises it, once what stands before it is told
        yield chunk.seal(problem)
    else:
        yield chunk.seal()
