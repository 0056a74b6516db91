"""A very small HTTP server: /metrics, /healthz and /readyz, exactly these paths, GET and HEAD, nothing else."""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from pipeline.core.errors import InvalidInput, Refused

CONNECTIONS = 8
"""Answered at the same time; more are closed unanswered, so that idle ones cannot gather threads."""
SILENCE_S = 5.0
"""A client that says nothing for this long is let go."""

CLOSE_S = 0.1
"""How long `close` may have to wait for the accepting thread."""

Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class Answer(NamedTuple):
    status: str
    content_type: str
    body: bytes


Route = Callable[[Environ], Answer]


def metrics_route(registry: CollectorRegistry) -> Route:
    """A scrape, in the format that the client asks for."""

    def answer(environ: Environ) -> Answer:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        return Answer("200 OK", content_type, encode(registry))

    return answer


def verdict_route(problem: Callable[[], str | None]) -> Route:
    """200 while there is no problem, else 503 and what it is."""

    def answer(_: Environ) -> Answer:
        found = problem()
        return _text("200 OK", "ok") if found is None else _text("503 Service Unavailable", found)

    return answer


def _text(status: str, body: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{body}\n".encode())


def application(routes: Mapping[str, Route]) -> Callable[[Environ, StartResponse], list[bytes]]:
    """The WSGI application. A path is known only as a whole: no suffix, no trailing slash, no decoding twice."""

    def respond(environ: Environ, start_response: StartResponse) -> list[bytes]:
        method, route = environ["REQUEST_METHOD"], routes.get(environ["PATH_INFO"])
        more: list[tuple[str, str]] = []
        if route is None:
            answer = _text("404 Not Found", "not found")
        elif method not in ("GET", "HEAD"):
            answer, more = _text("405 Method Not Allowed", "GET or HEAD"), [("Allow", "GET, HEAD")]
        else:
            answer = route(environ)
        start_response(answer.status, [*_headers(answer), *more])
        return [] if method == "HEAD" else [answer.body]

    return respond


def _headers(answer: Answer) -> list[tuple[str, str]]:
    return [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every second would fill the log."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Any, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the resolver for this host's name and may wait for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away or says nothing is nobody's problem."""


class HttpServer:
    """Answers in threads of its own from construction until `close`."""

    def __init__(self, host: str, ports: Iterable[int], routes: Mapping[str, Route]) -> None:
        """Listens on the first of `ports` that is free. InvalidInput for a host this machine does not have,
        Refused if no port is free."""
        self._server = _bind(host, ports)
        self._server.set_app(application(routes))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(CLOSE_S,), name="http", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port, with brackets around an IPv6 address."""
        host, port = self._server.server_address[:2]
        return f"[{host!s}]:{port}" if ":" in str(host) else f"{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _bind(host: str, ports: Iterable[int]) -> _Server:
    tried = []
    for port in ports:
        family, address = _resolve(host, port)
        try:
            return _Server(address, family)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InvalidInput("DUELINE_METRICS_HOST", f"this machine has no address {host}") from error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise Refused(f"metrics: {host}:{port}: {error.strerror}") from error
            tried.append(port)
    raise Refused(f"metrics: no free port on {host} from {tried[0]} to {tried[-1]}: set DUELINE_METRICS_PORT")


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(
            "DUELINE_METRICS_HOST", f"{host!r} cannot be resolved: {error.strerror}"
        ) from error
    return found[0][0], found[0][4]
