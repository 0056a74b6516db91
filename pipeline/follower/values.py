"""Records as values, whoever wrote them: a reader meets everything that anybody may append."""

from __future__ import annotations

import json
from typing import Any

from pipeline import codec
from pipeline import view as views
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Ack, Command, Event, Failure, KeyState, Run
from pipeline.core.names import check_name
from pipeline.core.schedule import Schedule
from pipeline.core.times import format_instant
from pipeline.ports import Record

LINE = 300
"""Characters of an error that a list shows."""
PLACE_DIGITS = 9
"""Of a partition's number: more does not fit the client library's 32 bits."""


def readable_run(value: bytes | None) -> Run | None:
    """None also for what nobody can read: its owner moves it to `dead`, a list shows jobs."""
    try:
        return codec.RUN.decode(value) if value is not None else None
    except Undecodable:
        return None


def readable_ack(value: bytes | None) -> Ack | None:
    """The ack; None for a tombstone and for what nobody can read."""
    try:
        return codec.ACK.decode(value) if value is not None else None
    except Undecodable:
        return None


def readable_key_state(value: bytes | None) -> KeyState | None:
    """The state of a keyed job; None for a tombstone and for what nobody can read."""
    try:
        return codec.KEY_STATE.decode(value) if value is not None else None
    except Undecodable:
        return None


def readable_schedule(value: bytes | None) -> Schedule | None:
    """The state of a schedule; None for a tombstone and for what nobody can read."""
    try:
        return codec.SCHEDULE.decode(value) if value is not None else None
    except Undecodable:
        return None


def readable_event(value: bytes | None) -> Event | None:
    """The event; None for a tombstone and for what nobody can read."""
    try:
        return codec.EVENT.decode(value) if value is not None else None
    except Undecodable:
        return None


def readable_command(record: Record) -> Command | None:
    """The command of a `c/` record; None for a tombstone and for what nobody can read."""
    value = record.value()
    if value is None:
        return None
    headers = [(name, text.encode()) for name, text in headers_of(record).items()]
    try:
        return codec.decode_command(value, headers)
    except Undecodable:
        return None


def headers_of(record: Record) -> dict[str, str]:
    """The headers of a record as text, whatever bytes they hold; none if the client library cannot read them."""
    return {name: (value or b"").decode(errors="replace") for name, value in views.headers_of(record)}


def place_of(text: str) -> tuple[str, int] | None:
    """Queue and partition of a `work` header; None if it is not one of ours."""
    queue, _, number = text.rpartition("/")
    if not (number.isascii() and number.isdecimal() and len(number) <= PLACE_DIGITS):
        return None
    try:
        return check_name("queue", queue), int(number)
    except InvalidInput:
        return None


def shown_json(stored: bytes) -> Any:
    """The stored JSON; as text if it is none, or none that can be written again (NaN, a lone surrogate)."""
    try:
        value = json.loads(stored)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return stored.decode(errors="replace")
    return value


def shown_error(error: Failure | None) -> dict[str, str | None] | None:
    return None if error is None else {"type": error.type, "message": error.message, "trace": error.trace}


def error_line(error: Failure | None) -> str | None:
    """What went wrong, in one line."""
    if error is None:
        return None
    lines = error.message.splitlines()
    return f"{error.type}: {lines[0] if lines else ''}".rstrip(": ")[:LINE]


def shown_instant(ms: int) -> str:
    """Epoch ms as RFC 3339, or the bare number if it is no instant: whoever may append can store any."""
    try:
        return format_instant(ms)
    except OverflowError:
        return str(ms)
