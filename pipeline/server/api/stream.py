"""Events as they happen, as server-sent events (WHATWG HTML §9.2)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pipeline.core.errors import DuelineError, InvalidInput
from pipeline.readmodel.questions import Page
from pipeline.server.endpoint import Answer, Call
from pipeline.server.limits import Slots

MEDIA_TYPE = "text/event-stream"
LOOK_S = 0.5
ALIVE_S = 15.0
"""So often something is sent, so that neither a proxy nor we take the other for dead."""
PAGE = 500
NOW = "now"
CURSOR_LIMIT = 512
_ANEW = {
    "kind": "anew",
    "reason": "the id of the last event is of another server: the last events that are known here follow, some of them"
    " perhaps again",
}


class Stream(StreamingResponse):
    """One of those that `slots` counts, which was taken for `who`; given back when it ends, however it does."""

    def __init__(self, content: AsyncIterator[bytes], slots: Slots, who: str) -> None:
        super().__init__(content, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})
        self._slots, self._who = slots, who

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.release(self._who)


async def events(call: Call) -> Answer | Response:
    call.who.require_all_queues()
    seen = call.request.headers.get("last-event-id")
    after = seen or call.query.get("after")
    if after is not None and (len(after) > CURSOR_LIMIT or not after.isprintable()):
        raise InvalidInput("Last-Event-ID", "is none of ours")
    ask = partial(call.ask, call.services.questions.events)
    if after == NOW:  # what there is already is left out
        after = (await ask(None, 1)).cursor
    if call.request.method == "HEAD" or MEDIA_TYPE not in call.request.headers.get("accept", ""):
        page = await ask(after, call.query.get("limit", 50))
        return Answer({"items": list(page.rows), "cursor": page.cursor})
    slots, who = call.services.streams, call.who.identity
    slots.take(who)
    try:
        first, anew = await _first(ask, seen, after)
    except BaseException:
        slots.release(who)
        raise
    return Stream(_lines(call, first, None if anew else after, anew=anew), slots, who)


async def _first(
    ask: Callable[..., Awaitable[Page]], seen: str | None, after: str | None
) -> tuple[Page, bool]:
    """The page that a stream begins with, and whether it begins anew. A browser that comes back gives up for good on
    anything but a stream, and may come to another server than the one it left, whose ids mean nothing here.
    InvalidInput for a bad `after`."""
    try:
        return await ask(after, PAGE), False
    except InvalidInput:
        if seen is None:
            raise
    return await ask(None, PAGE), True


async def _lines(call: Call, page: Page, after: str | None, *, anew: bool) -> AsyncIterator[bytes]:
    try:
        yield b"retry: 2000\n\n"
        if anew:
            yield f"event: anew\ndata: {json.dumps(_ANEW)}\n\n".encode()
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


def _word(kind: object) -> str:
    return "".join(char for char in str(kind) if char.isalnum() or char in "._-")[:80] or "event"
