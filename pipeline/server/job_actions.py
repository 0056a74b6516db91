"""Changes of jobs that a page or an endpoint can make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.client.commands import JobChange
from pipeline.client.connection import Connection
from pipeline.client.request import text_of
from pipeline.client.schedules import ACCEPTED
from pipeline.core.errors import InvalidInput, NotAllowed, NotFound, Refused, StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.core.job import JobStatus
from pipeline.core.names import check_name
from pipeline.core.sight import OVER
from pipeline.core.times import written_instant
from pipeline.readmodel.questions import LIST_LIMIT, JobsWanted, Questions
from pipeline.server import job_changes
from pipeline.server.access import Principal, Role
from pipeline.server.acting import WAIT, Acting, Done, View, asking, require_following
from pipeline.server.allowed import Allowed
from pipeline.server.bulk import Intake, Pipe
from pipeline.server.job_changes import Creating, Tally
from pipeline.server.problems import TooSlow
from pipeline.server.threads import Busy

BULK_LIMIT = 10_000
"""Jobs of one bulk change at most."""
BULK_VERBS = ("cancel", "reschedule", "requeue")
POSITIONS = 64
"""Partitions up to which a change of many jobs tells where they stand."""
BULK_S = 50.0
"""How long a bulk change may take, less than a usual proxy waits (60 s); what is left then is to be asked for again."""
STOPS = 8
"""Runs that one request stops at the same time."""


class JobActions(Acting):
    """Views are those of `dueline job …` (schemas/cli/)."""

    _creating: Creating | None = None

    async def create_job(
        self,
        who: Principal,
        request: Mapping[str, Any],
        *,
        wait: str = WAIT,
        idempotency_key: str | None = None,
    ) -> Done:
        """`request` as of `Dueline.schedule`, with `handler`, `payload`. View: id, status, due_at."""
        who.require(Role.OPERATOR)
        connection = await self.store.connection()
        queue = request.get("queue") or self.default_queue
        if isinstance(queue, str):
            who.require_queue(queue)
            if queue not in connection.layout.queues:
                await self.store.call(connection.require_queue, check_name("queue", queue))
        if idempotency_key is not None:
            request = job_changes.with_idempotency(request, who.identity, idempotency_key)
        if request.get("key") is not None:
            return await self._create_keyed(who, {**request, "wait": wait}, idempotency_key is not None)
        if self._creating is None or self._creating.connection is not connection:
            self._creating = Creating(connection)
        ref, put = self._creating.record(request)
        audit = self.noted(connection, who, "job.create", ref.status, job_id=ref.id)
        try:
            place, _ = await self.store.append((put, audit))
        except (StoreUnreachable, asyncio.CancelledError):
            self.leave_unknown(who, "job.create", job_id=ref.id)
            raise
        view = {"id": ref.id, "status": ref.status, "due_at": written_instant(ref.due_at)}
        return Done(view, (place,))

    async def _create_keyed(self, who: Principal, request: Mapping[str, Any], repeatable: bool) -> Done:
        key = text_of("key", request["key"]) or ""
        async with self.asked(who, "job.create", job_id=keyed_id(key), key=key):
            with asking(who):
                ref = await job_changes.create_keyed(self.store, request)
        if repeatable and ref.status == "existing":
            await job_changes.check_same(self.store, request, ref.id)
        view = {"id": ref.id, "status": ref.status, "due_at": written_instant(ref.due_at)}
        connection = await self.store.connection()
        end = None
        if ref.status != ACCEPTED:
            end = await self.store.end_of(connection.parts.names.jobs, connection.layout.home(ref.id))
        await self.audit(who, "job.create", ref.status, job_id=ref.id, key=key)
        return Done(view, () if end is None else (end,))

    async def create_jobs(self, who: Principal, body: AsyncIterator[bytes], *, refs: bool = False) -> Done:
        """NDJSON in pieces. View: accepted, rejected, errors [{line, field, message}] (the first 100); with `refs` also
        refs [{id, status, due_at}] of those accepted, in order."""
        who.require(Role.OPERATOR)
        connection = await self.store.connection()
        pipe = Pipe(asyncio.get_running_loop())
        admit_key = partial(require_holder, self.questions, who)
        pieces = pipe.take(self.store.streams_wait)
        intake = Intake(connection, who, self.default_queue, pieces, admit_key, refs=refs)
        with asking(who):
            filling = asyncio.ensure_future(pipe.fill(body))
            try:
                ended = False
                while not ended:
                    await pipe.come()
                    ended = await self.store.streaming(intake.run, self.questions.give_way)
            except BaseException as error:
                pipe.close()
                taken = {"accepted": intake.accepted, "rejected": intake.rejected}
                self.leave_unknown(who, "jobs.create", outcome="broken_off", about=taken)
                if filling.done() and not filling.cancelled() and filling.exception() is not None:
                    await filling  # what broke the body off says more than that it broke off
                confirmed = f"{intake.accepted} jobs were confirmed before"
                if isinstance(error, asyncio.CancelledError):
                    raise asyncio.CancelledError(confirmed) from error
                if isinstance(error, Busy):
                    raise Busy(f"{error}; {confirmed}") from error
                raise
            finally:
                filling.cancel()
        await self.audit(who, "jobs.create", "accepted", accepted=intake.accepted, rejected=intake.rejected)
        homes = range(connection.layout.partitions)
        names = connection.parts.names
        ends = [await self.store.end_of(names.jobs, n) for n in homes] if len(homes) <= POSITIONS else []
        return Done(intake.view(), tuple(end for end in ends if end is not None))

    async def cancel(self, who: Principal, job_id: str, *, stop: bool = False, wait: str = WAIT) -> Done:
        """Outcome: cancelled | stopped | stopping | too_late | not_found | unknown."""
        await self._may_change(who, job_id)
        if not stop:
            return await self._change(who, "cancel", job_id, wait)
        async with self.asked(who, "job.stop", job_id=job_id):
            with asking(who):
                made = await job_changes.stop(self.store, job_id, wait)
        return await self._changed(who, "job.stop", made)

    async def reschedule(
        self, who: Principal, job_id: str, *, at: str | None = None, in_: str | None = None, wait: str = WAIT
    ) -> Done:
        """Outcome: rescheduled | too_late | cancelled | stopped | not_found | unknown."""
        await self._may_change(who, job_id)
        return await self._change(who, "reschedule", job_id, wait, "due_at", at=at, in_=in_)

    async def update_payload(
        self, who: Principal, job_id: str, payload: dict[str, Any], *, wait: str = WAIT
    ) -> Done:
        """Outcome: updated, else as of `reschedule`."""
        await self._may_change(who, job_id)
        return await self._change(who, "update", job_id, wait, payload=payload)

    async def requeue(
        self, who: Principal, job_id: str, *, wait: str = WAIT, idempotency_key: str | None = None
    ) -> Done:
        """Outcome: requeued | brought_forward | pending | cancelled | not_found | unknown."""
        await self._may_change(who, job_id)
        return await self._change(who, "requeue", job_id, wait, "run", "due_at", key=idempotency_key)

    async def _change(
        self,
        who: Principal,
        verb: str,
        job_id: str,
        wait: str,
        *more: str,
        key: str | None = None,
        **options: Any,
    ) -> Done:
        """`more`: what is told beside the outcome."""
        async with self.asked(who, f"job.{verb}", job_id=job_id):
            with asking(who, key):
                made = await job_changes.change(self.store, self.questions, verb, job_id, wait, **options)
        return await self._changed(who, f"job.{verb}", made, *more)

    async def change_jobs(
        self,
        who: Principal,
        verb: str,
        *,
        ids: Sequence[str] | None = None,
        wanted: JobsWanted | None = None,
        stop: bool = False,
        at: str | None = None,
        in_: str | None = None,
        limit: int = BULK_LIMIT,
        dry_run: bool = False,
        wait: str = WAIT,
        idempotency_key: str | None = None,
    ) -> Done:
        """`verb` cancel | reschedule | requeue, of these ids, or of all that match (at most `limit`; Refused if there
        are more). View: matched, counts {outcome: n}, errors [{id, message}] (the first 20), and left, left_ids: those
        that nobody was asked for within BULK_S. TooSlow if they were not even found in that time."""
        who.require(Role.OPERATOR)
        if verb not in BULK_VERBS:
            raise InvalidInput("verb", f"{verb!r:.40} is none of {', '.join(BULK_VERBS)}")
        if (ids is None) == (wanted is None):
            raise InvalidInput("ids", "give either ids or a filter")
        with Allowed(BULK_S) as allowed:
            if ids is not None:
                meant = job_changes.one_each(ids)
                if who.queues is not None:
                    for id_ in meant:
                        await self._may_change(who, id_)
            else:
                assert wanted is not None
                meant = await self._matching(who, wanted, limit, allowed)
            if len(meant) > limit:
                raise Refused(f"more than {limit} jobs match: narrow the filter, or do it in pieces")
            if dry_run:
                return Done(_bulk_view(len(meant), Tally(), dry_run=True))
            tally = await self._change_all(
                who, verb, meant, wait, allowed, key=idempotency_key, stop=stop, at=at, in_=in_
            )
        connection = await self.store.connection()
        homes = sorted({connection.layout.home(id_) for id_ in meant}) if len(meant) <= POSITIONS else []
        ends = [await self.store.end_of(connection.parts.names.jobs, home) for home in homes]
        return Done(_bulk_view(len(meant), tally), tuple(end for end in ends if end is not None))

    async def _matching(self, who: Principal, wanted: JobsWanted, limit: int, allowed: Allowed) -> list[str]:
        """Their ids, at most one more than `limit`. TooSlow, Behind."""
        if wanted.queue is not None:
            who.require_queue(wanted.queue)
        wanted = replace(wanted, queues=who.queues)
        require_following(self.questions, "all that match")
        found: list[str] = []
        cursor = None
        while len(found) <= limit:
            page = await self.store.read(self.questions.jobs, wanted, limit=LIST_LIMIT, cursor=cursor)
            found += [row["id"] for row in page.rows]
            cursor = page.cursor
            if cursor is None:
                break
            if allowed.over:
                raise TooSlow(f"what matches was not found within {allowed.seconds:g} s: narrow the filter")
        return found[: limit + 1]

    async def _change_all(
        self,
        who: Principal,
        verb: str,
        ids: Sequence[str],
        wait: str,
        allowed: Allowed,
        *,
        key: str | None,
        stop: bool,
        **due: str | None,
    ) -> Tally:
        """Raises as `many`."""
        connection = await self.store.connection()
        if verb == "reschedule":
            connection.requests.due_at(due["at"], due["in_"])  # told once, not for each
        options = due if verb == "reschedule" else {}
        tally = Tally()
        if stop and verb == "cancel":
            changing = self._stop_all(ids, wait, allowed, tally)
        else:
            changing = self._change_each(connection, verb, ids, wait, options, allowed, tally)
        repeated = key if key is None else "\0".join((key, *map(str, (due["at"], due["in_"], stop))))
        await self.many(changing, who, f"jobs.{verb}", len(ids), tally, key=repeated)
        return tally

    async def _change_each(
        self,
        connection: Connection,
        verb: str,
        ids: Sequence[str],
        wait: str,
        options: Mapping[str, Any],
        allowed: Allowed,
        tally: Tally,
    ) -> None:
        try:
            each = job_changes.asks(connection, verb, ids, options)
            if verb == "requeue" and await self._knows(connection, ids):
                each = job_changes.requeues(connection, self.questions, ids)
            await self.store.slowly(job_changes.change_all, connection, each, ids, wait, allowed, tally)
            if tally.forgotten:
                await job_changes.look_up(self.store, self.questions, connection, tally, allowed)
        finally:
            tally.settle({})

    async def _knows(self, connection: Connection, ids: Sequence[str]) -> bool:
        """Whether the read model has heard of all that the homes of these have by now."""
        if not self.questions.freshness().ready:
            return False
        return len(await job_changes.heard_of(self.store, self.questions, connection, ids)) == len(ids)

    async def _stop_all(self, ids: Sequence[str], wait: str, allowed: Allowed, tally: Tally) -> None:
        free = asyncio.Semaphore(STOPS)
        asked: set[str] = set()

        async def one(id_: str) -> None:
            async with free:
                if allowed.over:
                    return
                asked.add(id_)
                try:
                    within = job_changes.within_ms(wait, allowed)
                    tally.add((await job_changes.stop(self.store, id_, within)).change.outcome, id_)
                except (InvalidInput, NotAllowed, NotFound, Refused) as error:
                    tally.add("refused", id_, str(error))

        try:
            async with asyncio.TaskGroup() as group:
                for id_ in ids:
                    group.create_task(one(id_))
        except ExceptionGroup as errors:  # the first one's words, such as that the store is away
            raise errors.exceptions[0] from errors
        finally:
            tally.left = [id_ for id_ in ids if id_ not in asked]

    async def _may_change(self, who: Principal, job_id: str) -> None:
        """Forbidden; for who is limited to some queues also NotFound if nothing is known of it."""
        who.require(Role.OPERATOR)
        if who.queues is not None:
            who.require_queue((await self.store.read(self.questions.job, job_id))["queue"])

    async def _changed(self, who: Principal, verb: str, made: job_changes.Changed, *more: str) -> Done:
        change: JobChange = made.change
        await self.audit(who, verb, change.outcome, job_id=change.id)
        return Done(job_changes.view_of(change, *more), made.positions)


def _bulk_view(matched: int, tally: Tally, *, dry_run: bool = False) -> View:
    left = {"left": len(tally.left), "left_ids": tally.left}
    return {
        "matched": matched,
        "dry_run": dry_run,
        "counts": dict(tally.counts),
        "errors": tally.errors,
        **left,
    }


def require_holder(questions: Questions, who: Principal, key: object) -> None:
    """Forbidden if a job on another's queue has this key and has not ended: to create one with it would replace that,
    put it off, or show it. InvalidInput for what is no key."""
    name = text_of("key", key)
    require_following(questions, "whose this key is")
    try:
        view = questions.job(keyed_id(name or ""))
    except NotFound:
        return
    if JobStatus(view["status"]) not in OVER:
        who.require_queue(view["queue"])
