"""Before any page: who asks, from where, and what a browser may do with the answer. Plain ASGI."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.core.errors import StoreUnreachable
from pipeline.server.access import Unauthenticated
from pipeline.server.console import links
from pipeline.server.console.sheet import sheet
from pipeline.server.console.visit import Console, who_asks
from pipeline.server.guard import same_place

OPEN = ("/_nicegui/", "/static/")
DOOR = frozenset({"/sign-in", "/sign-out", "/session"})
"""What needs no session: program text and styles, and the door."""
SOCKET = "/_nicegui_ws/"
HEADERS = {
    # Vue compiles templates in the browser (eval) and NiceGUI's page has inline scripts; nothing comes from elsewhere.
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
}


class Guard:
    """Nobody without a session sees a page or opens its socket, and no other site does in their name."""

    def __init__(self, app: ASGIApp, *, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in DOOR or path.startswith(OPEN):
            await self._app(scope, receive, _with_headers(send, scope))
        elif path.startswith(SOCKET):
            await self._socket(scope, receive, send)
        else:
            await self._page(scope, receive, send)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = _with_headers(send, scope)
        try:
            await who_asks(self._console.access, HTTPConnection(scope))
        except Unauthenticated:
            query = scope.get("query_string", b"").decode("latin-1")
            back = scope["path"] + (f"?{query}" if query else "")
            await RedirectResponse(links.to("sign-in", next=back), status_code=303)(scope, receive, sending)
        except StoreUnreachable:
            text = "Sign-ins are checked there. This page tries again every 5 seconds."
            page = sheet("The store cannot be reached", f"<p>{text}</p>", refresh_s=5)
            answer = HTMLResponse(page, status_code=503, headers={"retry-after": "5"})
            await answer(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not _same_origin(Headers(scope=scope), scope["scheme"]):
                raise Unauthenticated("another site")
            await who_asks(self._console.access, HTTPConnection(scope))
        except (Unauthenticated, StoreUnreachable):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await PlainTextResponse("sign in first", status_code=403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _same_origin(headers: Headers, scheme: str) -> bool:
    """Browsers tell where a page came from that opens a socket, polls included; what is no browser tells nothing."""
    origin = headers.get("origin")
    return origin is None or same_place(origin, headers.get("host", ""), scheme)


def _with_headers(send: Send, scope: Scope) -> Send:
    if scope["type"] != "http":
        return send

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sending
