"""Asking before something is changed."""

from __future__ import annotations

import asyncio

from nicegui.client import Client
from nicegui.element import Element

from pipeline.server.console.parts.basic import Tag, button
from pipeline.server.console.parts.field import Field
from pipeline.server.console.words import clean

REASON = "Reason (shown to others)"
"""What a note is asked for under."""


class Sheet(Element, component="sheet.js"):
    """A question in front of the page. `answered` is set by whoever draws its buttons; None: dismissed."""

    def __init__(self, client: Client, title: str, *, wide: bool = False) -> None:
        with client.content:
            super().__init__()
        self._props.update(label=clean(title), wide=wide)
        self._answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.on("dismiss", lambda _: self.submit(None), args=[])
        client.on_delete(lambda: self._answer.cancel())
        with self:
            Tag("h2", title)

    def submit(self, answer: str | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    async def answer(self) -> str | None:
        """What was pressed; the sheet is gone then."""
        answer = await self._answer
        self.delete()
        return answer


async def confirm(
    client: Client,
    title: str,
    text: str,
    *,
    verb: str,
    danger: bool = False,
    typed: int | None = None,
    note: str | None = None,
) -> str | None:
    """Whether to do it: the note that was given (empty if none was asked for), or None.

    `typed`: this number has to be typed first; `note`: a text is asked for under this label. Enter does it at once
    where nothing is asked for and it does no harm.
    """
    sheet = Sheet(client, title)
    with sheet:
        Tag("p", text)
        field = Field(note, autofocus=True) if note is not None else None
        number = None
        if typed is not None:
            number = Field(f"Type {typed} to confirm", autofocus=True)

        def done() -> None:
            if number is not None and number.text.replace(",", "") != str(typed):
                number.blame(f"Type {typed}, the number shown above.")
                return
            sheet.submit(field.text if field is not None else "")

        with Tag("div", classes="ends"):
            button("Go back", lambda: sheet.submit(None))
            plain = field is None and number is None and not danger
            button(verb, done, kind="main danger" if danger else "main", autofocus=plain)
    return await sheet.answer()
