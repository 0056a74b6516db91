"""Searching and going on: plain forms and links, so that the address says what is shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from pipeline.readmodel.questions import Page
from pipeline.server.console import links
from pipeline.server.console.parts.basic import Tag, link
from pipeline.server.console.words import plural, sendable

FILL_S = 0.4
"""How long a page may be looked for: each answer has looked at a bounded number of records."""


def filled(ask: Callable[[int, str | None], Page], rows: int, cursor: str | None) -> Page:
    """A page of so many rows, or of what is found in the time there is. `ask` is given how many are wanted, and where
    to go on."""
    found: list[dict[str, Any]] = []
    scanned, deadline = 0, time.monotonic() + FILL_S
    while True:
        page = ask(rows - len(found), cursor)
        found += page.rows
        scanned, cursor = scanned + page.scanned, page.cursor
        if cursor is None or len(found) >= rows or time.monotonic() > deadline:
            return Page(rows=found, cursor=cursor, scanned=scanned)


class Gathering:
    """A page that is looked for over several refreshes, where one does not suffice: each goes on where the last one
    left off, and what was found is shown until as much has been looked at anew. Any thread."""

    def __init__(self, rows: int, cursor: str | None) -> None:
        """`cursor`: where the page begins in its list."""
        self._rows, self._cursor = rows, cursor
        self._lock = threading.Lock()
        self._shown: Gathered | None = None
        self._under_way: Gathered | None = None

    def more(self, now: int, ask: Callable[[int, int, str | None], Page]) -> Gathered:
        """`ask` is given an instant (epoch ms), how many are wanted and where to go on. The instant is the one from
        when the page was begun, since a list goes on as the one that it was."""
        with self._lock:
            under_way = self._under_way or Gathered(now=now, page=Page(rows=[], cursor=self._cursor))
            before = under_way.page
            found = filled(
                lambda count, at: ask(under_way.now, count, at), self._rows - len(before.rows), before.cursor
            )
            page = Page(
                rows=[*before.rows, *found.rows], cursor=found.cursor, scanned=before.scanned + found.scanned
            )
            under_way = Gathered(now=under_way.now, page=page)
            whole = page.cursor is None or len(page.rows) >= self._rows
            self._under_way = None if whole else under_way
            if whole or self._shown is None or page.scanned >= self._shown.page.scanned:
                self._shown = under_way
            return self._shown


class Gathered(NamedTuple):
    """A page, and the instant (epoch ms) that times from now were counted from: the next page counts from it too."""

    now: int
    page: Page


@contextmanager
def search_form(page: str) -> Iterator[None]:
    """A search as part of the address, of the one field that is drawn within. `/` puts the focus into it."""
    with Tag("form", classes="search", method="get", action=links.to(page), role="search"):
        yield
        Tag("button", "Search", "btn", type="submit")


def search_field(wanted: str, *, label: str, placeholder: str = "") -> Tag:
    """Of a search without completion."""
    box = Tag("input", type="search", name="q", placeholder=placeholder, aria_label=label, autocomplete="off")
    # `^`: the attribute and not the property, which Vue would write over what is being typed
    box.props["^value"] = sendable(wanted)
    box.props["spellcheck"] = "false"
    return box


class Pager:
    """Where to go on. Links are changed and not drawn anew, so that they keep the focus."""

    def __init__(self, target: str, *, at_first: bool, **query: str) -> None:
        """`query`: what the page's address says, but for where it is in the list."""
        self._target, self._query = target, query
        with Tag("div", classes="pager"):
            self._said = Tag("span")
            if not at_first:
                link("First page", self._to())
            self._next = link("Next page", "", "hidden")

    def show(self, page: Page, **more: str) -> None:
        """`more`: what the address of the next page says beside."""
        said = plural(len(page.rows), "row")
        if page.cursor is not None and not page.rows:
            said = f"None found in the {plural(page.scanned, 'record')} searched so far"
        self._said.say(said)
        if page.cursor is not None:
            self._next.put("href", self._to(**more, after=page.cursor))
        self._next.mark_as("hidden" if page.cursor is None else "btn small next")

    def _to(self, **more: str) -> str:
        return f"{links.to(self._target)}?{urlencode({**self._query, **more})}"
