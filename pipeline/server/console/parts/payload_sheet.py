"""Asking for a payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.server.console.parts.basic import Tag, button
from pipeline.server.console.parts.confirm import Sheet
from pipeline.server.console.parts.field import Field
from pipeline.server.console.payload import object_of
from pipeline.server.console.visit import Visit
from pipeline.server.console.words import clean


async def ask_payload(
    visit: Visit, job: Mapping[str, Any], *, title: str, verb: str
) -> dict[str, Any] | None:
    """Another payload for a job, beginning with its own where that is still kept. None: dismissed."""
    sheet = Sheet(visit.client, title, wide=True)
    with sheet:
        kept = job.get("payload")
        if kept is None:
            Tag("p", "Its payload is no longer kept: give the whole of it.", "muted")
        field = Field("Payload", kind="area", value=_pretty(kept or "{}"), autofocus=True)

        def done() -> None:
            try:
                object_of(field.text)
            except InvalidInput as error:
                field.blame(clean(error.problem, 200))
            else:
                sheet.submit("done")

        with Tag("div", classes="ends"):
            button("Go back", lambda: sheet.submit(None))
            button(verb, done, kind="main")
    return None if await sheet.answer() is None else object_of(field.text)


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
