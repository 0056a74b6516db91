"""What is not there."""

from __future__ import annotations

from pipeline.server.console import links
from pipeline.server.console.frame import Frame
from pipeline.server.console.parts.basic import Tag, empty, link
from pipeline.server.console.visit import Visit


async def nowhere(visit: Visit) -> None:
    visit.client.status_code = 404
    frame = Frame(visit, "No such page", current="nowhere")
    with frame.body, Tag("section", classes="block"):
        empty("There is nothing at this address.", "It may be mistyped, or belong to another version.")
        with Tag("div", classes="empty"):
            link("Go to Now", links.to(""))
