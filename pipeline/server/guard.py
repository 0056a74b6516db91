"""What every request passes first, API and console alike: its host, its origin, and the headers of every answer.

A server without tokens trusts whoever reaches it, and a browser on this machine reaches it for any page it shows. So
there the name of the host must be one of loopback (a page of another site that has its own name point here is turned
away), and a change that a page asks for must come from a page of ours.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.server.access import Forbidden
from pipeline.server.problems import problem_of

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LOCAL_NAMES = frozenset({"localhost", "ip6-localhost"})
DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443, "ws": 80, "wss": 443}
NOSNIFF = (b"x-content-type-options", b"nosniff")
ALWAYS = (
    NOSNIFF,
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""What an answer has, unless it says something else about it."""


class Guard:
    """ASGI middleware. `open`: whether whoever reaches the server is trusted (`Access.open`)."""

    def __init__(self, app: ASGIApp, *, open: Callable[[], bool]) -> None:
        self._app = app
        self._open = open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, send if scope["type"] == "websocket" else _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": problem})
        else:
            await problem_of(Forbidden(problem))(scope, receive, _with_headers(send))

    def _problem(self, scope: Scope) -> str | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._open() and not is_loopback(host):
            return "without tokens this server answers to localhost only: `dueline token create` makes one"
        if scope["type"] == "http" and scope["method"] in SAFE:
            return None
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return "this was asked by a page of another site"
        origin = headers.get(b"origin")
        if origin is not None and not same_place(origin.decode("latin-1"), host, scope["scheme"]):
            return "this was asked by a page of another site"
        return None


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Of a Host header."""
    name = _name_of(host)
    if name in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def same_place(origin: str, host: str, scheme: str) -> bool:
    """Whether a page of `origin` was loaded from this host. A proxy may speak https to the browser and http to us."""
    try:
        there = urlsplit(origin)
        port = there.port or DEFAULT_PORTS.get(there.scheme)
        here = urlsplit(f"//{host}")
        ports = {here.port} if here.port else {DEFAULT_PORTS.get(scheme), 80, 443}
    except ValueError:
        return False
    return there.hostname is not None and there.hostname == here.hostname and port in ports


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            if NOSNIFF not in headers:  # the API says what it needs by itself
                there = {name for name, _ in headers}
                headers += [pair for pair in ALWAYS if pair[0] not in there]
        await send(message)

    return sending
