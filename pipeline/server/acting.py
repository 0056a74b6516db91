"""What every action stands on: the store, the read model, and the audit of what was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from pipeline.client.commands import UNKNOWN
from pipeline.client.connection import Connection, Delivery
from pipeline.client.request import allowed_queues, repeatable, requested_by
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.ports import Events, Put
from pipeline.readmodel.questions import Position, Questions
from pipeline.server.access import Principal
from pipeline.server.audit import audit_put
from pipeline.server.job_changes import Tally
from pipeline.server.problems import Behind
from pipeline.server.store import Store

View = dict[str, Any]

NOTHING: Mapping[str, object] = {}
WAIT = "5s"
"""How long an owner's answer is waited for by default."""


UNREADY_MS = 60_000
"""A read model that is further behind does not know all there is: twice as far as giving way may put it."""


class Done(NamedTuple):
    """What became of a change: `view["outcome"]` (of a creation: `status`), from where on in the log it can be read
    (`Questions.wait_for`), and the tag of the schedule as it left it, if that is told."""

    view: View
    positions: tuple[Position, ...] = ()
    etag: str | None = None


class Acting:
    """One of a server; any coroutine of its event loop. `wait`: how long an owner's answer is waited for; with none
    the outcome is `unknown` (of a creation `accepted`): it is stored and will be done.

    `idempotency_key`: a request that comes again with the same one is not done again, whichever server it comes to.
    """

    def __init__(self, store: Store, questions: Questions, *, default_queue: str, events: Events) -> None:
        self.store = store
        self.questions = questions
        self.default_queue = default_queue
        self.events = events

    async def audit(
        self, who: Principal, verb: str, outcome: str, *, job_id: str | None = None, **about: object
    ) -> None:
        """Durable before the change is told. What could not be noted stands in the log: the change is made."""
        try:
            connection = await self.store.connection()
            await self.store.append((self.noted(connection, who, verb, outcome, job_id=job_id, about=about),))
        except DuelineError as error:
            self._lost(error, who, verb, outcome, job_id, about)

    def audit_aside(
        self, connection: Connection, who: Principal, verb: str, outcome: str, **about: object
    ) -> None:
        """The same, from a thread that has a connection of its own."""
        try:
            delivery = Delivery(expected=1)
            put = self.noted(connection, who, verb, outcome, about=about)
            connection.parts.appender.append(put, delivery.report)
            connection.wait(delivery)
        except DuelineError as error:
            self._lost(error, who, verb, outcome, None, about)

    @asynccontextmanager
    async def asked(
        self, who: Principal, verb: str, *, job_id: str | None = None, **about: object
    ) -> AsyncIterator[None]:
        """What is asked for inside, and given up without having heard what became of it, is audited as `unknown`. What
        is not even asked for, since the store is known to be away, is not. StoreUnreachable."""
        await self.store.connection()
        try:
            yield
        except (StoreUnreachable, asyncio.CancelledError):
            self.leave_unknown(who, verb, job_id=job_id, about=about)
            raise

    async def many(
        self,
        changing: Awaitable[None],
        who: Principal,
        verb: str,
        count: int,
        tally: Tally,
        *,
        key: str | None = None,
    ) -> None:
        """Await the change of many, which fills `tally`. They are audited before it begins, since a server that is
        killed says no more, and however it ends: some are changed, or will be. StoreUnreachable saying what became of
        how many."""
        if count:
            await self.audit(who, verb, "begun", count=count)
        try:
            with asking(who, key):
                await changing
        except (StoreUnreachable, asyncio.CancelledError) as error:
            about = {"count": count, "counts": dict(tally.counts)}
            self.leave_unknown(who, verb, outcome="broken_off", about=about)
            if isinstance(error, StoreUnreachable):
                raise StoreUnreachable(f"{error}; of {count}: {tally}") from error
            raise
        outcome = "in_part" if tally.left else "done"
        left = len(tally.left) or None
        await self.audit(who, verb, outcome, count=count, counts=dict(tally.counts), left=left)

    def leave_unknown(
        self,
        who: Principal,
        verb: str,
        *,
        job_id: str | None = None,
        outcome: str = UNKNOWN,
        about: Mapping[str, object] = NOTHING,
    ) -> None:
        """Audit what may be done, or not. It goes the way that the change went: if that comes through once the store is
        back, so does this. Nobody waits for it."""

        def heard(error: Exception | None, _offset: int = -1, _log_append_time: int = -1) -> None:
            if error is not None:
                self._lost(error, who, verb, outcome, job_id, about)

        connection = self.store.connected
        if connection is None:
            heard(StoreUnreachable("no store is connected"))
            return
        try:
            put = self.noted(connection, who, verb, outcome, job_id=job_id, about=about)
            connection.parts.appender.append(put, heard)
        except DuelineError as error:
            heard(error)

    def noted(
        self,
        connection: Connection,
        who: Principal,
        verb: str,
        outcome: str,
        *,
        job_id: str | None = None,
        about: Mapping[str, object] = NOTHING,
    ) -> Put:
        """The record of an audit."""
        return audit_put(
            who,
            verb,
            topic=connection.parts.names.events,
            layout=connection.layout,
            at=connection.clock.now(),
            outcome=outcome,
            job_id=job_id,
            about=about,
        )

    def _lost(
        self,
        error: Exception,
        who: Principal,
        verb: str,
        outcome: str,
        job_id: str | None,
        about: Mapping[str, object],
    ) -> None:
        self.events.on(
            "audit_lost", who=who.name, verb=verb, outcome=outcome, id=job_id, reason=str(error), **about
        )


def require_following(questions: Questions, what: str) -> None:
    """Behind, unless the read model follows the log; `what` it does not know else."""
    freshness = questions.freshness()
    if freshness.ready and freshness.problem is None and freshness.age_ms <= UNREADY_MS:
        return
    why = freshness.problem or ("it is behind" if freshness.ready else "it has not caught up")
    raise Behind(f"this server does not know {what}: {why}; ask again")


@contextmanager
def asking(who: Principal, key: str | None = None, *what: str) -> Iterator[None]:
    """Inside, owners are told who asks, and to which queues they are limited; commands with an Idempotency-Key have ids
    that follow from it, from `what` and from what each is about, so that their owners answer them again instead of
    doing them again."""
    by, queues = requested_by.set(who.name), allowed_queues.set(who.queues)
    repeated = repeatable.set(None if key is None else "\0".join((who.identity, key, *what)))
    try:
        yield
    finally:
        repeatable.reset(repeated)
        allowed_queues.reset(queues)
        requested_by.reset(by)
