"""What a user hands to `dueline job`: JSON, files, name=value pairs, and the names of options in errors."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import click

from pipeline.core.errors import InvalidInput

LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of a payload, and of one line of `job create --file`: no more is ever held at once."""


def pair(field: str, text: str) -> tuple[str, str]:
    """The two halves of `name=value`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(field, f"{text!r} is not name=value")
    return name, value


def payload(given: str) -> Any:
    """The JSON of `--payload JSON|@FILE|-`."""
    return parse("payload", _payload_text(given))


def _payload_text(given: str) -> str | bytes:
    if given != "-" and not given.startswith("@"):
        return given
    with opened("payload", given.removeprefix("@")) as stream:
        text = stream.read(LINE_LIMIT)
    if len(text) == LINE_LIMIT:
        raise InvalidInput("payload", f"is longer than {LINE_LIMIT} bytes")
    return text


def opened(field: str, path: str) -> IO[bytes]:
    """The file, or stdin for `-`."""
    try:
        return click.open_file(path, "rb")
    except OSError as error:
        raise InvalidInput(field, f"cannot read {path}: {error.strerror}") from error


def parse(field: str, text: str | bytes) -> Any:
    """`text` as JSON."""
    try:
        return json.loads(text, object_pairs_hook=partial(_object, field))
    except RecursionError:
        raise InvalidInput(field, "nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error


def _object(field: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One JSON object. A name twice is refused: which of its values was meant, nobody can tell."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidInput(field, f"has the name {twice!r} twice in one object")
    return found


def option(field: str) -> str:
    """What the user calls a field here; anything else, such as a variable, keeps its name."""
    return _OPTIONS.get(field.partition(".")[0], field)


@contextmanager
def named_as_options() -> Iterator[None]:
    """Errors name the option instead of the field."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(option(error.field), error.problem) from error


_OPTIONS = {
    "id": "ID",
    "job_id": "ID",
    "handler": "HANDLER",
    "payload": "--payload",
    "at": "--at",
    "in_": "--in",
    "due_at": "--at",
    "idempotency_key": "--idempotency-key",
    "queue": "--queue",
    "max_attempts": "--max-attempts",
    "timeout": "--timeout",
    "serial": "--serial",
    "labels": "--label",
    "headers": "--header",
    "key": "--key",
    "unique": "--unique",
    "on_conflict": "--on-conflict",
    "spread": "--spread",
    "wait": "--wait",
    "priority": "--priority",
    "reason": "--reason",
}
