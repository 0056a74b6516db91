"""Searching and going on: plain forms and links, so that the address says what is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def pager(place: Tag, target: str, page: Page, *, at_first: bool, **query: str) -> None:
    """Where to go on, in `place`."""
    place.clear()
    with place:
        told = plural(len(page.rows), "row")
        if page.cursor is not None and len(page.rows) == 0:
            told = f"nothing among {plural(page.scanned, 'record')} looked at; there may be more"
        Tag("span", told)
        if not at_first:
            link("First page", links.to(target, **query))
        if page.cursor is not None:
            link("Next page", links.to(target, **query, after=page.cursor), "btn small next")
