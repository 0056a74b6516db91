"""/jobs: creating, reading and changing jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.readmodel.questions import JobsWanted
from pipeline.server.access import Principal, Role, Unauthenticated
from pipeline.server.api.outcomes import REFUSED, answer_of
from pipeline.server.body import (
    flag,
    job_request,
    mapping,
    object_of,
    required_text,
    text,
    texts,
    whole,
)
from pipeline.server.endpoint import Answer, Call, Endpoint
from pipeline.server.job_actions import BULK_LIMIT, BULK_S
from pipeline.server.limits import parsed, pieces_of, whole_body
from pipeline.server.params import CURSOR, LIMIT, STATUSES, WAIT, Instant, Pair, Param, Whole, Word
from pipeline.server.problems import Unsupported

STREAM = "application/x-ndjson"
JOB_LIMIT = 2 * 1024 * 1024
"""Bytes of the JSON of one job; the payload has a limit of its own."""
CREATED, EXISTING = 201, 200
NOT_REQUEUED = frozenset({*REFUSED, "cancelled", "stopped"})
OF_EACH = ("verb", "stop", "at", "in")
"""What a bulk change asks of each job."""
NOT_CHANGED = frozenset({*REFUSED, "cancelled", "stopped"})

FILTERS = (
    STATUSES,
    Param(name="handler", meaning="Of this handler.", example="email.send"),
    Param(name="queue", meaning="On this queue."),
    Param(name="schedule", meaning="Occurrences of this schedule."),
    Pair(name="label", meaning="With this label, name=value; may be repeated.", example="tenant=acme"),
    Param(name="key", meaning="With exactly this key.", example="invoice-42"),
    Param(name="key_prefix", meaning="With a key that begins so.", example="invoice-"),
    Instant(name="due_from", meaning="Due then or later."),
    Instant(name="due_to", meaning="Due before then."),
    Param(name="text", meaning="With this in the id, key or handler."),
)
ORDER = Word(
    name="order", meaning="By due time (default), or the latest first.", words=("due", "-due"), example="due"
)
FILTER_NAMES = tuple(param.name for param in FILTERS)
FILTER_FIELDS = (*(name for name in FILTER_NAMES if name not in ("status", "label")), "status", "labels")


def wanted_of(given: dict[str, Any]) -> JobsWanted:
    """From a query that was read."""
    return JobsWanted(
        statuses=frozenset(map(JobStatus, given.get("status", ()))),
        handler=given.get("handler"),
        queue=given.get("queue"),
        schedule=given.get("schedule"),
        labels=dict(given.get("label", ())),
        key=given.get("key"),
        key_prefix=given.get("key_prefix"),
        due_from=given.get("due_from"),
        due_to=given.get("due_to"),
        text=given.get("text"),
        order=given.get("order", "due"),
    )


def wanted_in(body: dict[str, Any]) -> JobsWanted:
    """From the `filter` of a bulk change: as a query, but `status` is an array and `labels` an object. InvalidInput."""
    given = object_of(body, FILTER_FIELDS)
    read: dict[str, Any] = {}
    for param in FILTERS:
        if param.name not in ("status", "label") and (said := text(given, param.name)) is not None:
            read[param.name] = param.read(said)
    read["status"] = [STATUSES.read(word) for word in texts(given, "status", len(STATUSES.words)) or ()]
    labels = mapping(given, "labels") or {}
    if not all(isinstance(value, str) for value in labels.values()):
        raise InvalidInput("labels", "must be an object of texts")
    read["label"] = labels.items()
    wanted = wanted_of(read)
    if wanted == JobsWanted():  # by what came out of it: a name whose value is null or empty is no condition
        raise InvalidInput("filter", "is empty: name at least one condition")
    return wanted


# -- creating ------------------------------------------------------------------------------------------------


async def create(call: Call) -> Answer:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    key = call.request.headers.get("idempotency-key")
    if kind == STREAM:
        if key is not None:
            raise InvalidInput("Idempotency-Key", "is for one job: in a stream give each line a key")
        refs = call.query.get("refs") == "true"
        with call.services.intakes.held(call.who.identity):
            done = await call.actions.create_jobs(call.who, _pieces(call), refs=refs)
        return Answer(done.view, 200, done.positions)
    data = await whole_body(call.request, JOB_LIMIT)
    if kind != "application/json":
        raise Unsupported(f"the body must be application/json or {STREAM}, not {kind[:80] or 'of no type'}")
    request = job_request(await parsed(data))
    done = await call.actions.create_job(call.who, request, wait=call.wait, idempotency_key=key)
    status = CREATED if done.view["status"] == "created" else EXISTING
    answer = answer_of(done, status=status)
    return answer._replace(headers={"Location": f"/api/v1/jobs/{done.view['id']}"})


async def _pieces(call: Call) -> AsyncIterator[bytes]:
    """Of a stream, which may outlast the token. Unauthenticated; as `pieces_of`."""
    async for piece in pieces_of(call.request):
        if not call.still_let_in:
            raise Unauthenticated("the token was revoked, or has expired: what came before is stored")
        yield piece


# -- reading -------------------------------------------------------------------------------------------------


async def list_(call: Call) -> Answer:
    wanted = _theirs(call)
    page = await call.ask(
        call.services.questions.jobs,
        wanted,
        limit=call.query.get("limit", 50),
        cursor=call.query.get("cursor"),
    )
    return Answer(page_view(page, call.who))


def _theirs(call: Call) -> JobsWanted:
    """What the query asks for, of the queues of who asks. Forbidden if that is another's."""
    wanted = wanted_of(dict(call.query))
    if wanted.queue is not None:
        call.who.require_queue(wanted.queue)
    return replace(wanted, queues=call.who.queues)


def page_view(page: Any, who: Principal) -> dict[str, Any]:
    """A page as JSON. Who is limited to some queues is not told how much there is on others."""
    scanned = {"scanned": page.scanned} if who.queues is None else {}
    return {"items": list(page.rows), "cursor": page.cursor, **scanned}


async def count(call: Call) -> Answer:
    wanted = _theirs(call)
    number, capped = await call.look(
        call.services.questions.count, wanted, at_most=call.query.get("at_most", 10_000)
    )
    return Answer({"count": number, "capped": capped})


async def get(call: Call) -> Answer:
    view = await call.ask(call.services.questions.job, call.path["id"])
    call.who.require_queue(view.get("queue"))
    return Answer(view)


async def why(call: Call) -> Answer:
    if call.who.queues is not None:
        await get(call)
    return Answer(await call.look(call.services.questions.why, call.path["id"]))


# -- changing ------------------------------------------------------------------------------------------------


async def cancel(call: Call) -> Answer:
    body = call.object("stop")
    done = await call.actions.cancel(call.who, call.path["id"], stop=flag(body, "stop"), wait=call.wait)
    return answer_of(done)


async def reschedule(call: Call) -> Answer:
    body = call.object("at", "in")
    if body.get("at") is not None and body.get("in") is not None:
        raise InvalidInput("at", "excludes in: give one of them")
    done = await call.actions.reschedule(
        call.who, call.path["id"], at=text(body, "at"), in_=text(body, "in"), wait=call.wait
    )
    return answer_of(done, refused=NOT_CHANGED)


async def update(call: Call) -> Answer:
    body = call.object("payload")
    if "payload" not in body:
        raise InvalidInput("payload", "missing")
    payload = mapping(body, "payload")
    if payload is None:
        raise InvalidInput("payload", "must be a JSON object, not null")
    done = await call.actions.update_payload(call.who, call.path["id"], payload, wait=call.wait)
    return answer_of(done, refused=NOT_CHANGED)


async def requeue(call: Call) -> Answer:
    with call.once() as key:
        done = await call.actions.requeue(call.who, call.path["id"], wait=call.wait, idempotency_key=key)
    return answer_of(done, refused=NOT_REQUEUED)


async def change_many(call: Call) -> Answer:
    body = call.object("verb", "ids", "filter", "stop", "at", "in", "limit", "dry_run")
    given = mapping(body, "filter")
    if given is not None and "idempotency-key" in call.request.headers:
        raise InvalidInput(
            "Idempotency-Key",
            "is for ids: when it is asked again a filter may match other jobs. Give the ids, or leave it out",
        )
    with call.once({name: body.get(name) for name in OF_EACH}) as key:
        done = await call.actions.change_jobs(
            call.who,
            required_text(body, "verb"),
            ids=texts(body, "ids", BULK_LIMIT),
            wanted=None if given is None else wanted_in(given),
            stop=flag(body, "stop"),
            at=text(body, "at"),
            in_=text(body, "in"),
            limit=whole(body, "limit", 1, BULK_LIMIT) or BULK_LIMIT,
            dry_run=flag(body, "dry_run"),
            wait=call.wait,
            idempotency_key=key,
        )
    return Answer(done.view, 200, done.positions)


_UNHEARD = "No owner answered in time: it is stored, and will be done."
_CHANGE_ERRORS = (404, 409)
REFS = Word(
    name="refs",
    meaning="Of a stream: tell the reference of each job too; 10,000 lines at most then.",
    words=("true", "false"),
    example="true",
)
AT_MOST = Whole(name="at_most", meaning="Count no further.", low=1, high=1_000_000, default=10_000)

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/jobs",
        name="createJobs",
        role=Role.OPERATOR,
        handle=create,
        tag="jobs",
        summary="Create a job, or many from a stream",
        description="Answers once the store has acknowledged the record: from then on the job is not lost. With a `key`"
        " the owner of the key answers: 201 `created`; 200 `existing`, `replaced`, `debounced`; 409 `rejected`; 202"
        " `accepted` if it does not in time.\n\n"
        "As `application/x-ndjson` the body is one job a line, of any length: a bad line is told by its number and left"
        " out, and all others are stored. Nobody waits for the owners of keys then.\n\n"
        "`Idempotency-Key`: the same request again within 24 hours gives the same job (200 `existing`), whichever"
        " server it comes to; another request with the same key is 422. The job has the key"
        " `http/<who>/<Idempotency-Key>`.",
        query=(WAIT, REFS),
        body="NewJob",
        answers={
            201: ("JobRef", "The job is stored."),
            200: ("JobRefOrCounts", "What became of the job that holds the key; or the counts of a stream."),
            202: ("JobRef", _UNHEARD),
        },
        errors=(409, 413, 415),
        stream=True,
        idempotent=True,
    ),
    Endpoint(
        method="GET",
        path="/jobs",
        name="listJobs",
        role=Role.VIEWER,
        handle=list_,
        tag="jobs",
        summary="List jobs",
        description="A page may hold fewer rows than `limit`, even none, and a `cursor`: then so many were looked at"
        " (`scanned`) without finding more; go on with the cursor.",
        query=(*FILTERS, ORDER, LIMIT, CURSOR),
        whole=True,
        answers={200: ("JobPage", "Jobs.")},
    ),
    Endpoint(
        method="GET",
        path="/jobs/count",
        name="countJobs",
        role=Role.VIEWER,
        handle=count,
        tag="jobs",
        summary="Count jobs",
        query=(*FILTERS, AT_MOST),
        whole=True,
        answers={200: ("Count", "How many match; `capped`: at least so many.")},
    ),
    Endpoint(
        method="POST",
        path="/jobs/bulk",
        name="changeJobs",
        role=Role.OPERATOR,
        handle=change_many,
        tag="jobs",
        summary="Cancel, reschedule or requeue many",
        description="Of `ids`, or of all that match `filter`; with `dry_run` they are only counted. What it does not"
        f" come to within {BULK_S:g} s is left alone: `left` counts it, and `left_ids` can be sent again as `ids`.\n\n"
        "`Idempotency-Key`, with `ids` only: it counts for each job, so `ids` may be fewer or more the next time. What"
        " was done to a job under it within half an hour is answered again, and not done again, whichever server it"
        " comes to. Asking for something else under the same key is 422 on the server that has heard of it, and"
        " done on others.",
        query=(WAIT,),
        body="BulkChange",
        answers={200: ("BulkDone", "What became of them, counted.")},
        errors=(409,),
        lists=True,
        idempotent=True,
        patience_s=100.0,
    ),
    Endpoint(
        method="GET",
        path="/jobs/{id}",
        name="getJob",
        role=Role.VIEWER,
        handle=get,
        tag="jobs",
        summary="Get a job with its runs and attempts",
        description="`payload` is JSON text, so that big integers stay exact.",
        answers={200: ("Job", "The job.")},
        errors=(404,),
    ),
    Endpoint(
        method="GET",
        path="/jobs/{id}/why",
        name="whyJob",
        role=Role.VIEWER,
        handle=why,
        tag="jobs",
        summary="Tell what a job waits for",
        answers={200: ("Why", "Why it stands where it stands.")},
        errors=(404,),
    ),
    Endpoint(
        method="POST",
        path="/jobs/{id}/cancel",
        name="cancelJob",
        role=Role.OPERATOR,
        handle=cancel,
        tag="jobs",
        summary="Cancel a job, or stop its run",
        description="`cancelled`: it did not fire and will not. `stopped`: no further run will start. `stopping`, with"
        " `stop`: its worker is told. 409 `too_late`: it fired, or has ended.",
        query=(WAIT,),
        body="Cancel",
        answers={200: ("Outcome", "Done."), 202: ("Outcome", _UNHEARD)},
        errors=_CHANGE_ERRORS,
    ),
    Endpoint(
        method="POST",
        path="/jobs/{id}/reschedule",
        name="rescheduleJob",
        role=Role.OPERATOR,
        handle=reschedule,
        tag="jobs",
        summary="Have a job, or its pending retry, due at another time",
        query=(WAIT,),
        body="Reschedule",
        answers={200: ("Outcome", "Done."), 202: ("Outcome", _UNHEARD)},
        errors=_CHANGE_ERRORS,
    ),
    Endpoint(
        method="PATCH",
        path="/jobs/{id}",
        name="updateJob",
        role=Role.OPERATOR,
        handle=update,
        tag="jobs",
        summary="Replace the payload of a job that has not fired",
        query=(WAIT,),
        body="NewPayload",
        answers={200: ("Outcome", "Done."), 202: ("Outcome", _UNHEARD)},
        errors=_CHANGE_ERRORS,
    ),
    Endpoint(
        method="POST",
        path="/jobs/{id}/requeue",
        name="requeueJob",
        role=Role.OPERATOR,
        handle=requeue,
        tag="jobs",
        summary="Run a job once more, at once",
        description="Its failures are forgotten. `Idempotency-Key`: the same request again within half an hour is"
        " answered again, and not done again.",
        query=(WAIT,),
        answers={200: ("Outcome", "Done."), 202: ("Outcome", _UNHEARD)},
        errors=_CHANGE_ERRORS,
        idempotent=True,
    ),
)
