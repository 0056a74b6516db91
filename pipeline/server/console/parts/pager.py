"""Searching and going on: plain forms and links, so that the address says what is shown."""

from __future__ import annotations

from pipeline.readmodel.questions import Page
from pipeline.server.console import links
from pipeline.server.console.parts.basic import Tag, link
from pipeline.server.console.words import plural, sendable


def search_form(
    page: str, wanted: str, *, label: str, placeholder: str = "", hint_id: str | None = None
) -> Tag:
    """A search as part of the address. `/` puts the focus into it."""
    with Tag("form", classes="search", method="get", action=links.to(page), role="search") as form:
        # `^`: the attribute and not the property, which Vue would write over what is being typed
        box = Tag(
            "input", type="search", name="q", placeholder=placeholder, aria_label=label, autocomplete="off"
        )
        box.props["^value"] = sendable(wanted)
        box.props["spellcheck"] = "false"
        if hint_id is not None:
            box.props["aria-describedby"] = hint_id
        Tag("button", "Search", "btn", type="submit")
    return form


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
