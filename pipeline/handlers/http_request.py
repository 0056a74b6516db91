"""The payload of `http` as a request (docs/handlers.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

import httpx

from pipeline import __version__
from pipeline.core.context import Context
from pipeline.core.effect import headers_of, visible
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import InvalidPayload
from pipeline.core.times import parse_duration, written_instant
from pipeline.handlers.addresses import plain_host
from pipeline.handlers.fields import Fields, checked_text
from pipeline.handlers.secrets import REFERENCE, Mask, Secrets, mask

FIELDS = ("url", "method", "headers", "json", "body", "body_base64", "timeout", "ok", "dead")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
DONE = frozenset(range(200, 300))
DEAD = frozenset({409, 410, 422})
"""Fenced, gone, refused for its content: what the next attempt would hear again."""
_CONTENT_TYPES = {
    "json": "application/json",
    "body": "text/plain; charset=utf-8",
    "body_base64": "application/octet-stream",
}
_OWN = frozenset({"host", "user-agent", "idempotency-key", "x-fence-token", "accept-encoding", "expect"})
_OWN_PREFIXES = ("x-job-", "proxy-")
_HOP = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_VALUE = re.compile(r"[\x20-\x7e\t]*")
_HEADERS_LIMIT = 64
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call; a status that is in `done` and in `dead` is done. `place` is what errors and logs may show of the URL,
    whose path and query may hold secrets."""

    method: str
    url: httpx.URL
    headers: tuple[tuple[str, str], ...]
    content: bytes
    timeout_ms: int
    done: frozenset[int]
    dead: frozenset[int]
    mask: Mask

    @property
    def place(self) -> str:
        return f"{self.method} {self.url.scheme}://{self.url.netloc.decode()}"


def read_request(payload: object, ctx: Context, secrets: Secrets, longest_ms: int) -> Request:
    """InvalidPayload naming the field; SecretMissing."""
    fields = Fields(payload, FIELDS)
    body = fields.one_of("json", "body", "body_base64")
    used: dict[str, str] = {}
    method = fields.text("method", "POST")
    if method not in METHODS:
        raise InvalidPayload(f"method: it is none of {', '.join(METHODS)}")
    if body and method in ("GET", "HEAD"):
        raise InvalidPayload(f"{body}: {method} has no body")
    url = _url(fields.text("url"), secrets, used)
    headers = _headers(fields.texts("headers"), secrets, used)
    host, port = url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]
    secrets.check_host("url", used, url.scheme, host, port)
    done, dead = _codes(fields, "ok", DONE), _codes(fields, "dead", DEAD)
    if "dead" in fields and (both := done & dead):
        raise InvalidPayload(f"dead: {min(both)} is in ok too")
    if body and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", _CONTENT_TYPES[body]))
    return Request(
        method=method,
        url=url,
        headers=(*headers, *_identity(ctx)),
        content=fields.content(body) if body else b"",
        timeout_ms=_timeout(fields, longest_ms),
        done=done,
        dead=dead,
        mask=mask(used.values()),
    )


# -- url -----------------------------------------------------------------------------------------------------


def _url(given: str, secrets: Secrets, used: dict[str, str]) -> httpx.URL:
    whole = REFERENCE.fullmatch(given)
    if whole:
        text = used[whole[1]] = secrets.value("url", whole[1])
    else:
        if "$" in _authority(given):
            raise InvalidPayload("url: a secret may be all of it or within path and query, not in the host")
        # A slash stays: what a webhook has as its secret is often two path segments.
        text = _filled("url", given, secrets, used, safe="/")
    return _parsed("url: the secret" if whole else "url:", text)


def _parsed(subject: str, text: str) -> httpx.URL:
    """What is wrong is said without the text, which may hold secrets."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, ValueError):
        raise InvalidPayload(f"{subject} is no URL") from None
    if url.scheme not in _PORTS:
        raise InvalidPayload(f"{subject} must begin with http:// or https://")
    if "@" in _authority(text) or "\\" in text:
        raise InvalidPayload(f"{subject} must hold no user, password or backslash; use a header and a secret")
    if url.port is not None and not 0 < url.port < 65_536:
        raise InvalidPayload(f"{subject} has a port that there is not")
    if not plain_host(url.raw_host.decode("ascii")):
        raise InvalidPayload(f"{subject} has no host, or one that is neither a name nor a plain address")
    return url


def _authority(url: str) -> str:
    """What stands between `//` and the next `/`, `?` or `#`."""
    match = re.match(r"[^/?#]*//([^/?#]*)", url)
    return match[1] if match else ""


def _filled(field: str, text: str, secrets: Secrets, used: dict[str, str], safe: str | None = None) -> str:
    """`text` with its references replaced, percent-encoded if `safe` is given."""

    def value(match: re.Match[str]) -> str:
        secret = used[match[1]] = secrets.value(field, match[1])
        return secret if safe is None else quote(secret, safe=safe)

    return REFERENCE.sub(value, text)


# -- headers -------------------------------------------------------------------------------------------------


def _headers(given: dict[str, str], secrets: Secrets, used: dict[str, str]) -> list[tuple[str, str]]:
    if len(given) > _HEADERS_LIMIT:
        raise InvalidPayload(f"headers: more than {_HEADERS_LIMIT}")
    for name, value in given.items():
        field, lower = f"headers.{name[:80]}", name.lower()
        if not _TOKEN.fullmatch(name):
            raise InvalidPayload(f"{field!r}: it is no name of a header")
        if lower in _OWN | _HOP or lower.startswith(_OWN_PREFIXES):
            raise InvalidPayload(f"{field}: it is set by the handler")
        if not _VALUE.fullmatch(value):
            raise InvalidPayload(f"{field}: it holds a line break or other than ASCII")
    if len({name.lower() for name in given}) < len(given):
        raise InvalidPayload("headers: the same name twice, in different case")
    return [(name, _filled(f"headers.{name}", text, secrets, used)) for name, text in given.items()]


def _identity(ctx: Context) -> list[tuple[str, str]]:
    """What lets the receiver do the effect once."""
    return [
        ("User-Agent", f"dueline/{__version__}"),
        ("Accept-Encoding", "identity"),
        *headers_of(ctx).items(),
        ("X-Job-Id", visible(ctx.job_id)),
        ("X-Job-Run", str(ctx.run)),
        ("X-Job-Nominal-At", written_instant(ctx.nominal_at)),
        *_last_success(ctx),
    ]


def _last_success(ctx: Context) -> list[tuple[str, str]]:
    at = ctx.last_success_at
    return [] if at is None else [("X-Job-Last-Success-At", written_instant(at))]


# -- the rest ------------------------------------------------------------------------------------------------


def _timeout(fields: Fields, longest_ms: int) -> int:
    if "timeout" not in fields:
        return longest_ms
    try:
        asked = parse_duration("timeout", fields.get("timeout"))
    except InvalidInput as error:
        raise InvalidPayload(str(error)) from None
    if asked == 0:
        raise InvalidPayload("timeout: it must be more than zero")
    return min(asked, longest_ms)


def _codes(fields: Fields, name: str, default: frozenset[int]) -> frozenset[int]:
    """Status codes, singly or as a class such as `2xx`."""
    if name not in fields:
        return default
    codes: set[int] = set()
    for item in fields.items(name):
        if isinstance(item, int) and not isinstance(item, bool) and 100 <= item <= 599:
            codes.add(item)
        elif re.fullmatch(r"[1-5]xx", text := checked_text(name, item)):
            codes.update(range(int(text[0]) * 100, int(text[0]) * 100 + 100))
        else:
            raise InvalidPayload(f"{name}: {item!r:.20} is no status code such as 404 or 4xx")
    return frozenset(codes)
