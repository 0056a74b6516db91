"""/dead, /replays and /buckets: what went wrong, and running it again."""

from __future__ import annotations

import math
from collections.abc import Callable

from pipeline.client.commands import check_id
from pipeline.core.errors import InvalidInput
from pipeline.core.times import parse_duration, parse_instant
from pipeline.follower import WantedLetters
from pipeline.readmodel.questions import Page
from pipeline.server.access import Role
from pipeline.server.api.jobs import page_view
from pipeline.server.api.outcomes import ACCEPTED
from pipeline.server.body import flag, mapping, number, required_text, text, texts, whole
from pipeline.server.endpoint import Answer, Call, Endpoint
from pipeline.server.failure_actions import REPLAY_LIMIT
from pipeline.server.job_actions import BULK_LIMIT, BULK_S
from pipeline.server.params import CURSOR, LIMIT, WAIT, Instant, Length, Param
from pipeline.server.replay_changes import ONLY

BUCKETS = 2_000
"""Buckets of one answer at most."""
FASTEST, SLOWEST = 1_000_000.0, 0.01
MOST_REPLAYED = 100_000_000
_WIDTH = "1m"
_TEXTS = ("handler", "queue", "reason", "error", "group")
"""What dead letters are chosen by."""


async def letters(call: Call) -> Answer:
    return await _page_of_letters(call, call.services.questions.letters)


async def letter_groups(call: Call) -> Answer:
    return await _page_of_letters(call, call.services.questions.letter_groups)


async def _page_of_letters(call: Call, question: Callable[..., Page]) -> Answer:
    query = dict(call.query)
    paging = {"limit": query.pop("limit", 50), "cursor": query.pop("cursor", None)}
    if "queue" in query:
        call.who.require_queue(query["queue"])
    wanted = WantedLetters(**query, queues=call.who.queues)
    return Answer(page_view(await call.ask(question, wanted, **paging), call.who))


async def requeue(call: Call) -> Answer:
    body = call.object("ids", *_TEXTS, "since", "everything", "payload", "dry_run")
    ids, since = texts(body, "ids", BULK_LIMIT), text(body, "since")
    for id_ in ids or ():
        check_id(id_)
    wanted = WantedLetters(
        ids=None if ids is None else frozenset(ids),
        since=None if since is None else parse_instant("since", since),
        **{name: text(body, name) for name in _TEXTS},  # type: ignore[arg-type]  # texts all
    )
    payload = mapping(body, "payload")
    with call.once(payload) as key:
        done = await call.actions.requeue_letters(
            call.who,
            wanted,
            everything=flag(body, "everything"),
            payload=payload,
            dry_run=flag(body, "dry_run"),
            wait=call.wait,
            idempotency_key=key,
        )
    return Answer(done.view)


async def replays(call: Call) -> Answer:
    found = await call.ask(call.services.questions.replays)
    seen = call.who
    return Answer({"items": [each for each in found if seen.queues is None or each["queue"] in seen.queues]})


async def replay(call: Call) -> Answer:
    view = await call.ask(call.services.questions.replay, call.path["id"])
    if call.who.queues is not None and view["queue"] is None:
        call.who.require_all_queues()
    call.who.require_queue(view["queue"])
    return Answer(view)


async def start(call: Call) -> Answer:
    if "idempotency-key" in call.request.headers:  # ignoring it would break what whoever sends it relies on
        raise InvalidInput(
            "Idempotency-Key", "is not heeded here: before you ask again, look at GET /replays"
        )
    body = call.object(
        *("from", "to", "only", "handler", "schedule", "queue", "labels", "key_prefix"),
        *("rate", "limit", "force", "beside", "dry_run"),
    )
    labels = mapping(body, "labels")
    if labels is not None and not all(isinstance(value, str) for value in labels.values()):
        raise InvalidInput("labels", "must be an object of texts")
    dry_run = flag(body, "dry_run")
    done = await call.actions.start_replay(
        call.who,
        from_=required_text(body, "from"),
        to=text(body, "to"),
        only=text(body, "only", "failed") or "failed",
        handler=text(body, "handler"),
        schedule=text(body, "schedule"),
        queue=text(body, "queue"),
        labels=labels,
        key_prefix=text(body, "key_prefix"),
        rate=number(body, "rate", SLOWEST, FASTEST),
        limit=whole(body, "limit", 1, MOST_REPLAYED) or REPLAY_LIMIT,
        force=flag(body, "force"),
        beside=flag(body, "beside"),
        dry_run=dry_run,
    )
    id_ = done.view["id"]
    if id_ is None:
        return Answer(done.view)
    return Answer(done.view, ACCEPTED, headers={"Location": f"/api/v1/replays/{id_}"})


async def cancel_replay(call: Call) -> Answer:
    return Answer((await call.actions.cancel_replay(call.who, call.path["id"])).view)


async def resume_replay(call: Call) -> Answer:
    body = call.object("rate", "force")
    done = await call.actions.resume_replay(
        call.who,
        call.path["id"],
        rate=number(body, "rate", SLOWEST, FASTEST),
        force=flag(body, "force"),
    )
    return Answer(done.view, ACCEPTED)


async def buckets(call: Call) -> Answer:
    call.who.require_all_queues()
    since, until = call.query.get("from"), call.query.get("to")
    if since is None or until is None:
        raise InvalidInput("from" if since is None else "to", "missing")
    width = parse_duration("width", call.query.get("width", _WIDTH))
    if until <= since:
        raise InvalidInput("to", "is not after from")
    if math.ceil((until - since) / width) > BUCKETS:
        raise InvalidInput("width", f"makes more than {BUCKETS} buckets: choose a larger one")
    return Answer({"items": list(await call.look(call.services.questions.buckets, since, until, width))})


_LETTERS = (
    Param(name="handler", meaning="Of this handler."),
    Param(name="queue", meaning="On this queue."),
    Param(name="reason", meaning="With this reason.", example="max_attempts"),
    Param(name="error", meaning="With an error of this type.", example="ConnectionError"),
    Param(name="group", meaning="Of this group: as `GET /dead/groups` names it.", example="5f0c3a9b21d7"),
    Instant(name="since", meaning="That died then or later."),
)
ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/dead",
        name="listDeadLetters",
        role=Role.VIEWER,
        handle=letters,
        tag="dead letters",
        summary="List dead letters, the latest first",
        query=(*_LETTERS, LIMIT, CURSOR),
        whole=True,
        answers={200: ("DeadPage", "Dead letters.")},
    ),
    Endpoint(
        method="GET",
        path="/dead/groups",
        name="groupDeadLetters",
        role=Role.VIEWER,
        handle=letter_groups,
        tag="dead letters",
        summary="Count dead letters by handler and error",
        description="Alike are those of one handler, with the same reason, type of error and first line of its message;"
        " ids, instants, fractions and numbers of four digits and more are `#` in it. A page counts as many letters as"
        " can be looked at at once, the latest first (`scanned`); while it has a `cursor` there are more, of the same"
        " groups too: add them up by `group`. `GET /dead` and `POST /dead/requeue` take a `group`.",
        query=(*_LETTERS, LIMIT, CURSOR),
        whole=True,
        answers={200: ("DeadGroupPage", "The largest first.")},
    ),
    Endpoint(
        method="POST",
        path="/dead/requeue",
        name="requeueDeadLetters",
        role=Role.OPERATOR,
        handle=requeue,
        tag="dead letters",
        summary="Run dead jobs once more",
        description="Those named by `ids`, or all that match the rest, or `everything`. Safe to repeat:"
        " no letter is requeued twice. With `dry_run` they are only counted. What it does not come to within"
        f" {BULK_S:g} s is left alone: `left` counts it; ask again. A job that has died again has a new letter:"
        " with the same `Idempotency-Key` within half an hour it is left alone. `not_found`: ids that have no letter,"
        " also because they were requeued before.",
        idempotent=True,
        query=(WAIT,),
        body="RequeueDead",
        answers={200: ("DeadRequeued", "What became of them, counted.")},
        patience_s=150.0,
    ),
    Endpoint(
        method="GET",
        path="/replays",
        name="listReplays",
        role=Role.VIEWER,
        handle=replays,
        tag="replays",
        summary="List the replays of the last 30 days",
        whole=True,
        answers={200: ("Replays", "The latest first.")},
    ),
    Endpoint(
        method="POST",
        path="/replays",
        name="startReplay",
        role=Role.OPERATOR,
        handle=start,
        tag="replays",
        summary="Run again what failed or was lost in a window of due time",
        description="The window is looked through first; with `dry_run` that is all. Then the replay is under way (202)"
        " and goes on by itself: look at it by its id. Asked for again while it is not finished and its process is"
        f" gone, it goes on. `only`: {', '.join(ONLY)}.",
        body="NewReplay",
        answers={
            200: ("ReplayCounted", "Counted; or nothing matches."),
            202: ("ReplayCounted", "It is under way."),
        },
        errors=(409,),
        patience_s=90.0,
    ),
    Endpoint(
        method="GET",
        path="/replays/{id}",
        name="getReplay",
        role=Role.VIEWER,
        handle=replay,
        tag="replays",
        summary="Get a replay: who asked, for what, how far it is",
        answers={200: ("Replay", "The replay.")},
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path="/replays/{id}/cancel",
        name="cancelReplay",
        role=Role.OPERATOR,
        handle=cancel_replay,
        tag="replays",
        summary="End a replay where it stands",
        answers={200: ("Outcome", "`cancelled`, or `cancelling`: its process is told.")},
        errors=(404, 409),
    ),
    Endpoint(
        method="POST",
        path="/replays/{id}/resume",
        name="resumeReplay",
        role=Role.OPERATOR,
        handle=resume_replay,
        tag="replays",
        summary="Go on with a replay that was interrupted",
        body="ResumeReplay",
        answers={202: ("ReplayCounted", "It is under way.")},
        errors=(404, 409),
        patience_s=90.0,
    ),
    Endpoint(
        method="GET",
        path="/buckets",
        name="listBuckets",
        role=Role.VIEWER,
        handle=buckets,
        tag="replays",
        summary="Count jobs by bucket of due time and status",
        query=(
            Instant(name="from", meaning="The minute of the first due time that counts. Required."),
            Instant(
                name="to", meaning="The first that counts no more. Required.", example="2030-01-31T10:30:00Z"
            ),
            Length(
                name="width",
                meaning=f"Width of a bucket; default {_WIDTH}. At most {BUCKETS} buckets.",
                example=_WIDTH,
                low_ms=1_000,
                high_ms=366 * 86_400_000,
            ),
        ),
        whole=True,
        answers={200: ("Buckets", "Empty ones are left out.")},
    ),
)
