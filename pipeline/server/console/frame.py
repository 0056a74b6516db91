"""What stands around each page: navigation, who is there, switches; and how a page is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pipeline.server.access import SESSION_COOKIE, Principal, Role, csrf_of
from pipeline.server.console import links
from pipeline.server.console.live import Head, Live
from pipeline.server.console.parts.basic import Tag
from pipeline.server.console.visit import Visit

T = TypeVar("T")
PAGES = (
    ("", (("", "Now"), ("crontab", "Crontab"), ("buckets", "Buckets"))),
    ("Jobs", (("jobs", "Jobs"), ("dead", "Dead letters"), ("replays", "Replays"))),
    ("System", (("fleet", "Fleet"), ("queues", "Queues"), ("activity", "Activity"), ("tokens", "Tokens"))),
)
OF_ALL = ("", "buckets", "replays", "activity", "tokens")
"""Pages about everything, which are not for whoever is limited to some queues."""
OF_ADMINS = ("tokens",)
EVERY_S = 5.0


class Frame:
    """`head` and `body` are the page's own. `current` is the entry of the navigation that it belongs to."""

    def __init__(
        self, visit: Visit, title: str, *, current: str, crumb: tuple[str, str] | None = None
    ) -> None:
        self._visit = visit
        client = visit.client
        client.title = f"{title} · Dueline"
        client.layout.classes("dl")
        with client.layout:
            side = _side(visit, current)
            skip = Tag("a", "Skip to content", "skip", href=f"#{client.content.html_id}")
        side.move(client.layout, target_index=0)
        skip.move(client.layout, target_index=0)
        client.content.props["tabindex"] = "-1"
        self.head = Head(title, crumb=crumb)
        self.body = Tag("div", classes="page-body")

    async def live(
        self,
        ask: Callable[[Principal], T],
        draw: Callable[[T], None],
        *,
        every: float = EVERY_S,
        missing: str = "Not found",
    ) -> None:
        """Show what is asked for, again and again; `missing` is said if it is not there."""
        self.head.live_controls()
        head, body = self.head, self.body
        await Live(
            self._visit, head=head, body=body, ask=ask, draw=draw, every=every, missing=missing
        ).start()


def _side(visit: Visit, current: str) -> Tag:
    with Tag("header", classes="side") as side:
        with Tag("a", classes="brand", href=links.to("")):
            _mark()
            Tag("span", "Dueline")
        if visit.console.name:
            Tag("div", visit.console.name, "where muted")
        Tag("button", "Menu", "btn small menu-button", type="button", aria_expanded="false")
        with Tag("nav", aria_label="Pages"):
            for group, pages in PAGES:
                if group:
                    Tag("div", group, "group")
                with Tag("ul"):
                    for page, name in pages:
                        if page in OF_ALL and visit.who.queues is not None:
                            continue
                        if page in OF_ADMINS and visit.who.role < Role.ADMIN:
                            continue
                        with Tag("li"):
                            Tag(
                                "a",
                                name,
                                href=links.to(page),
                                aria_current="page" if page == current else None,
                            )
        with Tag("div", classes="foot"):
            Tag("a", "API reference", href="/api/v1/docs")
            _switch("Times", "zone", (("local", "Local"), ("utc", "UTC")))
            _switch("Theme", "theme", (("system", "Auto"), ("light", "Light"), ("dark", "Dark")))
            _who(visit)
    return side


def _mark() -> None:
    """A clock's face with its hand at the hour."""
    with Tag("svg", viewBox="0 0 18 18", aria_hidden="true"):
        Tag("circle", cx="9", cy="9", r="7.5", fill="none", stroke="currentColor", stroke_width="1.8")
        Tag(
            "path",
            d="M9 4.5V9l3.2 2",
            fill="none",
            stroke="currentColor",
            stroke_width="1.8",
            stroke_linecap="round",
        )


def _switch(label: str, group: str, choices: tuple[tuple[str, str], ...]) -> None:
    with Tag("div", classes="switch", role="group", aria_label=label):
        for value, text in choices:
            Tag("button", text, type="button", **{f"data_{group}": value})


def _who(visit: Visit) -> None:
    if visit.console.access.open:
        Tag("div", "No tokens yet: anyone who can reach this server is an admin", "who muted")
        return
    Tag("div", f"{visit.who.name} · {visit.who.role.word}", "who")
    if visit.who.queues is not None:
        Tag("div", f"Queues: {', '.join(sorted(visit.who.queues))}", "who muted")
    cookie = visit.request.cookies.get(SESSION_COOKIE, "")
    with Tag("form", method="post", action=links.to("sign-out")):
        Tag("input", type="hidden", name="csrf", value=csrf_of(cookie))
        Tag("button", "Sign out", "btn small", type="submit")
