"""What a worker and the processes of its pool say to each other: a JSON object and some byte strings at a time.

Nothing that is read can run code: no pickle. A frame is two lengths (32 bit, big-endian), the JSON object, and the
byte strings one after the other, whose lengths the object holds under `sizes` (None = there is none).
"""

from __future__ import annotations

import json
import socket
import struct
import time
from datetime import timedelta
from typing import Any

from pipeline.core.errors import DuelineError, InvalidInput, InvalidSchedule, Refused, StoreUnreachable
from pipeline.core.handler import Cancel, Dead, Fenced, InvalidPayload, RemoteError, Retry, Snooze, failure_of
from pipeline.core.job import Failure

_LENGTHS = struct.Struct("!II")
FRAME_LIMIT = 64 * 1024 * 1024
"""No sane frame is longer: whoever announces more is not speaking our language."""

Head = dict[str, Any]
Frame = tuple[Head, list[bytes | None]]


class ChannelClosed(Exception):
    """The other side is gone, or talks nonsense."""


class Channel:
    """One side of a socket pair. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, head: Head, *parts: bytes | None, deadline: float | None = None) -> None:
        """ChannelClosed; TimeoutError after `deadline` (CLOCK_MONOTONIC seconds; None = never)."""
        sizes = [None if part is None else len(part) for part in parts]
        text = json.dumps({**head, "sizes": sizes}).encode()
        body = b"".join(part for part in parts if part is not None)
        self._until(deadline)
        try:
            self._socket.sendall(b"".join((_LENGTHS.pack(len(text), len(body)), text, body)))
        except TimeoutError:
            raise
        except OSError as problem:
            raise ChannelClosed(str(problem)) from None

    def receive(self, deadline: float | None = None) -> Frame:
        """The next frame. ChannelClosed; TimeoutError after `deadline`."""
        text, body = _LENGTHS.unpack(self._read(_LENGTHS.size, deadline))
        if text + body > FRAME_LIMIT:
            raise ChannelClosed(f"a frame of {text + body} bytes")
        data = self._read(text + body, deadline)
        try:
            head = json.loads(data[:text])
            return head, _parts(data[text:], head.pop("sizes"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
            raise ChannelClosed(f"an unreadable frame: {problem!r}") from None

    def _read(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._until(deadline)
            try:
                piece = self._socket.recv(size - len(data))
            except TimeoutError:
                raise
            except OSError as problem:
                raise ChannelClosed(str(problem)) from None
            if not piece:
                raise ChannelClosed("end of the channel")
            data += piece
        return bytes(data)

    def _until(self, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        try:
            self._socket.settimeout(left)
        except OSError as problem:
            raise ChannelClosed(str(problem)) from None

    def close(self) -> None:
        self._socket.close()


def _parts(body: bytes, sizes: list[int | None]) -> list[bytes | None]:
    parts: list[bytes | None] = []
    at = 0
    for size in sizes:
        parts.append(None if size is None else body[at : at + size])
        at += size or 0
    if at != len(body):
        raise ValueError("its lengths do not add up")
    return parts


# -- what a handler raised, or returned as a verb -----------------------------------------------------------


def raised_head(error: BaseException) -> Head:
    """A handler's exception or verb as a frame."""
    head: Head = {"kind": "raised", "verb": None, "text": "", "ms": None}
    match error:
        case Retry(after_ms=wait):
            head |= {"verb": "Retry", "text": _text(error), "ms": wait}
        case Snooze(for_ms=wait):
            head |= {"verb": "Snooze", "ms": wait}
        case Cancel():
            head |= {"verb": "Fenced" if isinstance(error, Fenced) else "Cancel", "text": _text(error.reason)}
        case Dead():
            verb = "InvalidPayload" if isinstance(error, InvalidPayload) else "Dead"
            head |= {"verb": verb, "text": _text(error.reason)}
    failure = failure_of(error)
    return head | {"type": failure.type, "message": failure.message, "trace": failure.trace}


def raised_error(head: Head) -> BaseException:
    """The exception or verb of such a frame; what it failed of is its cause, as a RemoteError."""
    error: BaseException
    match head["verb"]:
        case "Snooze":
            return Snooze(for_=timedelta(milliseconds=head["ms"]))
        case "Cancel":
            return Cancel(head["text"])
        case "Fenced":
            return Fenced(head["text"])
        case "Retry":
            wait = head["ms"]
            error = Retry(head["text"], after=None if wait is None else timedelta(milliseconds=wait))
        case "Dead":
            error = Dead(head["text"])
        case "InvalidPayload":
            error = InvalidPayload(head["text"])
        case _:
            return RemoteError(_failure(head))
    error.__cause__ = RemoteError(_failure(head))
    return error


def _failure(head: Head) -> Failure:
    return Failure(type=head["type"], message=head["message"], trace=head["trace"])


def _text(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - a user's object as a reason may raise anything
        return "(its message cannot be shown)"


# -- what the worker answered to a request ------------------------------------------------------------------

_ERRORS: dict[str, type[DuelineError]] = {e.__name__: e for e in (Refused, StoreUnreachable)}
_INPUT: dict[str, type[InvalidInput]] = {e.__name__: e for e in (InvalidSchedule, InvalidInput)}


def refusal_head(error: BaseException) -> Head:
    """Why a request was refused, as a frame."""
    if isinstance(error, InvalidInput):
        kind = InvalidSchedule if isinstance(error, InvalidSchedule) else InvalidInput
        return {"kind": "refused", "type": kind.__name__, "field": error.field, "problem": error.problem}
    known = type(error).__name__ if type(error).__name__ in _ERRORS else ""
    problem = str(error) if known else f"{type(error).__name__}: {_text(error)}"
    return {"kind": "refused", "type": known, "problem": problem}


def refusal_error(head: Head) -> DuelineError:
    """The exception of such a frame."""
    if head["type"] in _INPUT:
        return _INPUT[head["type"]](head["field"], head["problem"])
    return _ERRORS.get(head["type"], DuelineError)(head["problem"])
