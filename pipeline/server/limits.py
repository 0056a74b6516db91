"""Bounds of what one client can make the server do: bodies, requests a second, and what is open at the same time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from pipeline.server.body import parse_json
from pipeline.server.problems import TooLarge, TooMany, TooSlow

PAUSE_S, LEAST = 10.0, 20
"""Of a body that does not end, so many bytes must come in so long: any job has more, what only takes a place less."""
BODY_S = 30.0
"""Longest time for a body that is no stream."""
LONG = 64 * 1024
"""Bytes of JSON that take some milliseconds."""
BESIDE_PAYLOAD = 256 * 1024
"""Bytes of a body beside the largest payload."""
UNHEARD, UNHEARD_S = 10_000, 60.0
"""Names that are remembered at most, and for how long."""
COME = "dueline.come"
"""In the scope of a request whose body has come to its end, as most have by the time they are looked at."""
BURST_S = 1.0
PRINCIPALS = 10_000
"""Whose rates are remembered at most."""


class Rates:
    """`what` a second of each: a bucket that holds `burst_s` seconds' worth. `monotonic` in seconds."""

    def __init__(
        self,
        rate: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        what: str = "requests",
        burst_s: float = BURST_S,
    ) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._what = what
        self._burst_s = burst_s
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """When the bucket of each will be full again."""

    def take(self, name: str) -> None:
        """Raises TooMany."""
        now = self._monotonic()
        full_at = max(self._full_at.pop(name, now), now) + 1 / self._rate
        ahead = full_at - now - self._burst_s
        self._full_at[name] = full_at if ahead <= 0 else full_at - 1 / self._rate
        if len(self._full_at) > PRINCIPALS:
            self._full_at.popitem(last=False)
        if ahead > 0:
            raise TooMany(f"more than {self._rate:g} {self._what} a second", max(math.ceil(ahead), 1))


class Slots:
    """What each may have open at the same time, and all of them together. On the event loop only."""

    def __init__(self, what: str, *, each: int, together: int, retry_s: int) -> None:
        self._what = what
        self._each, self._together = each, together
        self._retry_s = retry_s
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    def take(self, who: str) -> None:
        """To be given back with `release`. TooMany naming the limit."""
        if self._open[who] >= self._each:
            self._refuse(f"you have {self._each} {self._what}, the most of one token")
        if self.open >= self._together:
            self._refuse(f"there are {self._together} {self._what}, the most of this server")
        self._open[who] += 1

    def release(self, who: str) -> None:
        self._open[who] -= 1
        if not self._open[who]:
            del self._open[who]

    @contextmanager
    def held(self, who: str) -> Iterator[None]:
        self.take(who)
        try:
            yield
        finally:
            self.release(who)

    def _refuse(self, problem: str) -> NoReturn:
        raise TooMany(problem, self._retry_s)


class Unheard:
    """Jobs and schedules that were asked for of late and that no owner has answered for: they may come to be, though
    nobody knows of them yet. On the event loop only. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked: OrderedDict[str, float] = OrderedDict()

    def note(self, name: str) -> None:
        self._asked.pop(name, None)
        self._asked[name] = self._monotonic()
        if len(self._asked) > UNHEARD:
            self._asked.popitem(last=False)

    def holds(self, name: str | None) -> bool:
        asked = None if name is None else self._asked.get(name)
        return asked is not None and self._monotonic() - asked <= UNHEARD_S


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


async def parsed(data: bytes) -> Any:
    """The JSON of a body; a long one in a thread, since nobody else is served meanwhile. Raises as `parse_json`."""
    return parse_json(data) if len(data) < LONG else await asyncio.to_thread(parse_json, data)


async def pieces_of(request: Request) -> AsyncIterator[bytes]:
    """The body as it comes. TooSlow; ClientDisconnect."""
    came, patience_s = 0, PAUSE_S
    while True:
        began = time.monotonic()
        # Not `wait_for`, which makes a task of it; and no timer where there is nothing to wait for.
        patience = nullcontext() if request.scope.get(COME) else asyncio.timeout(patience_s)
        try:
            async with patience:
                message = await request.receive()
        except TimeoutError:
            problem = f"less than {LEAST} bytes of the body" if came else "nothing of the body"
            raise TooSlow(f"{problem} came for {PAUSE_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        patience_s -= (
            time.monotonic() - began
        )  # for what the client lets us wait, not for what we do meanwhile
        if piece := message.get("body"):
            came += len(piece)
            if came >= LEAST:
                came, patience_s = 0, PAUSE_S
            yield piece
        if not message.get("more_body", False):
            return
