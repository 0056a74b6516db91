"""Changes of jobs, asked of their owners; no role is checked here (`actions`)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.client import commands, waiting
from pipeline.client.commands import JobChange, Sent
from pipeline.client.connection import Connection
from pipeline.client.request import TEXT_LIMIT, pairs_of
from pipeline.core.errors import DuelineError, InvalidInput, NotFound, Refused, StoreUnreachable
from pipeline.core.jobref import JobRef
from pipeline.core.keys import job_key
from pipeline.core.times import written_instant
from pipeline.ports import Put
from pipeline.readmodel.questions import Position, Questions
from pipeline.server.store import Store

View = dict[str, Any]

NEED_LOOK_MS = 2_000
"""So long the read model may need to hear of what an owner has answered."""
UNDER_WAY = 200
"""Commands of a bulk change sent before the answer to the first is waited for."""
BODY_HEADER = "dueline-request"
"""Header of a job that was created with an Idempotency-Key: a hash of the request, to tell a repeat from a conflict."""
KEPT = "24h"
"""How long an Idempotency-Key is remembered."""


class Conflict(DuelineError):
    """This Idempotency-Key was used for another request: use a new one."""


# -- creating ------------------------------------------------------------------------------------------------


async def known_queue(store: Store, connection: Connection, queue: object) -> None:
    """InvalidInput if it is unknown. The layout is read again off the event loop."""
    if isinstance(queue, str) and queue not in connection.layout.queues:
        await store.call(connection.require_queue, queue)


class Creating:
    """New jobs without a key, from one event loop: what repeats from request to request is checked once."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._recorder = connection.recorder()

    def record(self, request: Mapping[str, Any]) -> tuple[JobRef, Put]:
        """InvalidInput naming the option. The queue is known."""
        connection = self.connection
        recorded = self._recorder.record(request, connection.clock.now())
        if recorded is not None:
            return recorded
        run = connection.requests.run(request)
        home = connection.layout.home(run.job_id)
        put = Put(connection.parts.names.jobs, home, job_key(run.job_id), codec.RUN.encode(run))
        return JobRef.of(run), put


async def create_keyed(store: Store, request: Mapping[str, Any]) -> JobRef:
    """Raises InvalidInput naming the option, StoreUnreachable."""
    connection = await store.connection()
    sent = await store.call(commands.send_create, connection, request)
    try:
        return commands.created(sent.command, await commands.answer_of_async(connection, sent))
    except StoreUnreachable as error:
        store.suspect(error)
        raise


def with_idempotency(request: Mapping[str, Any], scope: str, given: str) -> dict[str, Any]:
    """The request as one of a job with a key that is held for a day. InvalidInput."""
    if request.get("key") is not None:
        raise InvalidInput("Idempotency-Key", "a job with a key is made unique by that: leave the header out")
    for name in ("unique", "on_conflict"):
        if request.get(name) is not None:
            raise InvalidInput(name, "needs a key")
    if not given.isprintable() or not given or len(given.encode()) > TEXT_LIMIT // 2:
        raise InvalidInput("Idempotency-Key", f"must be 1 to {TEXT_LIMIT // 2} printable characters")
    headers = {**pairs_of("headers", request.get("headers")), BODY_HEADER: fingerprint(request)}
    return {**request, "headers": headers, "key": f"http/{scope}/{given}", "unique": KEPT}


def fingerprint(request: Mapping[str, Any]) -> str:
    """The same for the same request, whatever the order of its names."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


async def check_same(store: Store, request: Mapping[str, Any], job_id: str) -> None:
    """Conflict if the job that holds the key was made by another request; nothing if its records are gone."""
    connection = await store.connection()

    def made_by() -> str | None:
        with connection.reading() as finder:
            run, _ = finder.run_of(job_id)
        return dict(run.headers).get(BODY_HEADER)

    try:
        made = await store.call(made_by)
    except NotFound:
        return
    if made != request["headers"][BODY_HEADER]:  # None: made with this key, and without the header
        raise Conflict("Idempotency-Key: it was used for another request in the last 24 hours")


# -- changing one --------------------------------------------------------------------------------------------


class Changed(NamedTuple):
    change: JobChange
    positions: tuple[Position, ...]


async def change(
    store: Store, questions: Questions, verb: str, job_id: str, wait: str, **options: Any
) -> Changed:
    """`verb` cancel | reschedule | update | requeue. Raises InvalidInput naming the option; StoreUnreachable."""
    commands.check_id(job_id)
    connection = await store.connection()
    home = connection.layout.home(job_id)
    try:
        sent = await store.call(commands.ask, connection, verb, job_id, wait, **options)
        event = await commands.answer_of_async(connection, sent)
    except NotFound:
        return Changed(JobChange(id=job_id, outcome=commands.NOT_FOUND), ())
    except StoreUnreachable as error:
        store.suspect(error)
        raise
    made = commands.meaning_of(job_id, event)
    if made.outcome == commands.UNKNOWN:
        return Changed(made, ())
    end = await store.end_of(connection.parts.names.jobs, home)
    stopping = event is not None and event.reason == "stopping"
    if made.outcome == commands.NOT_FOUND or (made.outcome == commands.TOO_LATE and stopping):
        made = await _looked_up(store, questions, connection, made, end, event)
    return Changed(made, () if end is None else (end,))


async def _looked_up(
    store: Store,
    questions: Questions,
    connection: Connection,
    made: JobChange,
    end: Position | None,
    event: Any,
) -> JobChange:
    """What became of a job that its owner has forgotten: by the read model once it has heard of all that the owner had,
    else by the log."""
    if end is not None and await store.read(questions.wait_for, end, NEED_LOOK_MS):
        outcome = await store.read(commands.look, questions, made.id)
        return JobChange(id=made.id, outcome=outcome, due_at=made.due_at, run=made.run)
    return await store.call(commands.meaning, connection, made.id, event)


async def stop(store: Store, job_id: str, wait: str) -> Changed:
    """Cancel it if it has not fired, else have its run ended."""
    commands.check_id(job_id)
    connection = await store.connection()
    made = await waiting.wait_for_async(waiting.stop(connection, job_id, wait))
    end = await store.end_of(connection.parts.names.jobs, connection.layout.home(job_id))
    return Changed(made, () if end is None else (end,))


def view_of(made: JobChange, *more: str) -> View:
    """As `dueline job cancel` and its like answer."""
    view: View = {"id": made.id, "outcome": made.outcome}
    for name in more:
        view[name] = getattr(made, name)
    if view.get("due_at") is not None:
        view["due_at"] = written_instant(view["due_at"])
    return view


# -- changing many -------------------------------------------------------------------------------------------


class Tally:
    """What became of many, with the first that went wrong."""

    ERRORS = 20

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[View] = []

    def add(self, outcome: str, id_: str, problem: str = "") -> None:
        self.counts[outcome] += 1
        if problem and len(self.errors) < self.ERRORS:
            self.errors.append({"id": id_, "message": problem})


def change_all(
    connection: Connection, verb: str, ids: Sequence[str], wait: str, options: Mapping[str, Any]
) -> Tally:
    """The same change of each of these, many under way at once. StoreUnreachable; what is wrong with one job is told
    and counted as `refused`."""
    tally = Tally()
    under_way: deque[tuple[str, Sent]] = deque()
    for id_ in ids:
        try:
            under_way.append((id_, commands.ask(connection, verb, id_, wait, **options)))
        except (InvalidInput, NotFound) as error:
            tally.add(commands.NOT_FOUND if isinstance(error, NotFound) else "refused", id_, str(error))
        if len(under_way) >= UNDER_WAY:
            _settle(connection, tally, *under_way.popleft())
    while under_way:
        _settle(connection, tally, *under_way.popleft())
    return tally


def _settle(connection: Connection, tally: Tally, id_: str, sent: Sent) -> None:
    try:
        tally.add(commands.meaning_of(id_, commands.answer_of(connection, sent)).outcome, id_)
    except (InvalidInput, Refused) as error:
        tally.add("refused", id_, str(error))


def one_each(ids: Iterable[str]) -> list[str]:
    """In their order, each once. InvalidInput('ids') for what is no id."""

    def checked() -> Iterator[str]:
        for number, id_ in enumerate(ids):
            try:
                commands.check_id(id_)
            except InvalidInput as error:
                raise InvalidInput(f"ids[{number}]", error.problem) from None
            yield id_

    return list(dict.fromkeys(checked()))
