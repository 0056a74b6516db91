"""The door of the console: its cookie, and forms that do not come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from nicegui.client import Client
from starlette.requests import Request

from pipeline.server import limits
from pipeline.server.access import SESSION_COOKIE, Unauthenticated
from pipeline.server.console import mount_console
from pipeline.server.console.sign_in import _Door


class Doorkeeper:
    def log_in(self, token: str) -> tuple[None, str]:
        if token != "good":
            raise Unauthenticated("no")
        return None, "the cookie"

    async def at_the_door(self, function: Any, *args: Any) -> Any:
        return function(*args)


def signed_in(body: bytes, headers: dict[str, str], *, ends: bool = True) -> Any:
    """The answer to a form."""
    told: list[Any] = [{"type": "http.request", "body": body, "more_body": not ends}]

    async def receive() -> Any:
        if not told:
            await asyncio.Event().wait()
        return told.pop()

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "path": "/console/sign-in",
        "query_string": b"",
        "server": ("localhost", 80),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    door = _Door(cast("Any", SimpleNamespace(access=Doorkeeper())))
    return asyncio.run(asyncio.wait_for(door.sign_in(Request(scope, receive)), 20))


@pytest.mark.parametrize(
    ("origin", "secure"), [("https://jobs.example", True), ("http://localhost:9664", False), ("", False)]
)
def test_the_cookie_is_secure_where_the_browser_speaks_https_to_a_proxy(origin: str, secure: bool) -> None:
    answer = signed_in(b"token=good", {"origin": origin} if origin else {})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.status_code == 303
    assert cookie.startswith(f'{SESSION_COOKIE}="the cookie"')
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert ("secure" in cookie) is secure


def test_a_form_that_does_not_end_or_is_too_large_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAUSE_S", 0.02)
    assert signed_in(b"token=good", {}, ends=False).status_code == 401
    assert signed_in(b"token=good&x=" + b"x" * 5_000, {}).status_code == 401


def test_who_is_not_known_makes_no_page(served: Any) -> None:
    served.token("admin")
    app = FastAPI()
    services = served.services
    mount_console(app, questions=services.questions, actions=services.actions, access=services.access)

    async def asked(path: str) -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return (await client.get(path)).status_code

    before = dict(Client.instances)
    for path, status in (
        ("/console/_nicegui/x", 404),
        ("/console/sign-out", 404),
        ("/console/static/x", 404),
        ("/console/jobs", 303),
    ):
        assert asyncio.run(asked(path)) == status
    assert Client.instances == before
