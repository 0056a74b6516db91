"""Waiting for what becomes of a job: its result, or its end once it was asked to stop (DESIGN §9).

Nobody sends a client news of a job, so it looks again, at growing intervals; a look costs what has come since. What
waits is a generator of the pauses between two looks, so that a thread and an event loop can wait alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from pipeline.client.commands import NOT_FOUND, TOO_LATE, UNKNOWN, JobChange, answer_of, check_id, send
from pipeline.client.connection import Connection
from pipeline.client.parts import JobWatch
from pipeline.client.request import wait_ms
from pipeline.client.transport import Reading
from pipeline.core.errors import JobFailed, NotFound, StoreUnreachable
from pipeline.core.handler import Duration
from pipeline.core.job import Event, JobStatus
from pipeline.core.sight import OVER, Sight

T = TypeVar("T")
Waiting = Generator[float, None, T]
"""Gives the seconds to wait before it is to go on."""

FIRST_S, LONGEST_S, GROWTH = 0.02, 1.0, 1.5
"""The first pause between two looks, the longest, and how they grow."""
STOPPING = "stopping"


def wait_for(steps: Waiting[T]) -> T:
    """Wait on this thread."""
    try:
        while True:
            time.sleep(next(steps))
    except StopIteration as done:
        value: T = done.value
        return value


async def wait_for_async(
    steps: Waiting[T], in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
) -> T:
    """Wait without blocking the event loop. `in_thread` calls a function with arguments in one."""
    while True:
        pause, value = await in_thread(_step, steps)
        if pause is None:
            done: T = value
            return done
        await asyncio.sleep(pause)


def _step(steps: Waiting[T]) -> tuple[float | None, Any]:
    """A pause, or the end and its value. StopIteration cannot leave a thread."""
    try:
        return next(steps), None
    except StopIteration as done:
        return None, done.value


def _pauses(deadline: float) -> Generator[float, None, None]:
    """Pauses until then (monotonic s); at the end, one look more."""
    pause = FIRST_S
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * GROWTH, LONGEST_S)


# -- results ------------------------------------------------------------------------------------------------


def result(connection: Reading, job_id: str, wait: Duration) -> Waiting[Any]:
    """What the handler returned. Raises InvalidInput naming the option, NotFound, JobFailed if the job ended without
    one, TimeoutError if it has not ended in time, StoreUnreachable."""
    check_id(job_id)
    deadline = time.monotonic() + wait_ms(wait) / 1000
    watch = _watch(connection, job_id)
    sight = yield from _seen(connection, watch, job_id, deadline)
    for pause in _pauses(deadline):
        if sight.status in OVER:
            break
        yield pause
        sight = yield from _seen(connection, watch, job_id, deadline)
    if sight.status is JobStatus.SUCCEEDED:
        return sight.result
    if sight.status in OVER:
        raise JobFailed(job_id, str(sight.status), sight.error)
    raise TimeoutError(f"job {job_id} is still {sight.status} after waiting {wait}")


def _watch(connection: Reading, job_id: str) -> JobWatch:
    with connection.reading() as finder:
        return finder.watch(job_id)


def _look(connection: Reading, watch: JobWatch, job_id: str) -> Sight:
    with connection.reading():
        sight = watch.look()
    if sight is None:
        raise NotFound(f"{job_id}: nothing is stored under this id")
    return sight


def _seen(connection: Reading, watch: JobWatch, job_id: str, deadline: float) -> Waiting[Sight]:
    """A look, and another while the store is away: it may be coming back. Raises as `_look`, StoreUnreachable only at
    the deadline."""
    pauses = _pauses(deadline)
    while True:
        try:
            return _look(connection, watch, job_id)
        except StoreUnreachable:
            pause = next(pauses, None)
            if pause is None:
                raise
        yield pause


# -- stops --------------------------------------------------------------------------------------------------


def stop(connection: Connection, job_id: str, wait: Duration) -> Waiting[JobChange]:
    """Cancel the job if it has not fired, else have its run stopped, and see what became of that within `wait`.
    Raises InvalidInput naming the option, StoreUnreachable."""
    check_id(job_id)
    deadline = time.monotonic() + wait_ms(wait) / 1000
    event = _ask(connection, job_id, deadline)
    outcome = None if event is None else event.outcome
    if outcome not in ("fired", NOT_FOUND, STOPPING):
        return JobChange(id=job_id, outcome=_final(outcome))
    try:
        outcome = yield from _stop_fired(connection, job_id, outcome == STOPPING, deadline)
    except NotFound:
        outcome = NOT_FOUND
    except StoreUnreachable:
        outcome = STOPPING if outcome == STOPPING else UNKNOWN
    return JobChange(id=job_id, outcome=outcome)


def _final(outcome: str | None) -> str:
    return outcome if outcome in ("cancelled", "stopped") else UNKNOWN


def _stop_fired(connection: Connection, job_id: str, asked: bool, deadline: float) -> Waiting[str]:
    """Of a job that the owner says has fired, or has forgotten. `asked`: the owner could tell its workers at once; if
    not, it is told what stands in the log."""
    watch = _watch(connection, job_id)
    sight = yield from _seen(connection, watch, job_id, deadline)
    if not asked and (settled := _settled(sight)) is None:
        answer = yield from _ask_with_place(connection, job_id, watch, sight, deadline)
        if answer != STOPPING:
            return answer
        sight = yield from _seen(connection, watch, job_id, deadline)
    for pause in _pauses(deadline):
        if (settled := _settled(sight)) is not None:
            return settled
        yield pause
        sight = yield from _seen(connection, watch, job_id, deadline)
    return _settled(sight) or STOPPING


def _settled(sight: Sight) -> str | None:
    """What the end of a job means to who wants it stopped; None while it has not ended."""
    match sight.status:
        case JobStatus.STOPPED:
            return "stopped"
        case JobStatus.CANCELLED if not sight.run:
            return "cancelled"
        case status if status in OVER:
            return TOO_LATE
        case _:
            return None


def _ask_with_place(
    connection: Connection, job_id: str, watch: JobWatch, sight: Sight, deadline: float
) -> Waiting[str]:
    """Ask again, and say where the run stands; the owner's word. A run may be readable a little later than its firing:
    they stand on different partitions."""
    pauses = _pauses(deadline)
    while True:
        with connection.reading():
            run = watch.run()
        if run is not None:
            break
        pause = next(pauses, None)
        if pause is None:
            return UNKNOWN
        yield pause
        sight = yield from _seen(connection, watch, job_id, deadline)
        if (settled := _settled(sight)) is not None:
            return settled
    seen = {"queue": run.queue, "serial": run.serial, "seen_run": max(sight.run, run.run)}
    event = _ask(connection, run.occurrence_id, deadline, **seen)
    if event is None:
        return UNKNOWN
    return {"fired": TOO_LATE, NOT_FOUND: TOO_LATE, STOPPING: STOPPING}.get(
        event.outcome or "", _final(event.outcome)
    )


def _ask(connection: Connection, job_id: str, deadline: float, **fields: Any) -> Event | None:
    command = connection.requests.change("stop", job_id, **fields)
    left = max(round((deadline - time.monotonic()) * 1000), 0)
    return answer_of(connection, send(connection, command, left))
