"""/queues, /fleet, /status, /events, /me and /tokens: the installation, and who may what in it."""

from __future__ import annotations

from typing import Any

from pipeline.core.names import check_name
from pipeline.readmodel.questions import AuditWanted
from pipeline.server.access import Role
from pipeline.server.api.outcomes import answer_of
from pipeline.server.api.stream import MEDIA_TYPE, events
from pipeline.server.body import flag, required_text, text, texts
from pipeline.server.endpoint import Answer, Call, Endpoint
from pipeline.server.params import CURSOR, LIMIT, Param, Whole

QUEUES = 100
"""That one token may be limited to."""


async def queues(call: Call) -> Answer:
    questions = call.services.questions
    freshness, found = questions.freshness()._asdict(), await call.ask(questions.queues)
    return Answer({"items": [each for each in found if call.who.sees(each["queue"])], "freshness": freshness})


async def pause_queue(call: Call) -> Answer:
    name = check_name("queue", call.path["queue"])
    note = text(call.object("note"), "note") or ""
    return answer_of(await call.actions.pause_queue(call.who, name, note=note))


async def resume_queue(call: Call) -> Answer:
    return answer_of(await call.actions.resume_queue(call.who, check_name("queue", call.path["queue"])))


async def purge_queue(call: Call) -> Answer:
    name, body = check_name("queue", call.path["queue"]), call.object("before", "dry_run")
    done = await call.actions.purge_queue(
        call.who, name, before=text(body, "before"), dry_run=flag(body, "dry_run")
    )
    return answer_of(done)


async def fleet(call: Call) -> Answer:
    """Figures of all; whoever is limited to queues sees the runs, and the names of handlers, of these alone."""
    view, who = await call.ask(call.services.questions.fleet), call.who
    processes = [
        each if all(map(who.sees, each["queues"])) else {**each, "handlers": []} for each in view["processes"]
    ]
    runs = [each for each in view["runs"] if who.sees(each["queue"])]
    return Answer({**view, "processes": processes, "runs": runs})


async def audit(call: Call) -> Answer:
    call.who.require_all_queues()
    wanted = AuditWanted(**{name: call.query.get(name) for name in ("job", "schedule", "by")})
    limit, cursor = call.query.get("limit", 50), call.query.get("cursor")
    page = await call.ask(call.services.questions.audit, wanted, limit=limit, cursor=cursor)
    return Answer({"items": list(page.rows), "cursor": page.cursor, "scanned": page.scanned})


async def status(call: Call) -> Answer:
    return Answer(await call.ask(call.services.questions.overview, call.who.queues))


async def me(call: Call) -> Answer:
    who = call.who
    queues = None if who.queues is None else sorted(who.queues)
    return Answer({"name": who.name, "role": who.role.word, "queues": queues, "token": who.token})


# -- tokens --------------------------------------------------------------------------------------------------


async def list_tokens(call: Call) -> Answer:
    return Answer({"items": call.actions.listed_tokens(call.who)})


async def create_token(call: Call) -> Answer:
    body = call.object("name", "role", "queues", "expires_in")
    done = await call.actions.create_token(
        call.who,
        name=required_text(body, "name"),
        role=required_text(body, "role"),
        queues=texts(body, "queues", QUEUES) or (),
        expires_in=text(body, "expires_in"),
    )
    return Answer(done.view, 201)


async def revoke_token(call: Call) -> Answer:
    return Answer((await call.actions.revoke_token(call.who, call.path["id"])).view)


def _queue_change(verb: str, handle: Any, summary: str, role: Role, body: str | None) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/queues/{{queue}}/{verb}",
        name=f"{verb}Queue",
        role=role,
        handle=handle,
        tag="queues",
        summary=summary,
        body=body,
        answers={200: ("QueueDone", "Done.")},
        errors=(404,),
        patience_s=90.0,
    )


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/queues",
        name="listQueues",
        role=Role.VIEWER,
        handle=queues,
        tag="queues",
        summary="List queues with their lag",
        description="`lag` is how many runs were emitted and nobody has started, `oldest_unacked` when the oldest was"
        " emitted that has not ended: both exactly, as of what this server has folded; `freshness` tells"
        " how far that is.",
        lists=True,
        answers={200: ("Queues", "Queues.")},
    ),
    _queue_change("pause", pause_queue, "Hold a queue: nothing of it starts", Role.OPERATOR, "Note"),
    _queue_change("resume", resume_queue, "Let a queue go on", Role.OPERATOR, None),
    _queue_change("purge", purge_queue, "Cancel what waits on a queue", Role.ADMIN, "Purge"),
    Endpoint(
        method="GET",
        path="/fleet",
        name="getFleet",
        role=Role.VIEWER,
        handle=fleet,
        tag="installation",
        summary="Owners, processes, and runs in flight",
        answers={200: ("Fleet", "The fleet.")},
    ),
    Endpoint(
        method="GET",
        path="/status",
        name="getStatus",
        role=Role.VIEWER,
        handle=status,
        tag="installation",
        summary="The last hour at a glance",
        answers={200: ("Overview", "The last hour by minute, what is overdue, how fresh the answer is.")},
    ),
    Endpoint(
        method="GET",
        path="/events",
        name="listEvents",
        role=Role.VIEWER,
        handle=events,
        tag="installation",
        summary="What happens, as it happens",
        description=f"With `Accept: {MEDIA_TYPE}` a stream of server-sent events, from `Last-Event-ID` (or `after`) on,"
        " else from the last ones on. Otherwise a page of them as JSON.",
        query=(
            Param(name="after", meaning="Id of the last event that is known, or `now`: only what comes."),
            Whole(name="limit", meaning="Of a page.", low=1, high=500, default=50),
        ),
        answers={200: ("EventPage", "Events, the oldest first.")},
        patience_s=40.0,
    ),
    Endpoint(
        method="GET",
        path="/audit",
        name="listAudit",
        role=Role.VIEWER,
        handle=audit,
        tag="installation",
        summary="Who changed what, the latest first",
        description="Changes that were asked for through a server, its API or its console. The last 200,000 events are"
        " looked at; those of the last 30 days stand on the topic `events`.",
        query=(
            Param(name="job", meaning="Of this job.", example="j01m8x0000000000000"),
            Param(name="schedule", meaning="Of this schedule.", example="night-report"),
            Param(name="by", meaning="By the token of this name.", example="ops"),
            LIMIT,
            CURSOR,
        ),
        answers={200: ("AuditPage", "Changes, the latest first.")},
        lists=True,
    ),
    Endpoint(
        method="GET",
        path="/me",
        name="getMe",
        role=Role.VIEWER,
        handle=me,
        tag="access",
        summary="Who asks, and what they may",
        answers={200: ("Me", "Who asks.")},
    ),
    Endpoint(
        method="GET",
        path="/tokens",
        name="listTokens",
        role=Role.ADMIN,
        handle=list_tokens,
        tag="access",
        summary="List tokens",
        answers={200: ("Tokens", "The oldest first, without their secrets.")},
    ),
    Endpoint(
        method="POST",
        path="/tokens",
        name="createToken",
        role=Role.ADMIN,
        handle=create_token,
        tag="access",
        summary="Make a token, shown once",
        body="NewToken",
        answers={201: ("NewTokenShown", "`token` is shown here and never again.")},
    ),
    Endpoint(
        method="DELETE",
        path="/tokens/{id}",
        name="revokeToken",
        role=Role.ADMIN,
        handle=revoke_token,
        tag="access",
        summary="Revoke a token, and the sessions made with it",
        answers={200: ("Outcome", "It is good for nothing within a second, on every server.")},
        errors=(404,),
    ),
)
