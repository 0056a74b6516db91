"""Bounds of a connection that the HTTP library does not set: a head that does not end, or does not come."""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 32 * 1024
"""Bytes of a request line with its headers."""
HEADERS = 100
HEAD_S = 10.0
"""How long the head of a request may take from its first byte, or the first one from the connection on."""
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
        self._in_head = True
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            # A body that comes with its head counts too: up to one read of the socket more.
            if self._head_bytes > HEAD_LIMIT and not self._ends_head(data):
                self._refuse_head()
                return
        super().data_received(data)

    def _ends_head(self, data: bytes) -> bool:
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= HEAD_LIMIT

    def _refuse_head(self) -> None:
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._await_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS:
            raise TooLargeHead("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
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
