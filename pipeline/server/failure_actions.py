"""Changes that mend what went wrong: dead letters, replays, and queues that are held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.client.connection import Connection
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.times import parse_instant
from pipeline.follower import WantedLetters
from pipeline.readmodel.questions import Position
from pipeline.replay import Replay
from pipeline.server import letter_changes
from pipeline.server.access import Principal, Role
from pipeline.server.acting import WAIT, Acting, Done, View
from pipeline.server.allowed import Allowed
from pipeline.server.job_actions import BULK_S
from pipeline.server.job_changes import Tally
from pipeline.server.queue_changes import QueueChanges
from pipeline.server.replay_changes import Begun, Replayer, Wish, naming, outcomes_of
from pipeline.survey import Filter

REPLAY_LIMIT = 1_000
SURVEY_S = 50.0
"""How long a window may take to be looked through."""
T = TypeVar("T")


class FailureActions(Acting):
    """Views are those of `dueline dead …`, `replay …`, `queue …` (schemas/cli/)."""

    replayer: Replayer
    queues: QueueChanges

    async def requeue_letters(
        self,
        who: Principal,
        wanted: WantedLetters,
        *,
        everything: bool = False,
        payload: dict[str, Any] | None = None,
        dry_run: bool = False,
        wait: str = WAIT,
        idempotency_key: str | None = None,
    ) -> Done:
        """`everything`: nothing else is wanted of them. View as schemas/cli/dead_requeue.json, with errors [{id,
        message}], and left: how many nobody was asked for within BULK_S. Safe to repeat: no letter is requeued
        twice."""
        who.require(Role.OPERATOR)
        by_choice = replace(wanted, ids=None) != WantedLetters()
        if [wanted.ids is not None, by_choice, everything].count(True) != 1:
            raise InvalidInput(
                "ids", "give ids, or what they have in common, as handler and reason, or everything"
            )
        if wanted.queue is not None:
            who.require_queue(wanted.queue)
        connection = await self.store.connection()
        theirs = replace(wanted, queues=who.queues)
        found, tally = await self.store.slowly(letter_changes.find_letters, connection, theirs), Tally()
        if not dry_run:
            with Allowed(BULK_S) as allowed:
                requeuing = self.store.slowly(
                    letter_changes.requeue_letters,
                    *(connection, found.letters),
                    payload=payload,
                    wait=wait,
                    allowed=allowed,
                    tally=tally,
                )
                repeated = idempotency_key and f"{idempotency_key}\0{json.dumps(payload, sort_keys=True)}"
                await self.many(requeuing, who, "dead.requeue", len(found.letters), tally, key=repeated)
        return Done(letter_changes.view_of(found, tally, dry_run=dry_run))

    async def start_replay(
        self,
        who: Principal,
        *,
        from_: str,
        to: str | None = None,
        only: str = "failed",
        handler: str | None = None,
        schedule: str | None = None,
        queue: str | None = None,
        labels: Mapping[str, str] | None = None,
        key_prefix: str | None = None,
        rate: float | None = None,
        limit: int = REPLAY_LIMIT,
        force: bool = False,
        beside: bool = False,
        dry_run: bool = False,
    ) -> Done:
        """Surveys the window, then carries the replay out in this server's background. View: id (None if nothing
        matches, or of a dry run), matched, waiting, outcomes, handlers, estimated_seconds, gone_until."""
        who.require(Role.OPERATOR)
        if who.queues is not None and queue is None:
            raise InvalidInput("queue", f"{who.name} is limited to some queues: name one")
        who.require_queue(queue)
        with naming():
            wanted = Filter(
                handler=handler,
                schedule=schedule,
                queue=queue,
                labels=labels or {},
                key_prefix=key_prefix,
                outcomes=outcomes_of(only, force=force),
            )
        wish = Wish(
            from_ms=parse_instant("from", from_),
            to_ms=None if to is None else parse_instant("to", to),
            wanted=wanted,
            requested_by=who.name,
            rate=rate,
            beside=beside,
            limit=limit,
            dry_run=dry_run,
        )
        if dry_run:
            return Done(await self._within(self.replayer.count, wish))
        begun = self._begun(who, "replay.start")
        return Done(await self._under_way(lambda allowed: self.replayer.start(wish, allowed, begun)))

    async def resume_replay(
        self, who: Principal, replay_id: str, *, rate: float | None = None, force: bool = False
    ) -> Done:
        """View as of `start_replay`. Raises NotFound, Refused."""
        await self._may_change_replay(who, replay_id)
        begun = self._begun(who, "replay.resume")
        resume = self.replayer.resume
        return Done(
            await self._under_way(
                lambda allowed: resume(replay_id, rate, force, allowed=allowed, begun=begun)
            )
        )

    async def cancel_replay(self, who: Principal, replay_id: str) -> Done:
        """Outcome: cancelled | cancelling. Raises NotFound, Refused."""
        await self._may_change_replay(who, replay_id)
        async with self.asked(who, "replay.cancel", replay=replay_id):
            outcome = await self._within(self.replayer.cancel, replay_id, f"cancelled by {who.name}")
        await self.audit(who, "replay.cancel", outcome, replay=replay_id)
        return Done({"id": replay_id, "outcome": outcome})

    async def _may_change_replay(self, who: Principal, replay_id: str) -> None:
        who.require(Role.OPERATOR)
        if who.queues is not None:
            queue = (await self.store.read(self.questions.replay, replay_id))["queue"]
            if queue is None:
                who.require_all_queues()
            who.require_queue(queue)

    def _begun(self, who: Principal, verb: str) -> Begun:
        """Audits a replay on its own thread, before anything of it runs: whoever asked may have given up by then."""

        def note(connection: Connection, mine: Replay) -> None:
            self.audit_aside(connection, who, verb, "started", replay=mine.id, matched=mine.matched)

        return note

    async def _under_way(self, begin: Callable[[Allowed], Future[View]]) -> View:
        await self.store.connection()  # what is away is told at once
        with Allowed(SURVEY_S) as allowed:
            return await _in_time(asyncio.wrap_future(begin(allowed)))

    async def _within(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """`function` takes `allowed`, and looks at it before it changes anything."""
        await self.store.connection()
        with Allowed(SURVEY_S) as allowed:
            return await _in_time(self.store.slowly(function, *args, allowed=allowed, **options))

    # -- queues ------------------------------------------------------------------------------------------------

    async def pause_queue(self, who: Principal, queue: str, *, note: str = "") -> Done:
        """View as schemas/cli/queue_pause.json. NotFound."""
        who.require(Role.OPERATOR)
        who.require_queue(queue)
        connection = await self.store.connection()
        async with self.asked(who, "queue.pause", queue=queue, note=note):
            view = await self.store.slowly(self.queues.pause, connection, queue, who.name, note)
        await self.audit(who, "queue.pause", "paused", queue=queue, note=note)
        return Done(view, await self._written_on_meta(connection))

    async def resume_queue(self, who: Principal, queue: str) -> Done:
        """View as schemas/cli/queue_resume.json. NotFound."""
        who.require(Role.OPERATOR)
        who.require_queue(queue)
        connection = await self.store.connection()
        async with self.asked(who, "queue.resume", queue=queue):
            view = await self.store.slowly(self.queues.resume, connection, queue, who.name)
        await self.audit(who, "queue.resume", "running", queue=queue)
        return Done(view, await self._written_on_meta(connection))

    async def purge_queue(
        self,
        who: Principal,
        queue: str,
        *,
        before: str | None = None,
        dry_run: bool = False,
        counted: View | None = None,
    ) -> Done:
        """What waits ends as cancelled; of what a dry run has `counted` no more than that. View: queue, outcome
        (purging | nothing | counted), id, before, waiting, and of a dry run ends. NotFound; Refused."""
        who.require(Role.ADMIN)
        who.require_queue(queue)
        connection = await self.store.connection()
        how = {"before": before, "dry_run": dry_run, "counted": counted}
        if dry_run:
            return Done(await self._within(self.queues.purge, connection, queue, who.name, **how))
        async with self.asked(who, "queue.purge", queue=queue):
            view = await self._within(self.queues.purge, connection, queue, who.name, **how)
        await self.audit(who, "queue.purge", view["outcome"], queue=queue, waiting=view["waiting"])
        return Done(view, await self._written_on_meta(connection))

    async def _written_on_meta(self, connection: Connection) -> tuple[Position, ...]:
        """What is said of queues stands there, readable before it is told."""
        end = await self.store.end_of(connection.parts.names.meta, 0)
        return () if end is None else (end,)


async def _in_time(looking: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(SURVEY_S):
            return await looking
    except TimeoutError:
        raise StoreUnreachable(
            f"it was not looked through within {SURVEY_S:.0f} s: narrow it, or use the command line"
        ) from None
