"""The handler `http`: call a URL, and make of its answer what becomes of the run (docs/handlers.md).

The requests go to httpcore, the transport of httpx, without httpx's client: that one logs every URL, keeps cookies
from one job for the next, reads proxies and .netrc from the environment and can follow redirects.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import logging
import re
import ssl
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import httpcore
import httpx

from pipeline.config import Settings
from pipeline.core.context import Context
from pipeline.core.handler import RESULT_LIMIT, Dead, Retry
from pipeline.handlers.addresses import PinnedBackend, Policy, Resolve, policy, system_resolve
from pipeline.handlers.fields import start_within
from pipeline.handlers.http_request import Request, read_request
from pipeline.handlers.secrets import Secrets, bound

CONNECT_S = 10.0
IDLE_S = 5.0
"""Connections are kept for the next job this long: most servers wait longer before they hang up."""
IDLE_CONNECTIONS = 100
BODY_READ = 1024 * 1024
BODY_KEPT = RESULT_LIMIT - 8 * 1024
"""Bytes of JSON that the body may take in the result; the rest of the limit is for its headers."""
_HEADERS_KEPT = ("content-type", "content-encoding", "location", "etag", "retry-after", "x-request-id")
_HEADER_KEPT = 500
_SHOWN = 300
SHORTEST_WAIT_S, LONGEST_WAIT_S = 1.0, 3_600.0
"""Between these is what a server may ask for with Retry-After."""
ASKS_TO_WAIT = frozenset({429, 503})


_trace = logging.getLogger("httpcore")
if _trace.level == logging.NOTSET:
    # At DEBUG it writes down the headers of answers, in which a server may send a secret back.
    _trace.setLevel(logging.INFO)


class CallFailed(Exception):
    """No acceptable answer came; a later attempt may get one."""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool


class HttpHandler:
    """One pool of connections for each event loop that it is called on."""

    def __init__(
        self,
        *,
        policy: Policy,
        secrets: Secrets,
        longest_ms: int,
        tls: ssl.SSLContext,
        resolve: Resolve = system_resolve,
    ) -> None:
        self._tls = tls
        self._backend = PinnedBackend(policy, resolve)
        self._secrets = secrets
        self._longest_ms = longest_ms
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpcore.AsyncConnectionPool] = (
            WeakKeyDictionary()
        )

    async def run(self, ctx: Context, payload: Any) -> dict[str, Any]:
        """Call the URL of the payload. The answer if it is a good one; Dead, Retry or CallFailed if not."""
        request = read_request(payload, ctx, self._secrets, self._longest_ms)
        began = time.monotonic()
        try:
            async with asyncio.timeout(request.timeout_ms / 1000):
                answer = await self._call(request)
        except Dead:
            raise
        except TimeoutError:
            took = f"{request.timeout_ms / 1000:g} s"
            raise CallFailed(f"{request.place}: no complete answer within {took}") from None
        except Exception as error:  # noqa: BLE001 - whatever the network or a hostile server brings about
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise CallFailed(f"{request.place}: {request.mask.text(what)}") from None
        ctx.logger.info(
            "%s answered %d in %.0f ms", request.place, answer.status, (time.monotonic() - began) * 1000
        )
        return verdict(request, answer)

    async def aclose(self) -> None:
        """Close this loop's connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def _call(self, request: Request) -> Answer:
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        # httpx adds Host and Content-Length as the URL and the content have them.
        headers = httpx.Request(
            request.method, request.url, headers=list(request.headers), content=request.content
        ).headers
        async with self._pool.stream(
            request.method,
            url,
            headers=headers.raw,
            content=request.content,
            extensions={"timeout": {"connect": CONNECT_S}},  # of the rest, the whole call's time is the limit
        ) as response:
            body, truncated = await _body(response)
            return Answer(response.status, _kept(response, request), request.mask.data(body), truncated)

    @property
    def _pool(self) -> httpcore.AsyncConnectionPool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = httpcore.AsyncConnectionPool(
                ssl_context=self._tls,
                max_connections=None,  # as many as the worker has runs
                max_keepalive_connections=IDLE_CONNECTIONS,
                keepalive_expiry=IDLE_S,
                network_backend=self._backend,
            )
        return self._pools[loop]


def http_handler(settings: Settings, *, loopback: bool) -> HttpHandler:
    """As the settings allow it; `loopback` allows this machine too."""
    return HttpHandler(
        policy=policy(settings.http_allow, loopback=loopback),
        secrets=Secrets(bound(settings.http_secrets), settings.secrets_dir),
        longest_ms=settings.http_timeout_ms,
        tls=httpx.create_ssl_context(),  # SSL_CERT_FILE of the environment names other authorities
    )


async def _body(response: httpcore.Response) -> tuple[bytes, bool]:
    """At most BODY_READ bytes as they come: nothing is decompressed, so a small answer stays small. Whether there was
    more; then the connection is closed."""
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > BODY_READ:
            return bytes(body[:BODY_READ]), True
    return bytes(body), False


def _kept(response: httpcore.Response, request: Request) -> dict[str, str]:
    found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    known = {name: found[name] for name in (*_HEADERS_KEPT, "date") if name in found}
    return {name: request.mask.text(value)[:_HEADER_KEPT] for name, value in known.items()}


# -- what becomes of the run ---------------------------------------------------------------------------------


def verdict(request: Request, answer: Answer) -> dict[str, Any]:
    """The run's result; raises Dead, Retry, CallFailed as the status says."""
    said = f"{request.place} answered {answer.status}"
    if answer.status in request.done:
        return result(answer)
    if 300 <= answer.status < 400:
        said += f", a redirect to {answer.headers.get('location', 'nowhere')}, and none is followed"
    elif shown := answer.body[:_SHOWN].decode("utf-8", "replace").strip():
        said += f": {shown}"
    if answer.status in request.dead:
        raise Dead(said)
    if answer.status in ASKS_TO_WAIT and (wait := asked_wait(answer.headers, time.time())) is not None:
        raise Retry(said, after=wait)
    raise CallFailed(said)


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that Retry-After asks for, within our bounds; None if it is not there or is neither a number nor a date.
    A date counts from the server's own Date, for clocks differ."""
    text = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,10}", text):
        wait = float(text)
    else:
        until = _date(text)
        if until is None:
            return None
        wait = until - (_date(headers.get("date", "")) or now)
    return min(max(wait, SHORTEST_WAIT_S), LONGEST_WAIT_S)


def _date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def result(answer: Answer) -> dict[str, Any]:
    """As it is kept with the run: `body` if it is UTF-8, else `body_base64`; `truncated` if it is not all of it."""
    headers = {name: value for name, value in answer.headers.items() if name in _HEADERS_KEPT}
    found: dict[str, Any] = {"status": answer.status, "headers": headers}
    truncated = answer.truncated
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(answer.body, final=not truncated)
        found["body"] = start_within(text, BODY_KEPT)
        truncated |= len(found["body"]) < len(text)
    except UnicodeDecodeError:
        part = answer.body[: BODY_KEPT // 4 * 3 - 3]
        found["body_base64"] = base64.b64encode(part).decode()
        truncated |= len(part) < len(answer.body)
    return {**found, "truncated": True} if truncated else found
