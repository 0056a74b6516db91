"""Bounds of a connection that the HTTP library does not set: a head that does not end, or does not come, an answer that
is not read, and how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipeline.server.limits import COME

HEAD_LIMIT = 32 * 1024
"""Bytes of a request line with its headers."""
HEADERS = 100
HEAD_S = 10.0
"""How long the head of a request may take from its first byte, or the first one from the connection on."""
PIPELINED = 16
"""Requests of one connection that wait for the answer to the one before them at most."""
READ_S, READ_BYTES = 10.0, 32 * 1024
"""Of an answer that waits, so much must be read in so long, or all of it."""
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nretry-after: 2\r\n"
    b"content-length: 22\r\nconnection: close\r\n\r\nToo many connections.\n"
)
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: 23\r\nconnection: close\r\n\r\nThe head is too large.\n"
)


class TooLargeHead(HttpParserError):
    """The library closes the connection for it."""


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 whose heads are bounded in bytes, number and time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        """Come since a head, or a piece of a body, ended: of the next head, or of what a body has beside its pieces."""
        self._in_head = True
        self._upgraded = False
        self._too_large = False
        self.drained = 0
        """How often what was written, and waited to be read, has been."""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.write(_TOO_MANY)
            transport.close()

    def resume_writing(self) -> None:
        self.drained += 1
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        # A body that comes with its head counts too: up to one read of the socket more.
        if self._in_head and self._head_bytes > HEAD_LIMIT and not self._ends_head(data):
            self._refuse_head()
            return
        super().data_received(data)
        if self._upgraded or self.transport.is_closing():
            return
        if self._head_bytes > HEAD_LIMIT and not self._in_head:  # trailers: the library keeps them in memory
            self._refuse_head()
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            self._await_head()  # the library ends its patience at any byte, be it of no request at all

    def _is_idle(self) -> bool:
        """No request waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def _ends_head(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= HEAD_LIMIT

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            raise TooLargeHead("too many requests at once")
        self._in_head = True
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS:
            self._too_large = True
            raise TooLargeHead("too many headers")
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise HttpParserError("this coding of a body is not taken")  # the library would take it for none
        super().on_header(name, value)

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_idle():
            self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.scope[COME] = True  # type: ignore[literal-required]
        super().on_message_complete()
        if self._is_idle() and not self.parser.should_upgrade():  # its body ended after it was answered
            self._head_came()
            self._in_head = True
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        if self._is_idle():  # else the next request has come already
            self._in_head, self._head_bytes = True, 0
        super().on_response_complete()

    def _await_head(self) -> None:
        if self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._give_up)

    def _head_came(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.close()


class Connected(Protocol):
    """A connection, of HTTP or of a web socket."""

    transport: Any


class _Waits(NamedTuple):
    """What is not read: since when (s), how many bytes there were then, and how often all had been read before."""

    since: float
    size: int
    drained: int


class Unread:
    """Ends connections whose client does not read: their answers would stay in memory, and their places taken, for as
    long as it likes. Those that are to be closed once all is read are among them."""

    def __init__(self) -> None:
        self._waiting: dict[Connected, _Waits] = {}

    def sweep(self, connections: Iterable[Connected], now: float) -> None:
        """To be called now and then; `now` in seconds."""
        before, self._waiting = self._waiting, {}
        for connection in connections:
            size = connection.transport.get_write_buffer_size()
            if not size:
                continue
            waits = _Waits(now, size, getattr(connection, "drained", 0))
            known = before.get(connection, waits)
            if known.size - size >= READ_BYTES or known.drained != waits.drained:
                known = waits
            if now - known.since >= READ_S:
                connection.transport.abort()
            else:
                self._waiting[connection] = known
