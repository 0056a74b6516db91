"""Commands to the owner of a job's home partition, and what their answers mean to who asked (DESIGN §9).

The owner answers what it knows. What it does not know any more is looked for in the log, as `job get` does:
`cancelled` means that it did not fire, and too late is answered `too_late`, never guessed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from pipeline import codec
from pipeline.client.answers import Waiter
from pipeline.client.connection import Connection, Delivery
from pipeline.client.parts import Report
from pipeline.client.request import wait_ms
from pipeline.core.errors import (
    InvalidInput,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnreachable,
    Undecodable,
)
from pipeline.core.handler import Duration
from pipeline.core.ids import keyed_id, parse_id
from pipeline.core.job import Command, Event, Run
from pipeline.core.jobref import JobRef
from pipeline.core.keys import command_key
from pipeline.core.limited import NOT_ALLOWED
from pipeline.core.schedule import NOT_ALONE
from pipeline.core.times import aware
from pipeline.ports import Put

UNKNOWN, NOT_FOUND, TOO_LATE = "unknown", "not_found", "too_late"
CREATED = frozenset({"created", "existing", "replaced", "debounced", "rejected"})
_DIGITS = 16
"""Of an instant in an answer at most: whoever may append can answer anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What became of a change that was asked for.

    `outcome`, of cancel: cancelled | stopped | stopping | too_late | not_found | unknown; of reschedule and update:
    rescheduled, updated | too_late | cancelled | stopped | not_found | unknown; of requeue: requeued |
    brought_forward | pending | not_found | unknown. `unknown`: no owner answered in time; the change is durable
    and will be made. `due_at` and `run` are those of the run to come where the answer tells them.
    """

    id: str
    outcome: str
    due_at: datetime | None = None
    run: int | None = None


class Sent(NamedTuple):
    """A command on its way: its delivery, and its answer if one is waited for, until `deadline` (monotonic s)."""

    command: Command
    delivery: Delivery
    answer: Waiter | None
    deadline: float


def send(connection: Connection, command: Command, wait: int, home: int | None = None) -> Sent:
    """Put a command at its home, or on the partition that it is about; its answer is waited for, for up to `wait` ms.
    InvalidInput('id')."""
    home = home_of(connection, command) if home is None else home
    deadline = time.monotonic() + wait / 1000
    answer = connection.answers.expect(command.command_id, home, wait / 1000) if wait else None
    delivery = Delivery(expected=1)
    append(connection, command, home, delivery.report)
    return Sent(command, delivery, answer, deadline)


def append(connection: Connection, command: Command, home: int, report: Report) -> int:
    """Queue the record of a command; its size."""
    value = codec.COMMAND.encode(command)
    put = Put(connection.parts.names.jobs, home, command_key(command.command_id), value)
    connection.parts.appender.append(put, report)
    return len(value)


def home_of(connection: Connection, command: Command) -> int:
    """The home partition of the job or schedule that a command is about. InvalidInput('id') if that is no id."""
    if command.schedule_id is not None:
        return connection.layout.home_of_name(command.schedule_id)
    if command.job_id is None:
        assert command.key is not None
        return connection.layout.home_of_name(command.key)
    check_id(command.job_id)
    return connection.layout.home(command.job_id)


def check_id(job_id: str) -> None:
    """InvalidInput('id') if it is none."""
    if not isinstance(job_id, str):
        raise InvalidInput("id", f"must be text, not {type(job_id).__name__}")
    try:
        parse_id(job_id)
    except Undecodable as error:
        raise InvalidInput("id", str(error)) from error


def answer_of(connection: Connection, sent: Sent) -> Event | None:
    """The owner's answer; None if none came in time. Raises StoreUnreachable if the command is not durable,
    InvalidInput if the owner refused it, NotAllowed if it is about another's queue, Refused if it is about the next
    instant of a schedule, which has no change of its own, or if the owner is of an older version."""
    try:
        connection.wait(sent.delivery)
        return _accepted(None if sent.answer is None else sent.answer.result(_left(sent)))
    except TimeoutError:
        return None
    finally:
        connection.answers.forget(sent.command.command_id)


async def answer_of_async(connection: Connection, sent: Sent) -> Event | None:
    """`answer_of` without blocking the event loop."""
    try:
        await connection.wait_async(sent.delivery)
        if sent.answer is None:
            return None
        answer: asyncio.Future[Event] = asyncio.wrap_future(sent.answer)
        return _accepted(await asyncio.wait_for(answer, _left(sent)))
    except TimeoutError:
        return None
    finally:
        connection.answers.forget(sent.command.command_id)


def _left(sent: Sent) -> float:
    return max(sent.deadline - time.monotonic(), 0.0)


OLDER = (
    "nothing was done: the dispatcher that owns this is older and does not know the command yet. Upgrade the"
    " dispatchers and ask again; an Idempotency-Key has this answer for half an hour, so then with another"
)


def _accepted(event: Event | None) -> Event | None:
    if event is not None and event.outcome == NOT_ALLOWED:
        raise NotAllowed(event.reason or "not allowed")
    if event is not None and event.outcome == NOT_ALONE:
        raise Refused(event.reason or "only its schedule can be changed")
    if event is not None and event.outcome == "refused":
        field, _, problem = (event.reason or "command: no reason given").partition(": ")
        if field == "verb":  # we have chosen it, not who asks
            raise Refused(OLDER)
        raise InvalidInput(field, problem or "refused by the owner")
    return event


# -- creating a job with a key ------------------------------------------------------------------------------


def send_create(connection: Connection, request: Mapping[str, Any]) -> Sent:
    """Put the create command of a job with a key. InvalidInput naming the option."""
    command = _create(connection, request)
    return send(connection, command, wait_ms(request.get("wait")))


def append_create(connection: Connection, request: Mapping[str, Any], report: Report) -> tuple[JobRef, int]:
    """The same for one of many: nobody waits for its answer. The reference and the record's size."""
    command = _create(connection, request)
    wait_ms(request.get("wait"))
    size = append(connection, command, home_of(connection, command), report)
    return created(command, None), size


def _create(connection: Connection, request: Mapping[str, Any]) -> Command:
    command = connection.requests.command(request)
    if command.queue is not None:
        connection.require_queue(command.queue)
    return command


def created(command: Command, event: Event | None) -> JobRef:
    """The reference of a job with a key, as its owner answered; `accepted` if it did not in time."""
    assert command.key is not None
    assert command.due_at is not None
    outcome = None if event is None else event.outcome
    status = outcome if outcome in CREATED else "accepted"
    due_at = _due_at(event)
    return JobRef(keyed_id(command.key), status, aware(command.due_at) if due_at is None else due_at)


def _due_at(event: Event | None) -> datetime | None:
    return None if event is None else instant_in(event.detail, "due_at")


def instant_in(detail: Mapping[str, str], name: str) -> datetime | None:
    """An instant that an answer tells; None if it tells none."""
    text = detail.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    try:
        return aware(int(text))
    except OverflowError:
        return None


# -- changing a job -----------------------------------------------------------------------------------------


def ask(connection: Connection, verb: str, job_id: str, wait: Duration, **options: Any) -> Sent:
    """Put the command that asks for a change. Raises InvalidInput naming the option; of requeue also NotFound."""
    patience = wait_ms(wait)
    if verb == "requeue":
        return send(connection, _requeue(connection, job_id), patience)
    requests, fields = connection.requests, options
    if verb == "reschedule":
        fields = {"due_at": requests.due_at(options["at"], options["in_"])}
    elif verb == "update":
        fields = {"payload": requests.payload(options["payload"])}
    return send(connection, requests.change(verb, job_id, **fields), patience)


def meaning(connection: Connection, job_id: str, event: Event | None) -> JobChange:
    """What an answer means. Of a job that its owner has forgotten, or that is being stopped, the log is asked;
    StoreUnreachable."""
    change = meaning_of(job_id, event)
    if says_too_little(change, event):
        with connection.reading() as finder:
            return replace(change, outcome=look(finder, job_id))
    return change


def says_too_little(change: JobChange, event: Event | None) -> bool:
    """Whether its owner has forgotten the job, or it is being stopped: what became of it stands in the log."""
    being_stopped = event is not None and event.reason == "stopping"
    return change.outcome == NOT_FOUND or (change.outcome == TOO_LATE and being_stopped)


def meaning_of(job_id: str, event: Event | None) -> JobChange:
    """What an answer means by itself."""
    if event is None or event.outcome is None:
        return JobChange(id=job_id, outcome=UNKNOWN)
    outcome = _WORDS.get(event.outcome, UNKNOWN)
    return JobChange(id=job_id, outcome=outcome, due_at=_due_at(event), run=event.run)


_SAME = (
    "cancelled",
    "stopped",
    "rescheduled",
    "updated",
    "requeued",
    "brought_forward",
    "pending",
    "superseded",
)
_WORDS = {**{word: word for word in _SAME}, "fired": TOO_LATE, NOT_FOUND: NOT_FOUND}
"""What an owner's word means to who asked. A word of a later version is unknown here."""


class ShowsJobs(Protocol):
    """What can show a job: a `JobFinder`, or a read model."""

    def job(self, job_id: str) -> dict[str, Any]: ...


def look(finder: ShowsJobs, job_id: str) -> str:
    """What became of a job that its owner has forgotten: too_late | cancelled | stopped | not_found | unknown."""
    try:
        view = finder.job(job_id)
    except NotFound:
        return NOT_FOUND
    except StoreUnreachable:
        return UNKNOWN
    match view["status"]:
        case "pending":
            return UNKNOWN  # the owner has not heard of what we read: nobody can tell yet
        case "cancelled" if not view["runs"]:
            return "cancelled"
        case "stopped":
            return "stopped"
        case _:
            return TOO_LATE


def _requeue(connection: Connection, job_id: str) -> Command:
    """The command that runs a job once more, with all that its run is made of. Raises InvalidInput('id'),
    NotFound, StoreUnreachable."""
    with connection.reading() as finder:
        run, seen = finder.run_of(job_id)
    return requeue_of(connection, run, seen or None)


def requeue_of(connection: Connection, run: Run, seen: int | None) -> Command:
    """The command that runs a job once more; `seen` = the highest run that was seen."""
    return connection.requests.change(
        "requeue",
        run.occurrence_id,
        handler=run.handler,
        queue=run.queue,
        payload=run.payload,
        key=run.key,
        idempotency_key=run.idempotency_key,
        attempt_limit=run.attempt_limit,
        timeout_ms=run.timeout_ms,
        serial=run.serial,
        labels=dict(run.labels),
        headers=dict(run.headers),
        seen_run=seen,
    )
