"""Changes of schedules that a page or an endpoint can make."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pipeline.client.commands import UNKNOWN
from pipeline.client.schedule_options import TRIGGER_OVERLAPS, backfill_detail, edited, overlap_word, spec_of
from pipeline.client.schedules import ACCEPTED, ScheduleChange
from pipeline.commands.schedules import NOTE_LIMIT
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.schedule import spec_to_json
from pipeline.core.times import aware
from pipeline.readmodel.questions import Position
from pipeline.server import schedule_changes
from pipeline.server.access import Principal, Role
from pipeline.server.acting import WAIT, Acting, Done, View, asking
from pipeline.server.schedule_changes import Stale

BACKFILL_LIMIT = 1_000


class ScheduleActions(Acting):
    """Views are those of `dueline cron …` (schemas/cli/)."""

    async def create_schedule(
        self, who: Principal, schedule_id: str, options: Mapping[str, Any], *, wait: str = WAIT
    ) -> Done:
        """`options` by the names of docs/schedules.md, `handler` among them. Outcome: created | existing (of the same
        definition; Refused if it has another) | accepted."""
        who.require(Role.OPERATOR)
        given = {name: value for name, value in options.items() if value is not None}
        spec = spec_of({"queue": self.default_queue, **given, "id": schedule_id, "source": "api"})
        who.require_queue(spec.queue)
        made, places = await self._ask(who, "schedule.create", schedule_id, wait, spec=spec)
        outcome = ACCEPTED if made.outcome == UNKNOWN else made.outcome
        await self.audit(who, "schedule.create", outcome, schedule=schedule_id)
        if outcome == "existing":
            there = await schedule_changes.schedules_of(self.store, self.default_queue)
            state = await self.store.call(there.state, schedule_id)
            if not schedule_changes.same_definition(spec_to_json(state.spec), spec_to_json(spec)):
                raise Refused(f"{schedule_id} exists with another definition: change it instead")
        view = schedule_changes.view_of(made, "outcome", "next_due", "revision") | {"outcome": outcome}
        return Done(view, places, schedule_changes.etag_after(made))

    async def update_schedule(
        self,
        who: Principal,
        schedule_id: str,
        options: Mapping[str, Any],
        *,
        etag: str | None = None,
        wait: str = WAIT,
    ) -> Done:
        """Changes what is given, None takes an option back to its default. Stale if `etag` is not that of the schedule
        any more. Outcome: updated | not_found | unknown."""
        seen = await self._may_change_schedule(who, schedule_id, look=True)
        assert seen is not None
        if etag is not None and etag != seen["etag"]:
            raise Stale(f"{schedule_id} was changed meanwhile")
        spec = edited(seen["spec"], options)
        who.require_queue(spec.queue)
        detail = {"revision": str(seen["revision"])}
        try:
            made, places = await self._ask(
                who, "schedule.update", schedule_id, wait, spec=spec, detail=detail
            )
        except Refused as error:
            raise Stale(str(error)) from error
        await self.audit(who, "schedule.update", made.outcome, schedule=schedule_id, fields=" ".join(options))
        view = schedule_changes.view_of(made, "next_due", "revision")
        return Done(view, places, schedule_changes.etag_after(made))

    async def pause_schedule(
        self, who: Principal, schedule_id: str, *, note: str = "", wait: str = WAIT
    ) -> Done:
        """Outcome: paused | not_found | unknown."""
        if len(note) > NOTE_LIMIT:
            raise InvalidInput("note", f"is longer than {NOTE_LIMIT} characters")
        return await self._simply(who, "pause", schedule_id, wait, detail={"note": note})

    async def resume_schedule(self, who: Principal, schedule_id: str, *, wait: str = WAIT) -> Done:
        """Outcome: resumed | not_found | unknown."""
        return await self._simply(who, "resume", schedule_id, wait)

    async def delete_schedule(self, who: Principal, schedule_id: str, *, wait: str = WAIT) -> Done:
        """Outcome: deleted | not_found | unknown."""
        return await self._simply(who, "delete", schedule_id, wait)

    async def trigger_schedule(
        self,
        who: Principal,
        schedule_id: str,
        *,
        overlap: str | None = None,
        wait: str = WAIT,
        idempotency_key: str | None = None,
    ) -> Done:
        """Outcome: fired | skipped | not_found | unknown. View has occurrence_id."""
        detail = {} if overlap is None else {"overlap": overlap_word(overlap, TRIGGER_OVERLAPS)}
        return await self._simply(who, "trigger", schedule_id, wait, key=idempotency_key, detail=detail)

    async def backfill_schedule(
        self,
        who: Principal,
        schedule_id: str,
        *,
        from_: str,
        to: str,
        overlap: str | None = None,
        rate: int | None = None,
        reverse: bool = False,
        limit: int = BACKFILL_LIMIT,
        dry_run: bool = False,
        wait: str = WAIT,
        idempotency_key: str | None = None,
    ) -> Done:
        """Outcome started | not_found | unknown, or `counted` of a dry run; with backfill, total. Refused if there are
        more than `limit`."""
        await self._may_change_schedule(who, schedule_id)
        detail = backfill_detail(from_, to, overlap=overlap, rate=rate, reverse=reverse, limit=limit)
        there = await schedule_changes.schedules_of(self.store, self.default_queue)
        total = await self.store.call(there.count, schedule_id, from_, to)
        if dry_run:
            return Done({"id": schedule_id, "outcome": "counted", "backfill": None, "total": total})
        if total > limit:
            raise Refused(f"{total} occurrences are more than {limit}: give a limit that allows them")
        made, places = await self._ask(
            who, "schedule.backfill", schedule_id, wait, idempotency_key, detail=detail
        )
        await self.audit(who, "schedule.backfill", made.outcome, schedule=schedule_id, total=total)
        view = schedule_changes.view_of(made, backfill=made.detail.get("backfill"), total=total)
        return Done(view, places, schedule_changes.etag_after(made))

    async def cancel_backfill(
        self, who: Principal, schedule_id: str, backfill: str, *, wait: str = WAIT
    ) -> Done:
        """Outcome: cancelled | not_found | unknown."""
        return await self._simply(who, "cancel_backfill", schedule_id, wait, detail={"backfill": backfill})

    async def preview_schedule(
        self, who: Principal, options: Mapping[str, Any], *, after: str | None = None, count: int = 10
    ) -> View:
        """Changes nothing. `options` as of `create_schedule`, `cron` or `every` with them, handler not needed. View:
        words, tz, instants [{at, due_at, local, note}]; `note` tells what the clock does that night, else None."""
        who.require(Role.VIEWER)
        connection = self.store.connected
        now = datetime.now(UTC) if connection is None else aware(connection.clock.now())
        # An expression that is seldom met, such as 29 February, computes for seconds.
        return await self.store.look(schedule_changes.preview, options, after, count, now)

    async def sync_preview(
        self, who: Principal, *, name: str, text: str, format: str = "crontab", tz: str | None = None
    ) -> View:
        """What `cron sync --dry-run` of this file would do: create, update, delete, unchanged, foreign; problems."""
        who.require(Role.OPERATOR)
        who.require_all_queues()
        return await schedule_changes.sync_preview(self.store, name=name, text=text, form=format, tz=tz)

    async def _may_change_schedule(
        self, who: Principal, schedule_id: str, *, look: bool = False
    ) -> View | None:
        """The schedule, if it has to be looked at. Forbidden; then also NotFound."""
        who.require(Role.OPERATOR)
        if who.queues is None and not look:
            return None
        view = await self.store.read(self.questions.schedule, schedule_id)
        who.require_queue(view["spec"].get("queue"))
        return view

    async def _simply(
        self,
        who: Principal,
        verb: str,
        schedule_id: str,
        wait: str,
        key: str | None = None,
        detail: Mapping[str, str] | None = None,
    ) -> Done:
        await self._may_change_schedule(who, schedule_id)
        detail = detail or {}
        made, places = await self._ask(who, f"schedule.{verb}", schedule_id, wait, key, detail=detail)
        await self.audit(who, f"schedule.{verb}", made.outcome, schedule=schedule_id, **detail)
        more = ("occurrence_id",) if verb == "trigger" else ()
        view = schedule_changes.view_of(made, *more, "next_due", "revision")
        return Done(view, places, schedule_changes.etag_after(made))

    async def _ask(
        self,
        who: Principal,
        verb: str,
        schedule_id: str,
        wait: str,
        key: str | None = None,
        *,
        detail: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> tuple[ScheduleChange, tuple[Position, ...]]:
        """Raises as `schedule_changes.change`."""
        detail = detail or {}
        what = (verb.removeprefix("schedule."), schedule_id, repr(sorted(detail.items())))
        async with self.asked(who, verb, schedule=schedule_id):
            with asking(who, key, *what):
                return await schedule_changes.change(
                    self.store, verb, schedule_id, wait, detail=detail, **fields
                )
