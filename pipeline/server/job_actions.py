"""Changes of jobs that a page or an endpoint can make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.client.commands import JobChange
from pipeline.client.request import text_of
from pipeline.client.schedules import ACCEPTED
from pipeline.core.errors import InvalidInput, NotFound, Refused, StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.core.job import JobStatus
from pipeline.core.sight import OVER
from pipeline.core.times import written_instant
from pipeline.readmodel.questions import LIST_LIMIT, JobsWanted, Questions
from pipeline.server import job_changes
from pipeline.server.access import Principal, Role
from pipeline.server.acting import WAIT, Acting, Done, asking
from pipeline.server.audit import audit_put
from pipeline.server.bulk import Intake, Pipe
from pipeline.server.job_changes import Creating, Tally

BULK_LIMIT = 10_000
"""Jobs of one bulk change at most."""
BULK_VERBS = ("cancel", "reschedule", "requeue")
POSITIONS = 64
"""Partitions up to which a change of many jobs tells where they stand."""
STOPS = 16
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
                await self.store.call(connection.require_queue, queue)
        if idempotency_key is not None:
            request = job_changes.with_idempotency(request, who.name, idempotency_key)
        if request.get("key") is not None:
            if who.queues is not None:
                await self.store.read(require_holder, self.questions, who, request["key"])
            return await self._create_keyed(who, {**request, "wait": wait}, idempotency_key is not None)
        if self._creating is None or self._creating.connection is not connection:
            self._creating = Creating(connection)
        ref, put = self._creating.record(request)
        audit = audit_put(
            who,
            "job.create",
            topic=connection.parts.names.events,
            layout=connection.layout,
            at=connection.clock.now(),
            outcome=ref.status,
            job_id=ref.id,
        )
        place, _ = await self.store.append((put, audit))
        view = {"id": ref.id, "status": ref.status, "due_at": written_instant(ref.due_at)}
        return Done(view, (place,))

    async def _create_keyed(self, who: Principal, request: Mapping[str, Any], repeatable: bool) -> Done:
        with asking(who):
            ref = await job_changes.create_keyed(self.store, request)
        if repeatable and ref.status == "existing":
            await job_changes.check_same(self.store, request, ref.id)
        view = {"id": ref.id, "status": ref.status, "due_at": written_instant(ref.due_at)}
        connection = await self.store.connection()
        end = None
        if ref.status != ACCEPTED:
            end = await self.store.end_of(connection.parts.names.jobs, connection.layout.home(ref.id))
        await self.audit(who, "job.create", ref.status, job_id=ref.id, key=request["key"])
        return Done(view, () if end is None else (end,))

    async def create_jobs(self, who: Principal, body: AsyncIterator[bytes], *, refs: bool = False) -> Done:
        """NDJSON in pieces. View: accepted, rejected, errors [{line, field, message}] (the first 100); with `refs` also
        refs [{id, status, due_at}] of those accepted, in order."""
        who.require(Role.OPERATOR)
        connection = await self.store.connection()
        pipe = Pipe(asyncio.get_running_loop())
        admit_key = partial(require_holder, self.questions, who)
        intake = Intake(connection, who, self.default_queue, admit_key, refs=refs)
        with asking(who):
            filling = asyncio.ensure_future(pipe.fill(body))
            try:
                view = await self.store.streaming(intake.run, pipe.take())
            except BaseException:
                pipe.close()
                if filling.done() and not filling.cancelled() and filling.exception() is not None:
                    await filling  # what broke the body off says more than that it broke off
                raise
            finally:
                filling.cancel()
                await self.audit(
                    who, "jobs.create", "accepted", accepted=intake.accepted, rejected=intake.rejected
                )
        homes = range(connection.layout.partitions)
        names = connection.parts.names
        ends = [await self.store.end_of(names.jobs, n) for n in homes] if len(homes) <= POSITIONS else []
        return Done(view, tuple(end for end in ends if end is not None))

    async def cancel(self, who: Principal, job_id: str, *, stop: bool = False, wait: str = WAIT) -> Done:
        """Outcome: cancelled | stopped | stopping | too_late | not_found | unknown."""
        await self._may_change(who, job_id)
        with asking(who):
            if stop:
                made = await job_changes.stop(self.store, job_id, wait)
            else:
                made = await job_changes.change(self.store, self.questions, "cancel", job_id, wait)
        return await self._changed(who, "job.stop" if stop else "job.cancel", made)

    async def reschedule(
        self, who: Principal, job_id: str, *, at: str | None = None, in_: str | None = None, wait: str = WAIT
    ) -> Done:
        """Outcome: rescheduled | too_late | cancelled | stopped | not_found | unknown."""
        await self._may_change(who, job_id)
        with asking(who):
            made = await job_changes.change(
                self.store, self.questions, "reschedule", job_id, wait, at=at, in_=in_
            )
        return await self._changed(who, "job.reschedule", made, "due_at")

    async def update_payload(
        self, who: Principal, job_id: str, payload: dict[str, Any], *, wait: str = WAIT
    ) -> Done:
        """Outcome: updated, else as of `reschedule`."""
        await self._may_change(who, job_id)
        with asking(who):
            made = await job_changes.change(
                self.store, self.questions, "update", job_id, wait, payload=payload
            )
        return await self._changed(who, "job.update", made)

    async def requeue(
        self, who: Principal, job_id: str, *, wait: str = WAIT, idempotency_key: str | None = None
    ) -> Done:
        """Outcome: requeued | brought_forward | pending | cancelled | not_found | unknown."""
        await self._may_change(who, job_id)
        with asking(who, idempotency_key, "requeue", job_id):
            made = await job_changes.change(self.store, self.questions, "requeue", job_id, wait)
        return await self._changed(who, "job.requeue", made, "run", "due_at")

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
    ) -> Done:
        """`verb` cancel | reschedule | requeue, of these ids, or of all that match (at most `limit`; Refused if there
        are more). View: matched, counts {outcome: n}, errors [{id, message}] (the first 20)."""
        who.require(Role.OPERATOR)
        if verb not in BULK_VERBS:
            raise InvalidInput("verb", f"{verb!r:.40} is none of {', '.join(BULK_VERBS)}")
        if (ids is None) == (wanted is None):
            raise InvalidInput("ids", "give either ids or a filter")
        if ids is not None:
            meant = job_changes.one_each(ids)
            if who.queues is not None:
                for id_ in meant:
                    await self._may_change(who, id_)
        else:
            assert wanted is not None
            meant = await self._matching(who, wanted, limit)
        if len(meant) > limit:
            raise Refused(f"more than {limit} jobs match: narrow the filter, or do it in pieces")
        if dry_run:
            return Done({"matched": len(meant), "dry_run": True, "counts": {}, "errors": []})
        connection = await self.store.connection()
        options = {"at": at, "in_": in_} if verb == "reschedule" else {}
        if verb == "reschedule":
            connection.requests.due_at(at, in_)  # told once, not for each
        with asking(who):
            if stop and verb == "cancel":
                changing = self._stop_all(meant, wait)
            else:
                change_all = job_changes.change_all
                changing = self.store.slowly(change_all, connection, verb, meant, wait, options)
            tally = await self._told(changing, who, f"jobs.{verb}", len(meant))
        await self.audit(who, f"jobs.{verb}", "done", count=len(meant), counts=dict(tally.counts))
        view = {"matched": len(meant), "dry_run": False, "counts": dict(tally.counts), "errors": tally.errors}
        homes = sorted({connection.layout.home(id_) for id_ in meant}) if len(meant) <= POSITIONS else []
        ends = [await self.store.end_of(connection.parts.names.jobs, home) for home in homes]
        return Done(view, tuple(end for end in ends if end is not None))

    async def _matching(self, who: Principal, wanted: JobsWanted, limit: int) -> list[str]:
        """Their ids, at most one more than `limit`."""
        if wanted.queue is not None:
            who.require_queue(wanted.queue)
        found: list[str] = []
        cursor = None
        while len(found) <= limit:
            page = await self.store.read(self.questions.jobs, wanted, limit=LIST_LIMIT, cursor=cursor)
            found += [row["id"] for row in page.rows if who.sees(row.get("queue"))]
            cursor = page.cursor
            if cursor is None:
                break
        return found[: limit + 1]

    async def _told(self, changing: Awaitable[Tally], who: Principal, verb: str, count: int) -> Tally:
        """What became of many. If that is never known they are audited all the same: some are changed, or will be."""
        try:
            return await changing
        except (StoreUnreachable, asyncio.CancelledError):
            await self.audit(who, verb, "broken_off", count=count)
            raise

    async def _stop_all(self, ids: Sequence[str], wait: str) -> Tally:
        tally, free = Tally(), asyncio.Semaphore(STOPS)

        async def one(id_: str) -> None:
            async with free:
                try:
                    tally.add((await job_changes.stop(self.store, id_, wait)).change.outcome, id_)
                except (InvalidInput, NotFound, Refused) as error:
                    tally.add("refused", id_, str(error))

        try:
            async with asyncio.TaskGroup() as group:
                for id_ in ids:
                    group.create_task(one(id_))
        except ExceptionGroup as errors:  # the first one's words, such as that the store is away
            raise errors.exceptions[0] from errors
        return tally

    async def _may_change(self, who: Principal, job_id: str) -> None:
        """Forbidden; for who is limited to some queues also NotFound if nothing is known of it."""
        who.require(Role.OPERATOR)
        if who.queues is not None:
            who.require_queue((await self.store.read(self.questions.job, job_id))["queue"])

    async def _changed(self, who: Principal, verb: str, made: job_changes.Changed, *more: str) -> Done:
        change: JobChange = made.change
        await self.audit(who, verb, change.outcome, job_id=change.id)
        return Done(job_changes.view_of(change, *more), made.positions)


def require_holder(questions: Questions, who: Principal, key: object) -> None:
    """Forbidden if a job on another's queue has this key and has not ended: to create one with it would replace that,
    put it off, or show it. InvalidInput for what is no key."""
    name = text_of("key", key)
    try:
        view = questions.job(keyed_id(name or ""))
    except NotFound:
        return
    if JobStatus(view["status"]) not in OVER:
        who.require_queue(view["queue"])
