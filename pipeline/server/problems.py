"""Errors as RFC 9457 problems: one line of detail, the fields that are wrong, never a traceback (docs/api.md)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.responses import Response

from pipeline.core.errors import DuelineError, InvalidInput, NotAllowed, NotFound, Refused, StoreUnreachable
from pipeline.server.access import Forbidden, Unauthenticated
from pipeline.server.body import Malformed, field_of, to_json
from pipeline.server.once import Conflict
from pipeline.server.schedule_changes import Stale
from pipeline.server.threads import Busy

MEDIA_TYPE = "application/problem+json"
RETRY_S = 2
"""When a store that is away is worth another try."""


class TooLarge(DuelineError):
    """Send less in one body."""


class TooSlow(DuelineError):
    """Send the body without such pauses, or ask for less."""


class TooMany(DuelineError):
    """Ask less often; `retry_s`: when again."""

    def __init__(self, text: str, retry_s: int) -> None:
        self.retry_s = retry_s
        super().__init__(text)


class Behind(StoreUnreachable):
    """Ask again: this server, or the owner, has not heard of all there is."""


class NotDone(Refused):
    """The owner's answer was not what was asked for; `outcome` is its word."""

    def __init__(self, text: str, outcome: str) -> None:
        self.outcome = outcome
        super().__init__(text)


class Unsupported(DuelineError):
    """Send application/json."""


class Kind(NamedTuple):
    """What an error means over HTTP. `word` stands in the problem's type."""

    status: HTTPStatus
    word: str
    title: str


KINDS: Mapping[type[DuelineError], Kind] = {
    Malformed: Kind(HTTPStatus.BAD_REQUEST, "malformed", "The body cannot be read"),
    Unauthenticated: Kind(HTTPStatus.UNAUTHORIZED, "unauthenticated", "Authentication required"),
    Forbidden: Kind(HTTPStatus.FORBIDDEN, "forbidden", "Not allowed"),
    NotAllowed: Kind(HTTPStatus.FORBIDDEN, "forbidden", "Not allowed"),
    NotFound: Kind(HTTPStatus.NOT_FOUND, "not-found", "Nothing has this id"),
    TooSlow: Kind(HTTPStatus.REQUEST_TIMEOUT, "too-slow", "It took too long"),
    Refused: Kind(HTTPStatus.CONFLICT, "refused", "Its state forbids it"),
    Stale: Kind(HTTPStatus.PRECONDITION_FAILED, "stale", "Changed since it was read"),
    TooLarge: Kind(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", "The body is too large"),
    Unsupported: Kind(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported", "Content type not supported"),
    InvalidInput: Kind(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid-input", "A field is wrong"),
    Conflict: Kind(
        HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-conflict", "Idempotency-Key used for another request"
    ),
    TooMany: Kind(HTTPStatus.TOO_MANY_REQUESTS, "too-many", "Too many requests"),
    StoreUnreachable: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "store-unreachable", "The store does not answer"),
    Behind: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "behind", "Not all is known here yet"),
    Busy: Kind(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "The server is busy"),
}
FAILED = Kind(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "The server failed")
UNKNOWN_PATH = Kind(HTTPStatus.NOT_FOUND, "unknown-path", "There is no such path")
UNKNOWN_METHOD = Kind(HTTPStatus.METHOD_NOT_ALLOWED, "unknown-method", "The path does not take this method")


def kind_of(error: BaseException) -> Kind:
    """By the nearest class that is known."""
    found = (KINDS[each] for each in type(error).__mro__ if each in KINDS)
    return next(found, FAILED)


def problem_of(error: Exception) -> Response:
    """The answer to who caused it. What is no error of ours says nothing of itself."""
    kind = kind_of(error)
    headers: dict[str, str] = {}
    if kind is FAILED:
        return problem(kind, "the log of the server has the details")
    errors, more = None, {}
    match error:
        case InvalidInput():
            errors = [{"field": field_of(error), "message": _line(error.problem)}]
        case NotDone():
            more["outcome"] = error.outcome
        case Unauthenticated():
            headers["WWW-Authenticate"] = "Bearer"
        case StoreUnreachable() | Busy():
            headers["Retry-After"] = str(RETRY_S)
        case TooLarge() | TooSlow():
            headers["Connection"] = "close"  # what is left of the body is not waited for
        case TooMany():
            headers["Retry-After"] = str(error.retry_s)
        case _:
            pass
    detail = f"{field_of(error)}: {error.problem}" if isinstance(error, InvalidInput) else str(error)
    return problem(kind, detail, errors=errors, headers=headers, **more)


def problem(
    kind: Kind,
    detail: str,
    *,
    errors: list[dict[str, str]] | None = None,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Response:
    body: dict[str, Any] = {
        "type": f"urn:dueline:problem:{kind.word}",
        "title": kind.title,
        "status": int(kind.status),
        "detail": _line(detail),
        **more,
    }
    if errors is not None:
        body["errors"] = errors
    return Response(to_json(body), int(kind.status), headers, MEDIA_TYPE)


def _line(text: str) -> str:
    """One line of bounded length, whatever a caller put into it."""
    return " ".join(text.split())[:500]
