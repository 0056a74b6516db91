"""Bounds of what one client can make the server do: bodies, and requests a second."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect, Request

from pipeline.server.problems import TooLarge, TooMany, TooSlow

PAUSE_S = 10.0
"""Longest silence within a body."""
BODY_S = 30.0
"""Longest time for a body that is no stream."""
BESIDE_PAYLOAD = 256 * 1024
"""Bytes of a body beside the largest payload."""
BURST_S = 1.0
PRINCIPALS = 10_000
"""Whose rates are remembered at most."""


class Rates:
    """Requests a second of each principal: a bucket that holds a second's worth. `monotonic` in seconds."""

    def __init__(self, rate: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When the bucket of each will be full again."""

    def take(self, name: str) -> None:
        """Raises TooMany."""
        now = self._monotonic()
        full_at = max(self._full_at.pop(name, now), now) + 1 / self._rate
        ahead = full_at - now - BURST_S
        self._full_at[name] = full_at if ahead <= 0 else full_at - 1 / self._rate
        if len(self._full_at) > PRINCIPALS:
            self._full_at.popitem(last=False)
        if ahead > 0:
            raise TooMany(f"more than {self._rate:g} requests a second", max(math.ceil(ahead), 1))


async def whole_body(request: Request, limit: int) -> bytes:
    """TooLarge, TooSlow."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and (len(told) > 15 or int(told) > limit):
        raise TooLarge(f"the body has {told[:20]} bytes, the limit is {limit}")
    pieces, size = [], 0
    until = time.monotonic() + BODY_S
    async for piece in pieces_of(request):
        size += len(piece)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        if time.monotonic() > until:
            raise TooSlow(f"the body took longer than {BODY_S:g} s")
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes. TooSlow; ClientDisconnect."""
    while True:
        try:
            async with asyncio.timeout(PAUSE_S):  # not `wait_for`, which makes a task of it
                message = await request.receive()
        except TimeoutError:
            raise TooSlow(f"nothing of the body came for {PAUSE_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if piece := message.get("body"):
            yield piece
        if not message.get("more_body", False):
            return
