"""Changes of jobs, asked of their owners; no role is checked here (`actions`)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.client import commands, waiting
from pipeline.client.commands import JobChange, Sent
from pipeline.client.connection import Connection
from pipeline.client.request import pairs_of, wait_ms
from pipeline.core.errors import (
    InvalidInput,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnreachable,
)
from pipeline.core.job import Run
from pipeline.core.jobref import JobRef
from pipeline.core.keys import job_key
from pipeline.core.times import written_instant
from pipeline.ports import Put
from pipeline.readmodel.questions import Position, Questions
from pipeline.server import once
from pipeline.server.allowed import Allowed
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


# -- creating ------------------------------------------------------------------------------------------------


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
    headers = {**pairs_of("headers", request.get("headers")), BODY_HEADER: fingerprint(request)}
    return {**request, "headers": headers, "key": f"http/{scope}/{once.checked(given)}", "unique": KEPT}


def fingerprint(request: Mapping[str, Any]) -> str:
    """The same for the same request, whatever the order of its names; null is as good as not given."""
    given = {name: value for name, value in request.items() if value is not None}
    text = json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
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
        raise once.Conflict("Idempotency-Key: it was used for another request in the last 24 hours")


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
    if commands.says_too_little(made, event):
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
    made = await waiting.wait_for_async(waiting.stop(connection, job_id, wait), store.call)
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
    """What became of many, with the first that went wrong, and those that nobody was asked for any more. `forgotten`:
    those of which the owners' answers say too little, still to be looked up."""

    ERRORS = 20

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.errors: list[View] = []
        self.left: list[str] = []
        self.forgotten: list[str] = []

    def __str__(self) -> str:
        return ", ".join(
            [*(f"{n} {outcome}" for outcome, n in self.counts.items()), f"{len(self.left)} left"]
        )

    def settle(self, found: Mapping[str, str]) -> None:
        """What became of the forgotten, as far as it was found."""
        forgotten, self.forgotten = self.forgotten, []
        for id_ in forgotten:
            self.add(found.get(id_, commands.UNKNOWN), id_)

    def add(self, outcome: str, id_: str, problem: str = "") -> None:
        self.counts[outcome] += 1
        if problem and len(self.errors) < self.ERRORS:
            self.errors.append({"id": id_, "message": problem})


Asks = Iterable[tuple[str, Callable[[str], Sent]]]
"""Jobs, each with what asks for its change, given how long its answer is waited for. InvalidInput, NotFound."""


def asks(connection: Connection, verb: str, ids: Iterable[str], options: Mapping[str, Any]) -> Asks:
    """The same change of each."""
    for id_ in ids:
        yield id_, partial(commands.ask, connection, verb, id_, **options)


def requeues(connection: Connection, questions: Questions, ids: Sequence[str]) -> Asks:
    """Each once more, as the read model knows it, which has heard of all there is: the log is not looked through for
    each."""
    unknown = set(ids)
    for made in questions.runs_of(ids):
        unknown.discard(made.id)
        if made.run is None:  # the log may have it; of an instant that is to come its schedule says more
            yield made.id, partial(commands.ask, connection, "requeue", made.id)
        else:
            yield made.id, partial(_requeue, connection, made.run, made.highest)
    yield from ((id_, _not_there) for id_ in ids if id_ in unknown)


def _requeue(connection: Connection, run: Run, highest: int, wait: str) -> Sent:
    return commands.send(connection, commands.requeue_of(connection, run, highest or None), wait_ms(wait))


def _not_there(_wait: str) -> Sent:
    raise NotFound("nothing is stored under this id")


def change_all(
    connection: Connection, each: Asks, ids: Sequence[str], wait: str, allowed: Allowed, tally: Tally
) -> None:
    """A change of each of these, many under way at once, as long as it is allowed. StoreUnreachable; what is
    wrong with one job is told and counted as `refused`. `tally` is filled meanwhile, so it is right however this ends,
    once `look_up` has found what its `forgotten` came to.
    """
    under_way: deque[tuple[str, Sent]] = deque()
    asked: set[str] = set()
    try:
        for id_, ask in each:
            if allowed.over:
                break
            asked.add(id_)
            try:
                under_way.append((id_, ask(within_ms(wait, allowed))))
            except (InvalidInput, NotFound) as error:
                tally.add(commands.NOT_FOUND if isinstance(error, NotFound) else "refused", id_, str(error))
            if len(under_way) >= UNDER_WAY:
                _settle(connection, tally, under_way)
        while under_way:
            _settle(connection, tally, under_way)
    finally:
        for id_, _ in under_way:
            tally.add(commands.UNKNOWN, id_)
        tally.left = [id_ for id_ in ids if id_ not in asked]


def within_ms(wait: str, allowed: Allowed) -> str:
    """How long an answer is waited for. InvalidInput('wait')."""
    return f"{min(wait_ms(wait), allowed.left_ms)}ms"


def _settle(connection: Connection, tally: Tally, under_way: deque[tuple[str, Sent]]) -> None:
    """The first of them. StoreUnreachable: it is still under way."""
    id_, sent = under_way[0]
    try:
        event = commands.answer_of(connection, sent)
        made = commands.meaning_of(id_, event)
        if commands.says_too_little(made, event):
            tally.forgotten.append(id_)
        else:
            tally.add(made.outcome, id_)
    except (InvalidInput, NotAllowed, Refused) as error:
        tally.add("refused", id_, str(error))
    under_way.popleft()


async def look_up(
    store: Store, questions: Questions, connection: Connection, tally: Tally, allowed: Allowed
) -> None:
    """Count what became of those that their owners have forgotten, as of a single one; as `unknown` those that nobody
    looked at within the time. StoreUnreachable, Busy."""
    known, found = await heard_of(store, questions, connection, tally.forgotten), dict[str, str]()
    await store.slowly(_look_at, questions, known, allowed, found)
    rest = [id_ for id_ in tally.forgotten if id_ not in found]
    if rest and not allowed.over:
        await store.slowly(_look_in_log, connection, rest, allowed, found)
    tally.settle(found)


async def heard_of(
    store: Store, questions: Questions, connection: Connection, ids: Iterable[str]
) -> list[str]:
    """Those of them of which the read model has heard all that their home partition has by now; after the first that it
    does not hear of in time no other is waited for."""
    homes: dict[int, list[str]] = {}
    for id_ in ids:
        homes.setdefault(connection.layout.home(id_), []).append(id_)
    known, told = list[str](), True
    for home, of_home in homes.items():
        end = await store.end_of(connection.parts.names.jobs, home) if told else None
        told = end is not None and await store.read(questions.wait_for, end, NEED_LOOK_MS)
        known += of_home if told else ()
    return known


def _look_at(shows: commands.ShowsJobs, ids: Iterable[str], allowed: Allowed, found: dict[str, str]) -> None:
    for id_ in ids:
        if allowed.over:
            return
        found[id_] = commands.look(shows, id_)


def _look_in_log(connection: Connection, ids: Iterable[str], allowed: Allowed, found: dict[str, str]) -> None:
    with connection.reading() as finder:
        _look_at(finder, ids, allowed, found)


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
