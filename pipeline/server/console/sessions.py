"""A form whose session ends: it stays, says so, and goes on once somebody has signed in again in another tab.

The browser looks for that (`data-again` in console.js): it keeps what was typed and loads the page anew.
"""

from __future__ import annotations

from nicegui import ui

from pipeline.core.errors import DuelineError
from pipeline.server.access import Unauthenticated
from pipeline.server.console import links
from pipeline.server.console.parts.basic import Tag
from pipeline.server.console.visit import Visit

EVERY_S = 5.0
"""How often it is looked whether there still is a session."""


def watch_session(visit: Visit, place: Tag) -> None:
    """What says so is drawn in `place`. From now on the page is not left for the sign-in page."""
    visit.on_leave = lambda: _ended(place)

    async def look() -> None:
        if not visit.client.has_socket_connection:
            return
        try:
            await visit.ask(lambda who: who)
        except Unauthenticated:
            visit.leave()
        except DuelineError:
            pass  # the store says nothing for the moment: what is pressed next tells

    ui.timer(EVERY_S, look, immediate=False)


def _ended(place: Tag) -> None:
    if any(each.props.get("data-again") for each in place.descendants()):
        return
    place.clear()
    with place, Tag("div", classes="banner warn", role="alert"):
        Tag("b", "Your session has ended.")
        Tag("span", "What you typed is still here, and stays when you sign in again.")
        Tag(
            "a",
            "Sign in again (in another tab)",
            href=links.to("sign-in", next=links.to("signed-in"), ended=1),
            target="_blank",
            data_again=links.to("session"),
        )
