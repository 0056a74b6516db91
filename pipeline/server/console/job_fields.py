"""The fields of the form for a new job: what they say as a request, and what is wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.times import parse_duration, parse_instant
from pipeline.server.console.payload import object_of

WHEN = (("now", "now"), ("in", "after a time from now"), ("at", "at an instant"))
"""What the field `when` may say, with its words."""
LABELS = {
    "handler": "Handler",
    "queue": "Queue",
    "when": "When",
    "in": "How long from now",
    "at": "Instant",
    "key": "Key",
    "payload": "Payload",
}
NOW = "0s"
Problems = dict[str, str]


def request_of(texts: Mapping[str, str]) -> tuple[dict[str, Any], Problems]:
    """A request as of `Dueline.schedule`, and by field what is wrong. Fields that are empty are left to their default;
    of `in` and `at` the one counts that `when` names."""
    request: dict[str, Any] = {name: texts[name] for name in ("handler", "queue", "key") if texts[name]}
    problems: Problems = {} if texts["handler"] else {"handler": "is required"}
    reads: list[tuple[str, str, Callable[[str], Any]]] = [
        ("payload", "payload", lambda text: object_of(text or "{}"))
    ]
    match texts["when"]:
        case "in":
            reads.append(("in", "in_", _length))
        case "at":
            reads.append(("at", "at", _instant))
        case _:
            request["in_"] = NOW  # of neither a request would be refused
    for field, option, read in reads:
        try:
            request[option] = read(texts[field])
        except InvalidInput as error:
            problems[field] = error.problem
    return request, problems


def field_of(error: InvalidInput) -> str:
    """The field that an error of the request is about."""
    return error.field.partition(".")[0].removesuffix("_")


def _length(text: str) -> str:
    parse_duration("in", _given(text, "in"))
    return text


def _instant(text: str) -> str:
    parse_instant("at", _given(text, "at"))
    return text


def _given(text: str, field: str) -> str:
    if not text:
        raise InvalidInput(field, "is required")
    return text
