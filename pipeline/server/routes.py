"""From the path of a request to its endpoint: what comes before the frameworks of pages, which a job need not pass.

A path is taken as it was sent, decoded once: no redirects, no trailing slash, no other case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.server.endpoint import Endpoint
from pipeline.server.problems import UNKNOWN_METHOD, UNKNOWN_PATH, problem
from pipeline.server.serving import Serving

SEE = "see /api/v1/docs"
NAME_LIMIT = 512
"""Characters of a name in a path at most."""


class Routes:
    """ASGI middleware that serves what begins with one of `prefixes`, and hands on the rest."""

    def __init__(
        self, app: ASGIApp, *, serving: Serving, endpoints: Iterable[Endpoint], prefixes: tuple[str, ...]
    ) -> None:
        self._app = app
        self._serving = serving
        self._prefixes = prefixes
        self._fixed: dict[str, dict[str, Endpoint]] = {}
        self._named: dict[re.Pattern[str], dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            pattern, _, names = compile_path(endpoint.path)
            if names:
                self._named.setdefault(pattern, {})[endpoint.method] = endpoint
            else:
                self._fixed.setdefault(endpoint.path, {})[endpoint.method] = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._prefixes):
            await self._app(scope, receive, send)
            return
        response = await self._answer(scope, receive)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        allowed: set[str] = set()
        for methods, names in self.find(scope):
            if (endpoint := methods.get(method)) is not None:
                scope["path_params"] = names
                return await self._serving.serve(endpoint, Request(scope, receive))
            allowed.update(methods)
        if not allowed:
            return problem(UNKNOWN_PATH, SEE)
        return problem(UNKNOWN_METHOD, SEE, headers={"Allow": ", ".join(sorted(allowed))})

    def find(self, scope: Scope) -> Iterator[tuple[Mapping[str, Endpoint], Mapping[str, str]]]:
        """What there is at a path, by method, and the names in it: a schedule may be called like a path of ours."""
        path = scope["path"]
        if path in self._fixed:
            yield self._fixed[path], {}
        try:  # the names by the path as it was sent, so that an encoded slash stays within its name
            raw = scope.get("raw_path", path.encode()).decode("ascii")
        except UnicodeDecodeError:
            return
        for pattern, methods in self._named.items():
            if (match := pattern.match(raw)) is not None:
                names = _decoded(match.groupdict())
                if names is not None:
                    yield methods, names
                return


def _decoded(raw: Mapping[str, str]) -> Mapping[str, str] | None:
    """None if they cannot be names."""
    try:
        names = {name: unquote_to_bytes(text).decode() for name, text in raw.items()}
    except UnicodeDecodeError:
        return None
    if any(len(text) > NAME_LIMIT or "\0" in text for text in names.values()):
        return None
    return names
