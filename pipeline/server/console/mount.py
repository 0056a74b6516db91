"""The console on the application of the API: pages under `/console/`, their guard, what they are served with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import nicegui
from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from nicegui import ui
from nicegui.client import Client
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pipeline.readmodel.questions import Questions
from pipeline.server.access import Access
from pipeline.server.actions import Actions
from pipeline.server.console import links
from pipeline.server.console.guard import Guard
from pipeline.server.console.pages import PAGES
from pipeline.server.console.pages.nowhere import nowhere
from pipeline.server.console.sheet import ICON, STATIC, asset
from pipeline.server.console.sign_in import add_sign_in
from pipeline.server.console.sockets import listen
from pipeline.server.console.visit import Console, Visit, who_asks

RECONNECT_S = 15.0
"""A page whose connection broke comes back as it was within this time; then it is loaded anew."""
PAGE_WITHIN_S = 10.0


def mount(app: FastAPI, *, questions: Questions, actions: Actions, access: Access, name: str) -> None:
    """As `mount_console`."""
    console = Console(questions=questions, actions=actions, access=access, name=name)
    pages = nicegui.app
    _clear(pages)
    head = _head()
    for path, build in PAGES.items():
        _add(path, build, console, head)
    add_sign_in(pages, console)
    pages.add_static_files("/static", STATIC, max_cache_age=3600)
    for path in NOTHING:
        pages.router.routes.append(Route(path, _nothing, methods=["GET"]))
    _add("/{rest:path}", nowhere, console, head)
    pages.add_middleware(Guard, console=console)
    for path in ("/", links.BASE):
        app.router.routes.append(Route(path, _to_console, methods=["GET"]))
    ui.run_with(
        app,
        mount_path=links.BASE,
        title="Dueline",
        favicon=ICON,
        language="en-GB",
        dark=False,
        tailwind=False,
        reconnect_timeout=RECONNECT_S,
        message_history_length=100,
        binding_refresh_interval=None,
        gzip_middleware_factory=_zipped,
        show_welcome_message=False,
    )
    listen()


Build = Callable[[Visit], Awaitable[None]]
NOTHING = ("/sign-out", "/_nicegui/{rest:path}")
"""Whoever is not known gets so far (`guard`): not to the page that says that there is no such page, which NiceGUI
keeps in memory for a minute."""
OWN = ("/sign-in", "/session", "/signed-in", "/static/{path:path}", *NOTHING)
"""Routes beside the pages; NiceGUI replaces those itself."""


def _clear(pages: FastAPI) -> None:
    """What an earlier application of this process has left, as in tests."""
    pages.middleware_stack = None
    pages.user_middleware.clear()
    pages.router.routes[:] = [each for each in pages.router.routes if getattr(each, "path", None) not in OWN]


def _zipped(app: ASGIApp) -> GZipMiddleware:
    """At level 9, which is the default, the 3 MB that a first visit loads take three times the processor's time, and
    are 5 % smaller."""
    return GZipMiddleware(app, minimum_size=1_000, compresslevel=4)


async def _nothing(_: Request) -> Response:
    return PlainTextResponse("there is nothing here", status_code=404)


async def _to_console(_: Request) -> Response:
    return RedirectResponse(links.to(""))


def _add(path: str, build: Build, console: Console, head: str) -> None:
    async def page(request: Request, client: Client) -> Response | None:
        who = await who_asks(console.access, request)
        if path == "/" and who.queues is not None:  # what is first is not for them
            return RedirectResponse(links.to("jobs"))
        ui.add_head_html(head)
        await build(Visit(console=console, request=request, client=client, who=who))
        return None

    ui.page(path, response_timeout=PAGE_WITHIN_S, favicon=ICON)(page)


def _head() -> str:
    return (
        f'<link rel="stylesheet" href="{asset("console.css")}"><script src="{asset("console.js")}"></script>'
    )
