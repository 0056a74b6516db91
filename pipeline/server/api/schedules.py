"""/schedules: recurring definitions."""

from __future__ import annotations

from typing import Any

from pipeline.client.schedule_options import ScheduleOptions
from pipeline.core.errors import InvalidInput
from pipeline.follower import WantedSchedules
from pipeline.follower.schedules import STANDINGS
from pipeline.server.access import Role
from pipeline.server.acting import Done
from pipeline.server.api.jobs import page_view
from pipeline.server.api.outcomes import answer_of
from pipeline.server.body import flag, required_text, text, whole
from pipeline.server.endpoint import Answer, Call, Endpoint
from pipeline.server.params import CURSOR, LIMIT, WAIT, Param, Word
from pipeline.server.schedule_actions import BACKFILL_LIMIT
from pipeline.server.schedule_changes import PREVIEWED

OPTIONS = tuple(ScheduleOptions.__annotations__)
MOST_BACKFILLED = 10_000_000
PER_MINUTE = 1_000_000


def _etag(text: str) -> str:
    return f'"{text}"'


def _if_match(call: Call) -> str | None:
    """The tag that the schedule must have; None: any. InvalidInput for what is no strong tag."""
    given = call.request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    tag = given.strip()
    if len(tag) < 2 or not (tag.startswith('"') and tag.endswith('"')):
        raise InvalidInput("If-Match", "must be one tag in quotes, as ETag gave it")
    return tag[1:-1]


async def list_(call: Call) -> Answer:
    query = dict(call.query)
    paging = {"limit": query.pop("limit", 50), "cursor": query.pop("cursor", None)}
    wanted = WantedSchedules(**query, queues=call.who.queues)
    page = await call.ask(call.services.questions.schedules, wanted, **paging)
    return Answer(page_view(page, call.who))


async def get(call: Call) -> Answer:
    view = await call.ask(call.services.questions.schedule, call.path["id"])
    call.who.require_queue(view["spec"].get("queue"))
    # Nothing is answered by If-None-Match: the tag stays while runs come and go, which the view shows too.
    return Answer(view, headers={"ETag": _etag(view["etag"])})


def _changed(done: Done, *, status: int = 200, **headers: str) -> Answer:
    """With the tag of what the change has made, to go on from there."""
    tag = {} if done.etag is None else {"ETag": _etag(done.etag)}
    return answer_of(done, status=status)._replace(headers=tag | headers)


async def create(call: Call) -> Answer:
    body = call.object("id", "handler", *OPTIONS)
    id_, handler = required_text(body, "id"), required_text(body, "handler")
    options = {name: value for name, value in body.items() if name != "id"}
    done = await call.actions.create_schedule(call.who, id_, {**options, "handler": handler}, wait=call.wait)
    status = 201 if done.view["outcome"] == "created" else 200
    return _changed(done, status=status, Location=f"/api/v1/schedules/{id_}")


async def update(call: Call) -> Answer:
    body = call.object("handler", *OPTIONS)
    if not body:
        raise InvalidInput("body", "is empty: there is nothing to change")
    if "handler" in body:
        required_text(body, "handler")
    done = await call.actions.update_schedule(
        call.who, call.path["id"], body, etag=_if_match(call), wait=call.wait
    )
    return _changed(done)


async def delete(call: Call) -> Answer:
    return _changed(await call.actions.delete_schedule(call.who, call.path["id"], wait=call.wait))


async def pause(call: Call) -> Answer:
    note = text(call.object("note"), "note") or ""
    return _changed(await call.actions.pause_schedule(call.who, call.path["id"], note=note, wait=call.wait))


async def resume(call: Call) -> Answer:
    return _changed(await call.actions.resume_schedule(call.who, call.path["id"], wait=call.wait))


async def trigger(call: Call) -> Answer:
    overlap = text(call.object("overlap"), "overlap")
    with call.once(overlap) as key:
        done = await call.actions.trigger_schedule(
            call.who, call.path["id"], overlap=overlap, wait=call.wait, idempotency_key=key
        )
    return _changed(done)


async def backfill(call: Call) -> Answer:
    body = call.object("from", "to", "overlap", "rate", "reverse", "limit", "dry_run")
    with call.once({name: each for name, each in body.items() if name != "dry_run"}) as key:
        done = await call.actions.backfill_schedule(
            call.who,
            call.path["id"],
            from_=required_text(body, "from"),
            to=required_text(body, "to"),
            overlap=text(body, "overlap"),
            rate=whole(body, "rate", 1, PER_MINUTE),
            reverse=flag(body, "reverse"),
            limit=whole(body, "limit", 1, MOST_BACKFILLED) or BACKFILL_LIMIT,
            dry_run=flag(body, "dry_run"),
            wait=call.wait,
            idempotency_key=key,
        )
    return _changed(done)


async def cancel_backfill(call: Call) -> Answer:
    done = await call.actions.cancel_backfill(
        call.who, call.path["id"], call.path["backfill"], wait=call.wait
    )
    return _changed(done)


async def preview(call: Call) -> Answer:
    body = call.object("id", "from", "count", *OPTIONS)
    begin, count = text(body, "from"), whole(body, "count", 1, PREVIEWED) or 10
    options: dict[str, Any] = {name: value for name, value in body.items() if name not in ("from", "count")}
    with call.services.looks.held(call.who.identity):
        return Answer(await call.actions.preview_schedule(call.who, options, after=begin, count=count))


async def sync(call: Call) -> Answer:
    body = call.object("name", "text", "format", "tz")
    with call.services.looks.held(call.who.identity):
        view = await call.actions.sync_preview(
            call.who,
            name=required_text(body, "name"),
            text=required_text(body, "text"),
            format=text(body, "format", "crontab") or "crontab",
            tz=text(body, "tz"),
        )
    return Answer(view)


_UNHEARD = "No owner answered in time: it is stored, and will be done."
_CHANGED: dict[int, tuple[str | None, str]] = {
    200: ("ScheduleDone", "Done."),
    202: ("ScheduleDone", _UNHEARD),
}


def _change(method: str, path: str, name: str, handle: Any, summary: str, **more: Any) -> Endpoint:
    return Endpoint(
        **{
            "method": method,
            "path": path,
            "name": name,
            "role": Role.OPERATOR,
            "handle": handle,
            "tag": "schedules",
            "summary": summary,
            "query": (WAIT,),
            "answers": _CHANGED,
            "errors": (404, 409),
            **more,
        }
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/schedules",
        name="listSchedules",
        role=Role.VIEWER,
        handle=list_,
        tag="schedules",
        summary="List schedules",
        query=(
            Param(name="text", meaning="With this in the id, handler or note."),
            Word(
                name="state",
                meaning="Of these only. `overdue`: its owner should long have decided what is due; `failing`: its last"
                " run that ended is dead.",
                words=STANDINGS,
            ),
            Param(
                name="source",
                meaning="From there only: `cli`, `api`, `app:NAME` or `file:NAME`.",
                example="app:shop",
            ),
            Param(name="handler", meaning="Of this handler."),
            LIMIT,
            CURSOR,
        ),
        whole=True,
        answers={200: ("SchedulePage", "Schedules, by id.")},
    ),
    _change(
        "POST",
        "/schedules",
        "createSchedule",
        create,
        "Create a schedule",
        description="`existing`: there is one of this id and the same definition; 409 if it has another.",
        body="NewSchedule",
        answers={
            201: ("ScheduleDone", "Its first instant is to come."),
            200: ("ScheduleDone", "It is there already."),
            202: ("ScheduleDone", _UNHEARD),
        },
        errors=(409,),
    ),
    Endpoint(
        method="POST",
        path="/schedules/preview",
        name="previewSchedule",
        role=Role.VIEWER,
        handle=preview,
        tag="schedules",
        summary="Show when a schedule would run",
        description="Changes nothing, and needs no store. Computed by the code that fires, so what is shown is what"
        " will run; nights on which the clock changes are told in `note`.",
        body="Preview",
        answers={200: ("Instants", "The next instants.")},
    ),
    Endpoint(
        method="POST",
        path="/schedules/sync",
        name="previewSync",
        role=Role.OPERATOR,
        handle=sync,
        tag="schedules",
        summary="Show what a crontab or TOML file would change",
        description="What `dueline cron sync --dry-run` says of the file; nothing is changed.",
        body="SyncFile",
        answers={200: ("SyncPlan", "What would change, or the problems of the file.")},
        patience_s=60.0,
    ),
    Endpoint(
        method="GET",
        path="/schedules/{id}",
        name="getSchedule",
        role=Role.VIEWER,
        handle=get,
        tag="schedules",
        summary="Get a schedule with its last and next instants",
        description="`ETag` changes with each change of its definition or state, not with its runs: it is for"
        " `If-Match`, and nothing is answered by `If-None-Match`.",
        answers={200: ("Schedule", "The schedule.")},
        errors=(404,),
    ),
    _change(
        "PATCH",
        "/schedules/{id}",
        "updateSchedule",
        update,
        "Change options of a schedule",
        description="What is given is changed, null takes an option back to its default, the rest stays. Nothing of the"
        " past fires for it. With `If-Match` only if it is still as read: else 412.",
        body="ScheduleOptions",
        errors=(404, 409, 412),
        etag=True,
    ),
    _change(
        "DELETE",
        "/schedules/{id}",
        "deleteSchedule",
        delete,
        "Remove a schedule",
        description="What has fired goes on. One that a file or an app keeps comes back with its next sync.",
    ),
    _change("POST", "/schedules/{id}/pause", "pauseSchedule", pause, "Let a schedule not fire", body="Note"),
    _change("POST", "/schedules/{id}/resume", "resumeSchedule", resume, "Let a paused schedule fire again"),
    _change(
        "POST",
        "/schedules/{id}/trigger",
        "triggerSchedule",
        trigger,
        "Fire one occurrence now",
        description="Beside those of its grid, paused or not. 409 `skipped` if an earlier one runs and `overlap` is"
        " `skip`. `Idempotency-Key`: the same request again within half an hour is answered again, and not done again.",
        body="Trigger",
        idempotent=True,
    ),
    _change(
        "POST",
        "/schedules/{id}/backfill",
        "backfillSchedule",
        backfill,
        "Run the instants of a range of the past",
        description="With `dry_run` they are only counted. `Idempotency-Key` as of trigger.",
        body="Backfill",
        idempotent=True,
    ),
    _change(
        "DELETE",
        "/schedules/{id}/backfills/{backfill}",
        "cancelBackfill",
        cancel_backfill,
        "End a backfill",
    ),
)
