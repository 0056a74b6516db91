"""Schedules from Python: `app.schedules`, each change asked of the owner of the schedule (DESIGN §8, §9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from pipeline.client.commands import UNKNOWN, Sent, answer_of, answer_of_async, instant_in, send
from pipeline.client.request import wait_ms
from pipeline.client.schedule_options import (
    TRIGGER_OVERLAPS,
    ScheduleOptions,
    backfill_detail,
    edited,
    overlap_word,
    past_range,
    spec_of,
)
from pipeline.core.errors import InvalidInput, NotFound, Refused
from pipeline.core.handler import Duration
from pipeline.core.job import Command, Event
from pipeline.core.names import check_name
from pipeline.core.schedule import Schedule, ScheduleSpec, spec_to_json, timing_spec

if TYPE_CHECKING:
    from pipeline.client.connection import Connection

ACCEPTED, NOT_FOUND = "accepted", "not_found"
MANY = 1_000
"""Occurrences that one backfill may make unless more are allowed."""
FORBIDDEN = ("revision", "limit")
"""Fields of a refusal that say nothing about what was sent, but about what is there."""
_WAIT = "5s"
_REVISION_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChange:
    """What became of a change that was asked for.

    `outcome`: created | existing | accepted (stored, and done once an owner sees it) of create; updated, paused,
    resumed, deleted, fired, skipped, started, not_found of the others; unknown: no owner answered in time, but the
    change is durable and will be made. `next_due` and `revision` are those after it; `detail` is what else the answer
    tells, such as `total` of a backfill.
    """

    id: str
    outcome: str
    next_due: datetime | None = None
    revision: int | None = None
    occurrence_id: str | None = None
    reason: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


class Schedules:
    """The recurring schedules of an installation. Each method raises InvalidInput naming the option, with nothing
    stored, and StoreUnreachable. `wait` = how long an owner's answer is waited for."""

    def __init__(self, connected: Callable[[], Connection], *, queue: str) -> None:
        """`queue` is that of schedules which name none."""
        self._connected = connected
        self._queue = queue

    def create(
        self,
        schedule_id: str,
        handler: str,
        *,
        source: str = "api",
        wait: Duration = _WAIT,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleChange:
        """Have `handler` run again and again, by `cron` or `every`: `created`; `existing`: there is one of this id,
        which was left as it is; `accepted`."""
        own = {name: value for name, value in options.items() if value is not None}
        spec = spec_of({"queue": self._queue, **own, "id": schedule_id, "handler": handler, "source": source})
        change = self._change("schedule.create", schedule_id, wait, spec=spec)
        return replace(change, outcome=ACCEPTED) if change.outcome == UNKNOWN else change

    def update(
        self,
        schedule_id: str,
        *,
        handler: str | None = None,
        wait: Duration = _WAIT,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleChange:
        """Change some of its options; None takes one back to its default. Nothing of the past fires for it. `updated` |
        `not_found`. Refused if somebody else changed it at the same moment."""
        try:
            state = self.state(schedule_id)
        except NotFound:
            return ScheduleChange(id=schedule_id, outcome=NOT_FOUND)
        given = dict(options) if handler is None else {**options, "handler": handler}
        spec = edited(spec_to_json(state.spec), given)
        detail = {"revision": str(state.revision)}
        return self._change("schedule.update", schedule_id, wait, spec=spec, detail=detail)

    def pause(self, schedule_id: str, note: str = "", *, wait: Duration = _WAIT) -> ScheduleChange:
        """Let nothing of it fire until it is resumed; `note` says why."""
        return self._change("schedule.pause", schedule_id, wait, detail={"note": note})

    def resume(self, schedule_id: str, *, wait: Duration = _WAIT) -> ScheduleChange:
        """Let it fire again from now on; what fell into the pause is skipped."""
        return self._change("schedule.resume", schedule_id, wait)

    def trigger(
        self, schedule_id: str, *, overlap: str | None = None, wait: Duration = _WAIT
    ) -> ScheduleChange:
        """One occurrence now, paused or not, beside its grid: `fired`, with its `occurrence_id`; or, with
        overlap="skip", `skipped` if an earlier one runs."""
        detail = {} if overlap is None else {"overlap": overlap_word(overlap, TRIGGER_OVERLAPS)}
        return self._change("schedule.trigger", schedule_id, wait, detail=detail)

    def backfill(
        self,
        schedule_id: str,
        from_: datetime | str,
        to: datetime | str,
        *,
        overlap: str | None = None,
        rate: int | None = None,
        reverse: bool = False,
        limit: int = MANY,
        wait: Duration = _WAIT,
    ) -> ScheduleChange:
        """Run the instants of its grid from `from_` (included) to `to` (not included) that have passed, at most `rate`
        a minute, the newest first with `reverse`: `started`, with `total` and its id as `backfill` in the detail.
        `overlap` is allow (default), skip or buffer_all, among its own. Refused if there are more than `limit`."""
        detail = backfill_detail(from_, to, overlap=overlap, rate=rate, reverse=reverse, limit=limit)
        return self._change("schedule.backfill", schedule_id, wait, detail=detail)

    def count(self, schedule_id: str, from_: datetime | str, to: datetime | str) -> int:
        """How many instants a backfill of [from_, to) would make up. Raises NotFound; InvalidInput, also of a schedule
        that has no grid."""
        from pipeline.core.timing import timing_of

        begin, end = past_range(from_, to)
        spec = self.state(schedule_id).spec
        if spec.after_ms is not None:
            raise InvalidInput("id", f"{schedule_id} counts from the end of each occurrence: it has no past")
        if end > self._connected().clock.now():
            raise InvalidInput("to", "is in the future: a backfill makes up the past")
        return timing_of(timing_spec(spec)).count(begin - 1, end - 1)

    def cancel_backfill(self, schedule_id: str, backfill: str, *, wait: Duration = _WAIT) -> ScheduleChange:
        """End a backfill: what has fired goes on. `cancelled` | `not_found`."""
        return self._change("schedule.cancel_backfill", schedule_id, wait, detail={"backfill": backfill})

    def delete(self, schedule_id: str, *, wait: Duration = _WAIT) -> ScheduleChange:
        """Remove it; what has fired goes on. `deleted` | `not_found`."""
        return self._change("schedule.delete", schedule_id, wait)

    def get(self, schedule_id: str) -> dict[str, Any]:
        """Where it stands, as `dueline cron describe` shows it (schemas/cli/cron_describe.json). Raises NotFound."""
        check_name("id", schedule_id)
        connection = self._connected()
        with connection.reading() as finder:
            return finder.schedule_view(schedule_id, connection.clock.now())

    def list(
        self, *, state: str | None = None, source: str | None = None, handler: str | None = None
    ) -> list[dict[str, Any]]:
        """By id, as `dueline cron list` shows them (schemas/cli/cron_list.json), all or some. `state`: active | paused
        | ended | overdue | failing; `source`: cli | api | app:NAME | file:NAME. Raises InvalidInput('state')."""
        connection = self._connected()
        with connection.reading() as finder:
            return finder.schedule_views(connection.clock.now(), state=state, source=source, handler=handler)

    def state(self, schedule_id: str) -> Schedule:
        """Its record, as its owner keeps it. Raises NotFound."""
        check_name("id", schedule_id)
        with self._connected().reading() as finder:
            return finder.schedule(schedule_id)

    def _change(self, verb: str, schedule_id: str, wait: Duration, **fields: Any) -> ScheduleChange:
        check_name("id", schedule_id)
        patience = wait_ms(wait)
        connection = self._connected()
        return changed(connection, ask(connection, verb, schedule_id, patience, **fields))


# -- asking -------------------------------------------------------------------------------------------------


def ask(connection: Connection, verb: str, schedule_id: str, wait: int, **fields: Any) -> Sent:
    """Put the command that asks for a change; `fields` = spec, detail. InvalidInput if its queue is unknown."""
    spec: ScheduleSpec | None = fields.get("spec")
    if spec is not None:
        connection.require_queue(spec.queue)
    return send(connection, connection.requests.about_schedule(verb, schedule_id, **fields), wait)


def changed(connection: Connection, sent: Sent) -> ScheduleChange:
    """What the owner answered to it. Raises InvalidInput naming the field if it is malformed; Refused if what there is
    forbids it; StoreUnreachable."""
    with _forbidden(sent):
        return _meaning(sent.command, answer_of(connection, sent))


async def changed_async(connection: Connection, sent: Sent) -> ScheduleChange:
    """`changed` without blocking the event loop."""
    with _forbidden(sent):
        return _meaning(sent.command, await answer_of_async(connection, sent))


@contextmanager
def _forbidden(sent: Sent) -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        if error.field in FORBIDDEN:
            raise Refused(f"{sent.command.schedule_id}: {error.problem}") from None
        raise


def _meaning(command: Command, event: Event | None) -> ScheduleChange:
    assert command.schedule_id is not None
    if event is None or event.outcome is None:
        return ScheduleChange(id=command.schedule_id, outcome=UNKNOWN)
    revision = event.detail.get("revision", "")
    return ScheduleChange(
        id=command.schedule_id,
        outcome=event.outcome,
        next_due=instant_in(event.detail, "next_due"),
        revision=int(revision) if revision.isdecimal() and len(revision) <= _REVISION_DIGITS else None,
        occurrence_id=event.occurrence_id,
        reason=event.reason,
        detail=event.detail,
    )
