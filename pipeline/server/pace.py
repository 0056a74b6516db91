"""How often somebody may ask who need not say who they are: by the address they come from, so behind a proxy all share
these. Generous: they keep a loop from taking the server away from everybody else."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.server.limits import Rates
from pipeline.server.problems import TooMany, problem_of

SIGN_INS, SIGN_INS_AHEAD_S = 2.0, 10.0
"""A second, and how many seconds' worth at once: who signs in has a session made, which every server keeps."""
PAGES = 100.0
PROBES = 100.0
SIGN_IN = "/console/sign-in"
CONSOLE = "/console"
ASSETS = ("/console/_nicegui", "/console/static/")
"""A page wants many of them, and they cost little; the socket of a page is among them."""
PROBED = frozenset({"/healthz", "/readyz", "/api/v1/openapi.json", "/api/v1/docs"})


class Pace:
    """ASGI middleware. `monotonic` in seconds."""

    def __init__(self, app: ASGIApp, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._sign_ins = Rates(SIGN_INS, monotonic, what="sign-ins", burst_s=SIGN_INS_AHEAD_S)
        self._pages = Rates(PAGES, monotonic, what="pages")
        self._probes = Rates(PROBES, monotonic, what="probes")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rates = self._rates(scope) if scope["type"] == "http" else None
        if rates is not None:
            try:
                rates.take((scope.get("client") or ("",))[0])
            except TooMany as error:
                await problem_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _rates(self, scope: Scope) -> Rates | None:
        path = scope["path"]
        if path in PROBED:
            return self._probes
        if not path.startswith(CONSOLE) or path.startswith(ASSETS):
            return None
        return self._sign_ins if path == SIGN_IN and scope["method"] == "POST" else self._pages
