"""Changes that mend what went wrong: dead letters, replays, and queues that are held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.times import parse_instant
from pipeline.follower import WantedLetters
from pipeline.server.access import Principal, Role
from pipeline.server.acting import WAIT, Acting, Done, asking
from pipeline.server.letter_changes import requeue_letters
from pipeline.server.queue_changes import QueueChanges
from pipeline.server.replay_changes import Replayer, Wish, naming, outcomes_of
from pipeline.survey import Filter

REPLAY_LIMIT = 1_000
SURVEY_S = 60.0
"""How long a window may take to be looked through."""


class FailureActions(Acting):
    """Views are those of `dueline dead …`, `replay …`, `queue …` (schemas/cli/)."""

    replayer: Replayer
    queues: QueueChanges

    async def requeue_letters(
        self,
        who: Principal,
        *,
        ids: Sequence[str] | None = None,
        handler: str | None = None,
        reason: str | None = None,
        everything: bool = False,
        payload: dict[str, Any] | None = None,
        dry_run: bool = False,
        wait: str = WAIT,
    ) -> Done:
        """View as schemas/cli/dead_requeue.json, with errors [{id, message}]. Safe to repeat: no letter is requeued
        twice."""
        who.require(Role.OPERATOR)
        by_filter = handler is not None or reason is not None
        if [ids is not None, by_filter, everything].count(True) != 1:
            raise InvalidInput("ids", "give ids, or handler and reason, or everything")
        connection = await self.store.connection()
        wanted = WantedLetters(ids=None if ids is None else frozenset(ids), handler=handler, reason=reason)
        try:
            with asking(who):
                view = await self.store.slowly(
                    requeue_letters, connection, who, wanted, payload=payload, wait=wait, dry_run=dry_run
                )
        except (StoreUnreachable, asyncio.CancelledError):  # some are requeued, or will be
            if not dry_run:
                await self.audit(who, "dead.requeue", "broken_off")
            raise
        if not dry_run:
            await self.audit(who, "dead.requeue", "done", matched=view["matched"], requeued=view["requeued"])
        return Done(view)

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
        view = await self._within(self.replayer.start, wish)
        if view["id"] is not None:
            await self.audit(who, "replay.start", "started", replay=view["id"], matched=view["matched"])
        return Done(view)

    async def resume_replay(
        self, who: Principal, replay_id: str, *, rate: float | None = None, force: bool = False
    ) -> Done:
        """View as of `start_replay`. Raises NotFound, Refused."""
        await self._may_change_replay(who, replay_id)
        view = await self._within(self.replayer.resume, replay_id, rate, force)
        await self.audit(who, "replay.resume", "started", replay=replay_id)
        return Done(view)

    async def cancel_replay(self, who: Principal, replay_id: str) -> Done:
        """Outcome: cancelled | cancelling. Raises NotFound, Refused."""
        await self._may_change_replay(who, replay_id)
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

    async def _within(self, function: Any, *args: Any) -> Any:
        await self.store.connection()  # what is away is told at once
        try:
            return await asyncio.wait_for(self.store.slowly(function, *args), SURVEY_S)
        except TimeoutError:
            raise StoreUnreachable(
                f"the window was not looked through within {SURVEY_S:.0f} s: narrow it, or use `dueline replay`"
            ) from None

    # -- queues ------------------------------------------------------------------------------------------------

    async def pause_queue(self, who: Principal, queue: str, *, note: str = "") -> Done:
        """View as schemas/cli/queue_pause.json. NotFound."""
        who.require(Role.OPERATOR)
        who.require_queue(queue)
        connection = await self.store.connection()
        view = await self.store.slowly(self.queues.pause, connection, queue, who.name, note)
        await self.audit(who, "queue.pause", "paused", queue=queue, note=note)
        return Done(view)

    async def resume_queue(self, who: Principal, queue: str) -> Done:
        """View as schemas/cli/queue_resume.json. NotFound."""
        who.require(Role.OPERATOR)
        who.require_queue(queue)
        connection = await self.store.connection()
        view = await self.store.slowly(self.queues.resume, connection, queue, who.name)
        await self.audit(who, "queue.resume", "running", queue=queue)
        return Done(view)

    async def purge_queue(
        self, who: Principal, queue: str, *, before: str | None = None, dry_run: bool = False
    ) -> Done:
        """What waits ends as cancelled. View: queue, outcome (purging | nothing | counted), id, before, waiting.
        NotFound."""
        who.require(Role.ADMIN)
        who.require_queue(queue)
        connection = await self.store.connection()
        view = await self._within(
            lambda: self.queues.purge(connection, queue, who.name, before=before, dry_run=dry_run)
        )
        if not dry_run:
            await self.audit(who, "queue.purge", view["outcome"], queue=queue, waiting=view["waiting"])
        return Done(view)
