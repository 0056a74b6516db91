"""A schedule that somebody else has changed while it was edited: each difference, and a choice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.server.console.parts.basic import Tag, banner, instant
from pipeline.server.console.schedule_conflict import Difference
from pipeline.server.console.schedule_fields import Texts
from pipeline.server.console.words import clean

LONGEST = 4_000
"""Characters of a value that are shown."""
Choose = Callable[[Texts], Awaitable[None]]


def draw_conflict(view: Mapping[str, Any], found: Sequence[Difference], choose: Choose) -> None:
    """`view`: the schedule as it is now. `choose` puts texts into the fields of the form."""
    banner("It was not saved.", f"Somebody else has changed {view['id']} since you opened it.", "bad")
    with Tag("section", classes="block"), Tag("div", classes="body stack"):
        with Tag("p"):
            Tag("span", "Changed ")
            instant(view["changed_at"])
            Tag("span", f"; it is {view['state']} now.")
        if not found:
            Tag("p", "Its definition is what you have here: save again to keep it so.")
            return
        Tag(
            "p",
            "Choose what to save for each field that differs, then save again. You can go on editing, too.",
        )
        for each in found:
            _Choice(each, choose).draw()


class _Choice:
    def __init__(self, difference: Difference, choose: Choose) -> None:
        self._difference, self._choose = difference, choose

    def draw(self) -> None:
        of = self._difference
        with Tag("div", classes="differs", role="group", aria_label=of.label):
            with Tag("div", classes="row"):
                Tag("h3", of.label)
                Tag("span", of.told, "muted")
            with Tag("div", classes="sides"):
                self._yours = self._side("Your value", of.shown_yours, "Keep yours", of.yours, of.touched)
                self._stored = self._side(
                    "Stored now", of.shown_stored, "Use stored", of.stored, not of.touched
                )

    def _side(self, title: str, shown: str, verb: str, texts: Texts, chosen: bool) -> Tag:
        with Tag("div"):
            Tag("span", title, "muted")
            of = f"{title} of {self._difference.label}"
            Tag("pre", clean(shown, LONGEST), "text", tabindex="0", role="region", aria_label=of)
            button = Tag("button", verb, "btn small", type="button", aria_pressed=_said(chosen))
            button.on("click", partial(self._press, texts), args=[])
            return button

    async def _press(self, texts: Texts, _: object) -> None:
        mine = texts is self._difference.yours
        self._yours.put("aria-pressed", _said(mine))
        self._stored.put("aria-pressed", _said(not mine))
        await self._choose(texts)


def _said(pressed: bool) -> str:
    return "true" if pressed else "false"
