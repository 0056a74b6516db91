"""Signing in and out: plain forms, since a cookie can only be set by an answer to a request."""

from __future__ import annotations

from html import escape
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from pipeline.core.errors import StoreUnreachable
from pipeline.server.access import SESSION_COOKIE, SESSION_MS, Forbidden, Unauthenticated, check_csrf
from pipeline.server.console import links
from pipeline.server.console.sheet import sheet
from pipeline.server.console.visit import Console, who_asks
from pipeline.server.limits import whole_body
from pipeline.server.problems import TooLarge, TooSlow

LONGEST = 4_096
"""Bytes of a form at most."""
_BACK = """<script>
fetch("%s").then((answer) => { if (answer.ok) location.replace(document.querySelector("input[name=next]").value); });
</script>"""
"""A link from another site comes without the cookie (SameSite=Strict), though one is there; from here it is sent."""


def add_sign_in(app: FastAPI, console: Console) -> None:
    """The door, at `/sign-in`, `/sign-out` and `/session`; `/signed-in` is behind it."""
    door = _Door(console)
    for path, method, answer in (
        ("/sign-in", "GET", door.form),
        ("/sign-in", "POST", door.sign_in),
        ("/sign-out", "POST", door.sign_out),
        ("/session", "GET", door.session),
        ("/signed-in", "GET", door.signed_in),
    ):
        app.router.routes.append(Route(path, answer, methods=[method]))


class _Door:
    def __init__(self, console: Console) -> None:
        self._access = console.access

    async def form(self, request: Request) -> Response:
        problem = "Your session has ended." if "ended" in request.query_params else ""
        return _answer(_form(_safe(request.query_params.get("next")), problem), 200)

    async def sign_in(self, request: Request) -> Response:
        given = await _fields(request)
        back = _safe(given.get("next"))
        try:
            _, cookie = await self._access.at_the_door(self._access.log_in, given.get("token", ""))
        except Unauthenticated as error:
            return _answer(_form(back, str(error)), 401)
        except StoreUnreachable:
            return _answer(_form(back, "The store cannot be reached; try again."), 503)
        answer = RedirectResponse(back, status_code=303)
        answer.set_cookie(
            SESSION_COOKIE,
            cookie,
            max_age=SESSION_MS // 1000,
            httponly=True,
            samesite="strict",
            secure=_by_https(request),
            path="/",
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        cookie = request.cookies.get(SESSION_COOKIE, "")
        answer = RedirectResponse(links.to("sign-in"), status_code=303)
        try:
            check_csrf(cookie, (await _fields(request)).get("csrf"))
            await self._access.at_the_door(self._access.log_out, cookie)
        except Forbidden:
            return answer  # another site asked: nothing is done
        except StoreUnreachable:
            return _answer(sheet("The store cannot be reached", "<p>You are still signed in.</p>"), 503)
        answer.delete_cookie(SESSION_COOKIE, path="/")
        return answer

    async def signed_in(self, _: Request) -> Response:
        """For who has signed in again beside a form that waits in another tab."""
        told = "<p>Close this tab and go on where you were: what you typed there is kept.</p>"
        return _answer(sheet("You are signed in", told), 200)

    async def session(self, request: Request) -> Response:
        """Whether there is one."""
        try:
            await who_asks(self._access, request)
        except (Unauthenticated, StoreUnreachable):
            return Response(status_code=401)
        return Response(status_code=204)


def _answer(page: str, status: int) -> Response:
    return HTMLResponse(page, status_code=status, headers={"cache-control": "no-store"})


def _by_https(request: Request) -> bool:
    """Whether the browser speaks https, if only to the proxy before us: it says where the page of its form came from,
    and the guard of the server has compared that with the host."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


async def _fields(request: Request) -> dict[str, str]:
    """Of a small form that comes without long pauses; anything else is none of ours."""
    try:
        body = await whole_body(request, LONGEST)
    except (TooLarge, TooSlow):
        return {}
    return {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _safe(address: str | None) -> str:
    """A page of ours: anything else, and we would send people wherever a link says."""
    good = (
        address is not None
        and address.startswith(f"{links.BASE}/")
        and "\\" not in address
        and "\n" not in address
    )
    return address if address is not None and good else links.to("")


def _form(back: str, problem: str = "") -> str:
    error = f'<span class="error" role="alert" id="problem">{escape(problem)}</span>' if problem else ""
    blamed = ' aria-invalid="true" aria-describedby="problem"' if problem else ""
    markup = (
        '<p class="muted">Use a token; <code>dueline token create</code> makes one.</p>'
        f'<form method="post" action="{links.to("sign-in")}"><input type="hidden" name="next" value="{escape(back)}">'
        '<div class="field coded"><label for="token">Token</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus'
        f"{blamed}>{error}</div>"
        '<button class="btn main" type="submit">Sign in</button></form>'
    )
    return sheet("Sign in", markup, script=_BACK % links.to("session"))
