"""What every action stands on: the store, the read model, and the audit of what was done."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pipeline.client.request import command_id, requested_by
from pipeline.core.errors import DuelineError
from pipeline.ports import Events
from pipeline.readmodel.questions import Position, Questions
from pipeline.server.access import Principal
from pipeline.server.audit import audit_put
from pipeline.server.store import Store

View = dict[str, Any]

WAIT = "5s"
"""How long an owner's answer is waited for by default."""


class Done(NamedTuple):
    """What became of a change: `view["outcome"]` (of a creation: `status`), and from where on in the log it can be
    read (`Questions.wait_for`)."""

    view: View
    positions: tuple[Position, ...] = ()


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
            put = audit_put(
                who,
                verb,
                topic=connection.parts.names.events,
                layout=connection.layout,
                at=connection.clock.now(),
                outcome=outcome,
                job_id=job_id,
                about=about,
            )
            await self.store.append((put,))
        except DuelineError as error:
            self.events.on(
                "audit_lost", who=who.name, verb=verb, outcome=outcome, id=job_id, reason=str(error), **about
            )


@contextmanager
def asking(who: Principal, key: str | None = None, *what: str) -> Iterator[None]:
    """Inside, owners are told who asks; a command with an Idempotency-Key has an id that follows from it, so that its
    owner answers it again instead of doing it again."""
    by = requested_by.set(who.name)
    command = command_id.set(None if key is None else _derived(who.name, key, *what))
    try:
        yield
    finally:
        command_id.reset(command)
        requested_by.reset(by)


def _derived(*facts: str) -> str:
    digest = hashlib.sha256("\0".join(facts).encode("utf-8", "replace")).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
