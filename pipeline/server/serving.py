"""The way of one request through the API: who asks, may they, what they send, the answer or the problem.

Every endpoint of the table goes this way, so roles, limits and time-outs are decided here and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from contextlib import nullcontext
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from pipeline.core.errors import DuelineError, InvalidInput, NotFound, StoreUnreachable
from pipeline.ports import Events
from pipeline.readmodel.questions import Position, Questions
from pipeline.readmodel.tale import schedule_of
from pipeline.server.access import (
    CSRF_HEADER,
    SESSION_COOKIE,
    Principal,
    Role,
    bearer_of,
    check_csrf,
)
from pipeline.server.body import to_json
from pipeline.server.endpoint import Answer, Call, Endpoint, Services
from pipeline.server.limits import Rates, Unheard, parsed, whole_body
from pipeline.server.metrics import ServerMetrics
from pipeline.server.params import read_query
from pipeline.server.problems import FAILED, Behind, TooSlow, Unsupported, kind_of, problem_of
from pipeline.server.recent import HEADER, STALE, heard, read_places, written

CLOSED = 499
"""What is counted where the client went away: nobody reads an answer."""
LAG_MS = 10_000
"""A read model that is further behind is not ready to answer."""


class Serving:
    """Serves endpoints. `body_limit`: bytes of one JSON body."""

    def __init__(
        self,
        services: Services,
        *,
        rates: Rates,
        body_limit: int,
        events: Events,
        metrics: ServerMetrics,
    ) -> None:
        self._services = services
        self._rates = rates
        self._unheard = Unheard()
        self._body_limit = body_limit
        self._prefix = services.names.prefix
        self._events = events
        self._metrics = metrics

    async def serve(self, endpoint: Endpoint, request: Request) -> Response:
        began = time.monotonic()
        response = await self._answer(endpoint, request)
        response.raw_headers += endpoint.headers
        self._metrics.answered(endpoint.name, response.status_code, time.monotonic() - began)
        return response

    async def _answer(self, endpoint: Endpoint, request: Request) -> Response:
        limit = None if endpoint.stream else asyncio.timeout(endpoint.patience_s)
        try:
            async with limit or nullcontext():
                return await self._served(endpoint, request, await self._who(endpoint, request))
        except ClientDisconnect:
            return Response(status_code=CLOSED)
        except asyncio.CancelledError as error:
            if not self._services.stopping():
                raise
            return problem_of(
                StoreUnreachable(f"this server ends, and what was asked for may be done: {error}")
            )
        except TimeoutError as error:
            if limit is None or not limit.expired():
                return self._failed(endpoint, error)
            return problem_of(TooSlow(f"it was not done within {endpoint.patience_s:g} s"))
        except DuelineError as error:
            return problem_of(error) if kind_of(error) is not FAILED else self._failed(endpoint, error)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the client learns no more than that
            return self._failed(endpoint, error)

    def _failed(self, endpoint: Endpoint, error: Exception) -> Response:
        trace = "".join(traceback.format_exception(error))
        self._events.on("request_failed", endpoint=endpoint.name, error=str(error), trace=trace)
        return problem_of(RuntimeError())

    # -- who asks ---------------------------------------------------------------------------------------------

    async def _who(self, endpoint: Endpoint, request: Request) -> Principal:
        """Raises Unauthenticated, Forbidden, TooMany, StoreUnreachable."""
        if endpoint.role is None:
            return NOBODY
        bearer, cookie = bearer_of(request.headers), request.cookies.get(SESSION_COOKIE)
        who = await self._services.access.admitted(bearer=bearer, session=cookie)
        self._rates.take(who.identity)
        who.require(endpoint.role)
        if endpoint.changes and bearer is None and cookie is not None and not self._services.access.open:
            check_csrf(cookie, request.headers.get(CSRF_HEADER))
        return who

    # -- what is asked ----------------------------------------------------------------------------------------

    async def _served(self, endpoint: Endpoint, request: Request, who: Principal) -> Response:
        if endpoint.changes and not endpoint.etag and "if-match" in request.headers:
            raise InvalidInput("If-Match", "is not heeded here: PATCH of a schedule takes it")
        query = read_query(request.scope["query_string"], endpoint.query)
        body = None if endpoint.stream else await self._body(endpoint, request)
        call = Call(services=self._services, request=request, who=who, query=query, body=body)
        if endpoint.whole:
            self._require_ready()
        fresh = endpoint.role is None or await self._caught_up(
            call, many=endpoint.lists or not endpoint.changes
        )
        try:
            answer = await endpoint.handle(call)
        except NotFound as error:
            if not fresh:  # it may be there, and not be known here yet
                raise Behind(f"{error}; what was written last is not known here yet") from error
            if self._unheard.holds(call.path.get("id")):
                raise Behind(f"{error}; it was asked for, and no owner has answered yet") from error
            raise
        if isinstance(answer, Response):
            return answer
        if answer.status == HTTPStatus.ACCEPTED and isinstance(answer.view.get("id"), str):
            self._unheard.note(answer.view["id"])
        headers = dict(answer.headers or {})
        if answer.positions:
            name = answer.view.get("id") if isinstance(answer.view, dict) else None
            self._services.recent.note(who.identity, answer.positions, name)
            headers[HEADER] = written(answer.positions, self._prefix)
        if not fresh:
            headers[STALE] = "true"
        return answered(answer._replace(headers=headers))

    def _require_ready(self) -> None:
        """Behind: a part of a list, or of a count, looks like all of it."""
        freshness = self._services.questions.freshness()
        if not freshness.ready:
            reason = freshness.problem or f"it is {freshness.behind} records behind"
            raise Behind(f"this server has not caught up since it started: {reason}")

    async def _body(self, endpoint: Endpoint, request: Request) -> Any:
        """What its JSON says; None if there is none, or none is taken. Raises Malformed, InvalidInput, TooLarge,
        TooSlow, Unsupported."""
        data = await whole_body(request, self._body_limit)
        if endpoint.body is None:
            if data:
                raise InvalidInput("body", "none is taken here")
            return None
        if not data:
            return None
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Unsupported(f"the body must be application/json, not {kind[:80] or 'of no type'}")
        return await parsed(data)

    async def _caught_up(self, call: Call, *, many: bool) -> bool:
        """Wait until the read model has heard of what who asks has written: about the id in the path, else, if `many`
        are asked for, of all. False: it has not, in the time there is, or it has never caught up yet, or lags."""
        questions, recent = self._services.questions, self._services.recent
        awaited: list[Position] = []
        if (given := call.request.headers.get(HEADER)) is not None:
            awaited += read_places(given, self._prefix)
        name = call.path.get("id")
        writer = call.who.identity
        if name is not None:
            awaited += recent.of_name(name)
            if (schedule := schedule_of(name)) is not None:  # whose change is one of its occurrences too
                awaited += recent.of_name(schedule)
        elif many:
            awaited += recent.of_writer(writer)
        ready = not many or _is_fresh(questions)
        return (not awaited or await heard(questions, awaited)) and ready


def _is_fresh(questions: Questions) -> bool:
    freshness = questions.freshness()
    return freshness.ready and freshness.age_ms <= LAG_MS


def answered(answer: Answer) -> Response:
    """As JSON."""
    if answer.view is None:
        return Response(status_code=answer.status, headers=answer.headers)
    return Response(to_json(answer.view), answer.status, answer.headers, "application/json")


NOBODY = Principal(name="nobody", role=Role.VIEWER, queues=frozenset())
"""Who asks where nobody has to say."""
