"""An HTTP server that answers as servers must not. What it does is the path; what follows `?` is for it."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote_to_bytes

BEAT_S = 0.02
"""Between two bytes of an answer that never ends: without it the test would measure the loopback's speed."""


class Hostile(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HostileServer

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        try:
            getattr(self, "do" + path.replace("/", "_").replace("-", "_"))(query)
        except OSError:
            self.close_connection = True  # the client has had enough

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_: object) -> None:
        pass

    def raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.close_connection = True

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def forever(self, start: bytes, piece: bytes, beat: float = BEAT_S) -> None:
        self.raw(start)
        while not self.server.ending.wait(beat):
            self.wfile.write(piece)

    # -- decent ----------------------------------------------------------------------------------------------

    def do_echo(self, _: str) -> None:
        _, path, headers, body = self.server.seen[-1]
        shown = {"path": path, "headers": headers, "body": body.decode("latin-1")}
        self.say(200, json.dumps(shown).encode(), Content_Type="application/json", Set_Cookie="a=b; Path=/")

    def do_status(self, query: str) -> None:
        """`?CODE&RETRY-AFTER`"""
        code, _, after = query.partition("&")
        self.say(
            int(code), b"so it is", **({"Retry_After": unquote_to_bytes(after).decode()} if after else {})
        )

    def do_tag(self, _: str) -> None:
        self.say(200, ETag=self.headers["X-Key"])

    def do_early_hints(self, _: str) -> None:
        self.raw(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + b"HTTP/1.1 204 Fine\r\n\r\n")

    def do_binary(self, _: str) -> None:
        self.say(200, bytes(range(256)) * 400)

    # -- too much, too slow ----------------------------------------------------------------------------------

    def do_slow_headers(self, _: str) -> None:
        self.forever(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n")

    def do_silent(self, _: str) -> None:
        self.server.ending.wait(60)

    def do_dribble(self, _: str) -> None:
        self.forever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n")

    def do_endless(self, _: str) -> None:
        chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        self.forever(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, beat=0)

    def do_huge(self, _: str) -> None:
        self.forever(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n", b"\0" * 65_536, beat=0)

    def do_only_1xx(self, _: str) -> None:
        self.forever(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")

    def do_many_headers(self, _: str) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"b" * 300_000 + b"\r\n\r\n")

    def do_bomb(self, _: str) -> None:
        self.say(200, gzip.compress(b"\0" * 20_000_000), Content_Encoding="gzip")

    # -- wrong -----------------------------------------------------------------------------------------------

    def do_redirect(self, _: str) -> None:
        self.say(302, Location="http://169.254.169.254/latest/meta-data/")

    def do_upgrade(self, _: str) -> None:
        self.raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")

    def do_bad_header(self, _: str) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nX-\0\xff: a\r\nContent-Length: 0\r\n\r\n")

    def do_bad_length(self, _: str) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n")

    def do_no_http(self, _: str) -> None:
        self.raw(b"SSH-2.0-OpenSSH_9.2\r\n")

    def do_hang_up(self, _: str) -> None:
        self.close_connection = True

    def do_reset(self, _: str) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise OSError

    def do_short(self, _: str) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")


class HostileServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.ending = threading.Event()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        super().__init__(address, Hostile)

    def handle_error(self, *_: object) -> None:
        """A connection that the client, or a test, cut off."""

    @property
    def port(self) -> int:
        return int(self.server_address[1])


@contextmanager
def hostile_server(tls: ssl.SSLContext | None = None) -> Iterator[HostileServer]:
    server = HostileServer()
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        server.server_close()
        thread.join()
