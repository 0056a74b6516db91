"""One opened page: who looks at it, what it asks, and what it may change."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, TypeVar

from nicegui import ui
from nicegui.client import Client
from starlette.requests import HTTPConnection, Request

from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.readmodel.questions import Position, Questions
from pipeline.server.access import (
    SESSION_COOKIE,
    Access,
    Forbidden,
    Principal,
    Role,
    Unauthenticated,
)
from pipeline.server.actions import Actions, Done
from pipeline.server.console import links
from pipeline.server.console.words import clean

T = TypeVar("T")
logger = logging.getLogger(__name__)
THREADS = 16
"""Questions asked at once; more wait their turn, and hold up nobody but themselves."""
SEEN_WITHIN_MS = 2_000
"""How long a change is waited for until pages show it."""
GOOD = frozenset(
    {
        "created",
        "accepted",
        "updated",
        "paused",
        "resumed",
        "deleted",
        "fired",
        "started",
        "counted",
        "cancelled",
    }
    | {
        "stopped",
        "stopping",
        "cancelling",
        "requeued",
        "brought_forward",
        "rescheduled",
        "resuming",
        "purged",
        "revoked",
    }
)
"""Outcomes that are what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What pages read from, change through, and ask who is there. `name` of the installation, may be empty."""

    questions: Questions
    actions: Actions
    access: Access
    name: str = ""
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "console"))


@dataclass(slots=True, kw_only=True)
class Visit:
    """Whoever opened the page is asked for again with each question and each change: a token that was revoked ends the
    open pages too."""

    console: Console
    request: Request
    client: Client
    who: Principal
    after_change: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    on_leave: Callable[[], None] | None = None
    """What happens instead of leaving for the sign-in page, where something that stands here would be lost."""

    @property
    def questions(self) -> Questions:
        return self.console.questions

    @property
    def actions(self) -> Actions:
        return self.console.actions

    @property
    def operates(self) -> bool:
        """Whether controls are shown at all; the server refuses whatever the page shows."""
        return self.who.role >= Role.OPERATOR

    def query(self, name: str) -> str:
        """What the address says under this name."""
        return self.request.query_params.get(name, "")

    async def ask(self, question: Callable[[Principal], T]) -> T:
        """An answer, off the event loop. Raises what the question raises; Unauthenticated."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.console.threads, lambda: question(self._principal()))

    def _principal(self) -> Principal:
        return principal_of(self.console.access, self.request)

    async def look(self, question: Callable[[Principal], T]) -> T | None:
        """An answer that a button wants. None: there is none, and why was told."""
        try:
            return await self.ask(question)
        except Exception as error:  # noqa: BLE001  # whoever pressed it hears of it
            self._told(error)
            return None

    async def change(
        self, act: Callable[[Principal], Awaitable[Done]], words: Mapping[str, str] | None = None
    ) -> Done | None:
        """Make a change, tell how it went, and show the page as it is after it. None: it was refused, and why was
        told. `words`: of outcomes that mean something else here."""
        try:
            done = await act(await self.ask(lambda who: who))
        except Exception as error:  # noqa: BLE001  # whoever pressed it hears of it
            self._told(error)
            return None
        outcome = done.view.get("outcome") or done.view.get("status")
        if outcome is not None:  # of several at once the page tells how many came out how
            said = (words or {}).get(str(outcome)) or told(str(outcome))
            self.tell(said, good=outcome in GOOD, link=_link(done.view))
        await self._seen(done)
        return done

    def _told(self, error: Exception) -> None:
        match error:
            case Unauthenticated():
                self.leave()
            case DuelineError():
                self.tell(problem_of(error), good=False)
            case _:
                logger.error("console", exc_info=error, extra={"action": "console.change"})
                self.tell("The server failed; its log says why.", good=False)

    async def _seen(self, done: Done) -> None:
        for position in done.positions:
            await self.look(partial(self._wait_for, position))
        for again in self.after_change:
            await again()

    def _wait_for(self, position: Position, _: Principal) -> bool:
        return self.questions.wait_for(position, SEEN_WITHIN_MS)

    def tell(
        self, text: str, *, good: bool = True, stays: bool = False, link: tuple[str, str] | None = None
    ) -> None:
        """A short note at the foot of the page, which screen readers speak. `stays`: until it is closed; `link`: its
        text and address."""
        if self.client.is_deleted:
            return
        message = escape(clean(text, 300))
        if link is not None:
            message += f' <a href="{escape(link[1])}">{escape(link[0])}</a>'
        with self.client.content:
            ui.notify(
                message,
                html=True,
                position="bottom",
                timeout=0 if stays else 4_000 if good else 9_000,
                close_button="Close",
            )

    def go(self, address: str, saying: str = "") -> None:
        """To another page, which shows a note then."""
        if not self.client.is_deleted:
            if saying:
                self.client.run_javascript(f"dueline.sayNext({json.dumps(clean(saying, 300))})")
            self.client.open(address.removeprefix(links.BASE))

    def leave(self) -> None:
        """To the sign-in page, and back here afterwards, with what was typed."""
        if self.on_leave is not None:
            if not self.client.is_deleted:
                self.on_leave()
            return
        if not self.client.is_deleted:
            self.client.run_javascript("dueline.keepFields()")
        self.go(links.to("sign-in", next=here(self.request), ended=1))


def _link(view: Mapping[str, Any]) -> tuple[str, str] | None:
    """To the job that an occurrence was fired as."""
    occurrence = view.get("occurrence_id")
    return None if occurrence is None else ("Open the job", links.job(str(occurrence)))


def now_ms() -> int:
    """Epoch ms, by the clock of this machine."""
    return time.time_ns() // 1_000_000


def here(request: Request) -> str:
    """The address of this page, to come back to."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


async def who_asks(access: Access, connection: HTTPConnection) -> Principal:
    """Who asks; the store is asked only where it could help. Unauthenticated; StoreUnreachable."""
    return await access.admitted(bearer=None, session=connection.cookies.get(SESSION_COOKIE))


def principal_of(access: Access, request: HTTPConnection) -> Principal:
    """As `who_asks`, from a thread that may wait."""
    return access.principal(bearer=None, session=request.cookies.get(SESSION_COOKIE))


def told(outcome: str) -> str:
    """An outcome in words."""
    return _TOLD.get(outcome, outcome.replace("_", " ").capitalize())


_TOLD = {
    "existing": "One with this id already exists; it was left as it is",
    "accepted": "Stored; no owner has answered yet",
    "unknown": "No owner answered in time; the request is stored and will be carried out",
    "too_late": "Too late: it has already fired",
    "not_found": "It no longer exists",
    "pending": "It has not fired yet, so there is nothing to requeue",
    "skipped": "Skipped: an earlier run is still in progress",
    "stopping": "Its worker has been asked to stop it",
    "brought_forward": "Its waiting retry runs now",
}


def problem_of(error: DuelineError) -> str:
    """What went wrong, in one line for people."""
    match error:
        case StoreUnreachable():
            return f"The store cannot be reached: {error}"
        case Forbidden():
            return f"Not allowed: {error}"
        case _:
            return str(error)
