"""A payload as it is typed. Pure."""

from __future__ import annotations

from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.server.body import Malformed, parse_json
from pipeline.server.console.words import sendable

FIELD = "payload"


def object_of(text: str) -> dict[str, Any]:
    """By the rules of the API, which refuses a name that stands twice. InvalidInput('payload')."""
    try:
        value = parse_json(sendable(text).encode())
    except Malformed as error:
        raise InvalidInput(FIELD, str(error).removeprefix("the body ")) from None
    except InvalidInput as error:
        raise InvalidInput(FIELD, f"{error.field}: {error.problem}".removeprefix("body: ")) from None
    if not isinstance(value, dict):
        raise InvalidInput(FIELD, "must be an object, such as {}")
    return value
