"""Events as they happen, as server-sent events (WHATWG HTML §9.2)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.server.endpoint import Answer, Call
from pipeline.server.problems import TooMany

MEDIA_TYPE = "text/event-stream"
LOOK_S = 0.5
ALIVE_S = 15.0
"""So often something is sent, so that neither a proxy nor we take the other for dead."""
PAGE = 500
STREAMS = 200
"""Open at the same time at most."""
CURSOR_LIMIT = 512
_open = 0


def opened() -> int:
    """How many are open in this process."""
    return _open


async def events(call: Call) -> Answer | Response:
    call.who.require_all_queues()
    after = call.request.headers.get("last-event-id") or call.query.get("after")
    if after is not None and (len(after) > CURSOR_LIMIT or not after.isprintable()):
        raise InvalidInput("Last-Event-ID", "is none of ours")
    if MEDIA_TYPE not in call.request.headers.get("accept", ""):
        page = await call.ask(call.services.questions.events, after, call.query.get("limit", 50))
        return Answer({"items": list(page.rows), "cursor": page.cursor})
    if _open >= STREAMS:
        raise TooMany(f"{STREAMS} event streams are open here", 10)
    first = await call.ask(call.services.questions.events, after, PAGE)  # a bad cursor is told as a problem
    return StreamingResponse(
        _lines(call, first, after), media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"}
    )


async def _lines(call: Call, page: Any, after: str | None) -> AsyncIterator[bytes]:
    global _open
    _open += 1
    try:
        yield b"retry: 2000\n\n"
        said = time.monotonic()
        while not call.services.stopping():
            for row in page.rows:
                after = row["id"]
                yield f"id: {after}\nevent: {_word(row['kind'])}\ndata: {json.dumps(row)}\n\n".encode()
                said = time.monotonic()
            if time.monotonic() - said > ALIVE_S:
                yield b": alive\n\n"
                said = time.monotonic()
            if len(page.rows) < PAGE:
                await asyncio.sleep(LOOK_S)
            if not call.still_let_in:
                return
            page = await call.ask(call.services.questions.events, after, PAGE)
    except DuelineError:
        return  # the client comes back with the last id
    finally:
        _open -= 1


def _word(kind: object) -> str:
    return "".join(char for char in str(kind) if char.isalnum() or char in "._-")[:80] or "event"
