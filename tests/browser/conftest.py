"""One browser and one server for all tests; a context for each test, signed in as whom it wants.

Pictures of every page go to `DUELINE_SHOTS` (default build/shots). Chromium that is missing fails the tests: pages that
nobody has looked at prove nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser.fake import Store
from browser.serve import Served
from nicegui.client import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from pipeline.server.access import SESSION_COOKIE, Role

WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where pictures go."""
    place = Path(os.environ.get("DUELINE_SHOTS", "build/shots"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@contextmanager
def launched() -> Iterator[Browser]:
    """A Chromium."""
    program = os.environ.get("DUELINE_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.fail(
            f"none of {', '.join(PROGRAMS)} is installed, and DUELINE_CHROMIUM names none", pytrace=False
        )
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    served = Served(Store()).start()
    yield served
    served.stop()


@pytest.fixture
def served(server: Served) -> Served:
    """As it is at first, once no page of an earlier test asks for anything."""
    until(lambda: not any(client.has_socket_connection for client in list(Client.instances.values())))
    if server.store.hold is not None:
        server.store.hold.set()
    until(lambda: server.store.answering == 0)
    server.store.begin()
    return server


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_MS} ms"
        time.sleep(0.01)


Open = Callable[..., Page]


class Contexts:
    """Browser contexts, signed in. One for each role is kept: scripts and styles then come from its cache."""

    def __init__(self, chromium: Browser, served: Served) -> None:
        self._chromium, self._served = chromium, served
        self._kept: dict[Role, BrowserContext] = {}

    def of(
        self, role: Role | None, token: str | None, options: dict[str, Any]
    ) -> tuple[BrowserContext, bool]:
        """And whether it is to be closed after use."""
        if role is None or token is not None or options:
            return self._made(role, token, options), True
        if role not in self._kept:
            self._kept[role] = self._made(role, None, {})
        return self._kept[role], False

    def _made(self, role: Role | None, token: str | None, options: dict[str, Any]) -> BrowserContext:
        context = self._chromium.new_context(**{"viewport": WIDE, "color_scheme": "light", **options})
        context.set_default_timeout(PATIENCE_MS)
        if role is not None:
            cookie = self._served.cookie(token or self._served.tokens[role])
            own = {"name": SESSION_COOKIE, "value": cookie, "url": self._served.url}
            context.add_cookies([{**own, "httpOnly": True, "sameSite": "Strict"}])  # type: ignore[typeddict-item]
        return context


@pytest.fixture(scope="session")
def contexts(chromium: Browser, server: Served) -> Contexts:
    return Contexts(chromium, server)


@pytest.fixture
def open_page(contexts: Contexts, served: Served) -> Iterator[Open]:
    """`open_page("jobs?q=…", role=Role.VIEWER)`: a page of the console once it is live, that has asked nobody else for
    anything and has had no error in its scripts."""
    closing: list[Page | BrowserContext] = []
    problems: list[str] = []

    def opened(
        address: str,
        *,
        role: Role | None = Role.ADMIN,
        token: str | None = None,
        live: bool = True,
        **options: Any,
    ) -> Page:
        context, ends = contexts.of(role, token, options)
        page = context.new_page()
        closing.append(context if ends else page)
        page.on("pageerror", lambda error: problems.append(f"script: {error}"))
        page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: _same_place(request.url, served, problems))
        page.goto(f"{served.url}/console/{address}")
        if live:
            page.locator(".fresh:not(.paused)").wait_for()
        return page

    yield opened
    for each in closing:
        if isinstance(each, Page) and not each.is_closed():
            each.evaluate("localStorage.clear()")
        each.close()
    assert not [each for each in problems if not _wanted(each)]


def _same_place(url: str, served: Served, problems: list[str]) -> None:
    if not url.startswith((served.url, served.url.replace("http", "ws"), "data:", "blob:")):
        problems.append(f"asked elsewhere: {url}")


def _wanted(problem: str) -> bool:
    """What a browser says of answers that a test asks for."""
    return "the server responded with a status of 40" in problem or "status of 503" in problem


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages ask every half second."""
    from pipeline.server.console import live

    monkeypatch.setattr(live.ui, "timer", _hurried(live.ui.timer))


def _hurried(timer: Any) -> Any:
    return lambda interval, act, **more: timer(min(interval, 0.5), act, **more)
