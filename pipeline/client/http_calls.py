"""One question to a `dueline server`: deadline, repeats where they are safe, problems (RFC 9457) as our errors."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import httpcore
import httpx

from pipeline.core.errors import (
    DuelineError,
    InvalidInput,
    NotAllowed,
    NotFound,
    Refused,
    StoreUnreachable,
)

PREFIX = "/api/v1"
PAUSES_S = (0.1, 0.3, 1.0)
"""Before each repeat of a question, if its deadline allows it."""
ANSWER_LIMIT = 32 * 1024 * 1024
"""Bytes of one answer."""
CONNECTIONS, IDLE_S = 64, 30.0
"""Open at the same time, and for how long unused: the server closes them later."""
POSITION = "Dueline-Position"
"""Where in the log what was written stands: a read that sends it back sees it, whichever server it comes to."""
FRESH_S = 10.0
"""So long after a write reads wait for it."""
IDENTITY = "identity"
SAID = 300
"""Characters of what a server says that are repeated."""
_log = logging.getLogger("dueline")


class Unanswered(StoreUnreachable):
    """No answer, or: not now. `done`: what was asked for may have been done; `after_s`: when to ask again."""

    def __init__(self, problem: str, *, done: bool, after_s: float = 0.0) -> None:
        self.done = done
        self.after_s = after_s
        super().__init__(problem)


class NotDone(Refused):
    """`outcome` is not what was asked for: too_late, rejected, skipped …"""

    def __init__(self, problem: str, outcome: str) -> None:
        self.outcome = outcome
        super().__init__(problem)


class Failed(DuelineError):
    """Look into the log of the server."""

    exit_code: ClassVar[int] = 1


class Calls:
    """Any thread may ask; connects when it is asked. `patience_s`: how long an answer may take."""

    def __init__(
        self, url: str, token: str | None, *, patience_s: float, transport: httpx.BaseTransport | None = None
    ) -> None:
        """`transport` is for tests."""
        self.url = url
        self._patience_s = patience_s
        self._written = _Written()
        headers = {"accept": "application/json", "accept-encoding": IDENTITY}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
            if url.startswith("http:") and not _is_here(url):
                _warn_in_clear(url)
        self._client = httpx.Client(
            headers=headers,
            transport=transport,
            trust_env=not _is_here(url),  # a proxy of the environment is not asked for this machine
            limits=httpx.Limits(
                max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS, keepalive_expiry=IDLE_S
            ),
        )

    def close(self) -> None:
        self._client.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        lines: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        wait_ms: int = 0,
    ) -> View:
        """The JSON of the answer. `body` is sent as JSON, `lines` as they are. `wait_ms`: how long the server was told
        to wait for others. `repeatable`: done twice it is as if done once; else it is asked again only where it was not
        done for certain. Raises what the answer says, `Unanswered`, Failed."""
        sent = {**(headers or {})}
        if body is not None:
            lines = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
            sent["content-type"] = "application/json"
        elif lines is not None:
            sent["content-type"] = "application/x-ndjson"
        if method == "GET" and (places := self._written.shown()):
            sent[POSITION] = places
        request = self._client.build_request(
            method, f"{self.url}{PREFIX}{path}", params=query, content=lines, headers=sent
        )
        patience_s = self._patience_s + wait_ms / 1000
        deadline, pauses = time.monotonic() + patience_s, iter(PAUSES_S)
        while True:
            try:
                return self._once(request, deadline, patience_s)
            except Unanswered as error:
                pause = max(next(pauses, patience_s), error.after_s)
                if (error.done and not repeatable) or time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)

    def _once(self, request: httpx.Request, deadline: float, patience_s: float) -> View:
        _limit(request, deadline)
        try:
            response = self._client.send(request, stream=True)
            try:
                data = _whole(response, deadline)
            finally:
                response.close()
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Unanswered(f"no server answers at {self.url}: {_line(error)}", done=False) from error
        except httpx.TimeoutException as error:
            problem = f"the server at {self.url} did not answer within {patience_s:g} s"
            raise Unanswered(problem + _may_be_done(request), done=True) from error
        except httpx.RequestError as error:
            problem = f"the server at {self.url} broke off: {_line(error) or type(error).__name__}"
            raise Unanswered(problem + _may_be_done(request), done=True) from error
        self._written.note(response.headers.get(POSITION))
        if response.is_success:
            return _view(data, self.url, response)
        raise error_of(self.url, response, data)


def _may_be_done(request: httpx.Request) -> str:
    return "" if request.method == "GET" else "; what was asked for may be done all the same"


def _limit(request: httpx.Request, deadline: float) -> None:
    """Have the request end at `deadline` (monotonic s). A time-out of the library is one phase's (to connect, to send,
    to wait for the answer), so before each it is set to what is left."""
    limits: dict[str, float | None] = {}
    _deadline.set(deadline)

    def begins(phase: str, about: Mapping[str, Any]) -> None:
        limits.update(httpx.Timeout(max(deadline - time.monotonic(), 0.001)).as_dict())
        if phase in _CONNECTED:
            _bound(about["return_value"])

    begins("", {})
    request.extensions |= {"timeout": limits, "trace": begins}


_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete", "proxy.start_tls.complete")
_deadline: ContextVar[float] = ContextVar("_deadline", default=float("inf"))
"""Of the call that this thread is at, by time.monotonic()."""


def _bound(stream: Any) -> None:
    """Have each reading of a connection end with its call. A phase of the library may be any number of readings, each
    with all of its time, and a head that comes byte by byte is one phase."""
    read = stream.read

    def until(most: int, timeout: float | None = None) -> bytes:
        left = _deadline.get() - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the answer does not end")
        data: bytes = read(most, left if timeout is None else min(timeout, left))
        return data

    stream.read = until


def _whole(response: httpx.Response, deadline: float) -> bytes:
    """Its body. What is packed is not unpacked: nobody asked for that, and it may be any size."""
    if response.headers.get("content-encoding", IDENTITY).strip().lower() != IDENTITY:
        raise httpx.DecodingError("its answer is encoded, which was not asked for")
    pieces, size = [], 0
    for piece in response.iter_bytes():
        size += len(piece)
        if size > ANSWER_LIMIT:
            raise httpx.ReadError(f"its answer is longer than {ANSWER_LIMIT} bytes")
        if time.monotonic() > deadline:
            raise httpx.ReadTimeout("the answer does not end")
        pieces.append(piece)
    return b"".join(pieces)


class View(dict[str, Any]):
    """An answer. What it lacks says that who answered is no server of ours."""

    def __missing__(self, name: str) -> Any:
        raise StoreUnreachable(
            f"what the server answers has no {name!r}: it is no dueline server, or another version"
        )

    def word(self, name: str) -> str:
        """What has to be text."""
        found = self[name]
        if not isinstance(found, str):
            raise StoreUnreachable(f"{_OTHER}: {name} is no text")
        return found


_OTHER = "what the server answers is not what a dueline server does"


@contextmanager
def taken_apart() -> Iterator[None]:
    """Within it an answer is looked into: what breaks there is of no server of ours. StoreUnreachable."""
    try:
        yield
    except DuelineError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise StoreUnreachable(f"{_OTHER}: {_line(error)}") from error


def _view(data: bytes, url: str, response: httpx.Response) -> View:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _no_server(url, response)
    return View(found)


def _no_server(url: str, response: httpx.Response) -> StoreUnreachable:
    return StoreUnreachable(f"{url} answers {response.status_code}, but not as a dueline server does")


def error_of(url: str, response: httpx.Response, data: bytes) -> DuelineError:
    """What an answer that is none means."""
    problem = _problem(response, data)
    status, after_s = response.status_code, _seconds(response.headers.get("retry-after"))
    said = _line(problem.get("detail", ""))
    match status:
        case 408 | 502 | 503 | 504:  # also of a proxy before it
            return Unanswered(f"the server at {url} says: {said or status}", done=True, after_s=after_s)
        case 429:
            return Unanswered(f"the server at {url} says: {said}", done=False, after_s=after_s)
        case _ if not problem:
            return _no_server(url, response)
        case 401 | 403:
            return NotAllowed(f"the server at {url} says: {said}")
        case 404 if problem.get("type") == "urn:dueline:problem:not-found":
            return NotFound(said)
        case 404 | 405:
            return _no_server(url, response)
        case 409 if isinstance(problem.get("outcome"), str):
            return NotDone(said, problem["outcome"])
        case 409 | 412:
            return Refused(said)
        case 500:
            return Failed(f"the server at {url} failed: its log has the details")
        case _:
            return _invalid(problem, said)


def _problem(response: httpx.Response, data: bytes) -> dict[str, Any]:
    """Empty if it is none of ours."""
    if "application/problem+json" not in response.headers.get("content-type", ""):
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _invalid(problem: Mapping[str, Any], said: str) -> InvalidInput:
    """By the field's name in Python."""
    errors = problem.get("errors")
    first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], dict) else {}
    field = _line(first.get("field", "body"))
    return InvalidInput("in_" if field == "in" else field, _line(first.get("message", said)))


def _line(text: object) -> str:
    """One line of bounded length, whatever it holds."""
    return " ".join(str(text).split())[:SAID]


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 6 else 0.0


def segment(id_: str) -> str:
    """An id as one part of a path: `.` and `..`, which a schedule may be called, would be folded away."""
    quoted = quote(id_, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


@lru_cache
def _warn_in_clear(url: str) -> None:
    """Once: inside a network of one's own it may be meant."""
    _log.warning(
        "%s is not encrypted: whoever is on the way can read the token; use https://",
        url,
        extra={"action": "token_in_clear"},
    )


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Written:
    """Where what was written of late stands, by topic and partition."""

    MOST = 200
    """More are too many for one header: then nothing is waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._places: dict[str, str] = {}

    def note(self, header: str | None) -> None:
        if header is None:
            return
        with self._lock:
            if time.monotonic() - self._at > FRESH_S:
                self._places.clear()
            self._at = time.monotonic()
            for place in header.split(","):
                partition, _, offset = place.strip().rpartition(":")
                if int_of(offset) >= int_of(self._places.get(partition, "0")):
                    self._places[partition] = offset

    def shown(self) -> str:
        with self._lock:
            if time.monotonic() - self._at > FRESH_S or len(self._places) > self.MOST:
                return ""
            return ", ".join(f"{partition}:{offset}" for partition, offset in self._places.items())


def int_of(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else -1
