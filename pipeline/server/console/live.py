"""A page that asks again every few seconds, and says so when it cannot: loading, live, behind, broken."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from nicegui import ui

from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.readmodel.questions import Freshness
from pipeline.server.access import Forbidden, Principal, Unauthenticated
from pipeline.server.console.parts.basic import Tag, banner, bones, empty
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import clean, length, number

T = TypeVar("T")
logger = logging.getLogger(__name__)
FIRST_WAIT_S = 0.4
"""An answer that comes within it is in the page as it is sent; else bones are, and it follows."""
BEHIND_MS = 5_000
"""A read model that is further behind says so on each page."""


class Live(Generic[T]):
    """Asks off the event loop, draws on it. One of a page.

    `ask` is a question in the name of whoever looks; `draw` makes the elements of an answer the first time, and after
    that brings them up to date. `missing` is said where there is no such thing.
    """

    def __init__(
        self,
        visit: Visit,
        *,
        head: Head,
        body: Tag,
        ask: Callable[[Principal], T],
        draw: Callable[[T], None],
        every: float,
        missing: str,
    ) -> None:
        self._visit, self._head, self._body = visit, head, body
        self._missing = missing
        self._ask, self._draw = ask, draw
        self._drawn = False
        self._asking = False
        self._wanted = True
        with body:
            self._waiting = bones()
        self._timer = ui.timer(every, self._tick, immediate=False)
        head.on_pause = self._pause
        head.on_refresh = self.refresh
        visit.after_change.append(self.refresh)
        ui.on("seen", lambda event: self._seen(bool(event.args)))

    async def start(self) -> None:
        """The first answer, in the page itself if it comes at once."""
        first = asyncio.ensure_future(self.refresh())
        await asyncio.wait({first}, timeout=FIRST_WAIT_S)

    async def _tick(self) -> None:
        # one that takes long is not asked for twice, and nothing for a browser that has gone away
        if not self._asking and self._visit.client.has_socket_connection:
            await self.refresh()

    async def refresh(self) -> None:
        self._asking = True
        try:
            fresh, answer = await self._visit.ask(self._question)
            self._show(fresh, answer)
        except Exception as error:  # noqa: BLE001  # whatever a page cannot show, it says so and asks again
            self._failed(error)
        finally:
            self._asking = False

    def _question(self, who: Principal) -> tuple[Freshness, T]:
        return self._visit.questions.freshness(), self._ask(who)

    def _show(self, fresh: Freshness, answer: T) -> None:
        if self._visit.client.is_deleted:
            return
        self._clear_waiting()
        with self._body:
            self._draw(answer)
        self._drawn = True
        self._head.fresh(fresh, paused=not self._wanted)
        self._body.mark_as("page-body" if fresh.problem is None else "page-body dimmed")

    def _failed(self, error: Exception) -> None:
        if self._visit.client.is_deleted:
            return
        match error:
            case Unauthenticated():
                self._visit.leave()
            case NotFound() | Forbidden():
                self._instead(error)
            case InvalidInput():
                self._clear_waiting()
                self._timer.deactivate()
                self._head.ended()
                self._head.problem("This cannot be shown.", str(error), "warn")
            case StoreUnreachable():
                self._broken(str(error))
            case _:
                logger.error("console", exc_info=error, extra={"action": "console.page"})
                self._broken("The server failed to answer; its log says why.", title="This cannot be shown.")

    def _instead(self, error: Exception) -> None:
        """There is nothing to show: say so once, and ask no more."""
        self._timer.deactivate()
        self._body.clear()
        self._head.ended()
        with self._body, Tag("section", classes="block"):
            if isinstance(error, Forbidden):
                empty("Not allowed", clean(str(error), 300))
            else:
                empty(self._missing, clean(str(error), 300))

    def _broken(self, why: str, title: str = "The store cannot be reached.") -> None:
        every = f"Trying again every {self._timer.interval:g} s."
        self._head.broken(f"{clean(why, 300).rstrip('.')}.", every, title=title, drawn=self._drawn)
        if self._drawn:
            self._body.mark_as("page-body dimmed")

    def _clear_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.delete()
            self._waiting = None  # type: ignore[assignment]

    # -- who looks -------------------------------------------------------------------------------------------------

    async def _pause(self, paused: bool) -> None:
        self._wanted = not paused
        self._timer.active = self._wanted
        if self._wanted:
            await self.refresh()

    async def _seen(self, visible: bool) -> None:
        self._timer.active = visible and self._wanted
        if self._timer.active:
            await self.refresh()


class Head:
    """The line above a page: its title, how fresh it is, its tools; and what is wrong, below it."""

    def __init__(self, title: str, *, crumb: tuple[str, str] | None = None) -> None:
        """`crumb`: name and address of the list that this page belongs to."""
        self.on_pause: Callable[[bool], Any] = lambda _: None
        self.on_refresh: Callable[[], Any] = lambda: None
        self._paused = False
        with Tag("div", classes="head"):
            with Tag("div", classes="titles"):
                if crumb is not None:
                    with Tag("div", classes="crumb"):
                        Tag("a", crumb[0], href=crumb[1])
                self.titles_row = Tag("div", classes="row")
                with self.titles_row:
                    self.title = Tag("h1", title)
            self.tools = Tag("div", classes="tools")
        self._banners = Tag("div")
        self._last = ("", "", "")
        self._at: str | None = None

    def live_controls(self) -> None:
        """How fresh it is, and two buttons."""
        with self.tools:
            self._state = Tag("span", "Loading", "fresh paused", role="status")
            self._refresh = Tag("button", "Refresh", "btn small", type="button")
            self._refresh.on("click", lambda _: self.on_refresh(), args=[])
            self._pause = Tag("button", "Pause updates", "btn small", type="button")
            self._pause.on("click", lambda _: self._flip(), args=[])

    def _flip(self) -> Any:
        self._paused = not self._paused
        self._pause.say("Resume updates" if self._paused else "Pause updates")
        if self._paused:
            self._say("Paused", "paused")
        return self.on_pause(self._paused)

    def fresh(self, fresh: Freshness, *, paused: bool) -> None:
        self._at = datetime.now(UTC).strftime("%H:%M:%S UTC")
        if fresh.problem is not None:
            self.problem(
                "This page may be out of date.",
                f"{fresh.problem.rstrip('.')}. It will catch up by itself.",
                "warn",
            )
            self._say("Not updating", "behind")
        elif not fresh.ready or fresh.age_ms > BEHIND_MS:
            text = f"{number(fresh.behind)} records behind, the oldest {length(fresh.age_ms)} old"
            self.problem("This page is out of date.", f"The read model is catching up: {text}.", "warn")
            self._say(f"{length(fresh.age_ms)} behind", "behind")
        else:
            self.problem("", "")
            self._say("Paused" if paused else "Live", "paused" if paused else "")

    def ended(self) -> None:
        """There is nothing to be live."""
        self.problem("", "")
        for each in (self._state, self._refresh, self._pause):
            each.mark_as("hidden")

    def broken(self, why: str, every: str, *, title: str, drawn: bool) -> None:
        shown = f"This page is as of {self._at}." if drawn else "Nothing can be shown yet."
        self.problem(title, f"{why} {shown} {every}", "bad")
        self._say("No answer", "broken")

    def problem(self, title: str, text: str, kind: str = "") -> None:
        """Say what is wrong, until it is right again; empty: nothing is."""
        if (title, text, kind) == self._last:
            return
        self._last = (title, text, kind)
        self._banners.clear()
        if title or text:
            with self._banners:
                banner(title, text, kind)

    def _say(self, text: str, kind: str) -> None:
        self._state.say(text)
        self._state.mark_as(f"fresh {kind}".strip())
