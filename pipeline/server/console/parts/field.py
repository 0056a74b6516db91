"""Labelled inputs (field.js): the browser owns what is typed, the server hears of it.

An instant may be typed, or picked in a zone that stands beside. What is picked, or typed as a date or without an
offset, is written with the offset, so that what the field says means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from pipeline.server.console.words import clean, sendable

LONGEST = 100_000
"""Characters that one field may bring."""


class Field(Element, component="field.js"):
    """`kind`: text | mono | area | select | check | instant. `value` is what stands in it; `changed` is
    called after each change, `slow` ms after the last key."""

    def __init__(
        self,
        label: str,
        *,
        kind: str = "text",
        value: str | bool = "",
        hint: str = "",
        placeholder: str = "",
        options: Sequence[tuple[str, str]] = (),
        suggestions: Sequence[str] = (),
        changed: Callable[[], Any] | None = None,
        slow: int = 0,
        disabled: bool = False,
        autofocus: bool = False,
        tz: str = "",
    ) -> None:
        """`tz` of an instant: the zone it is picked in; empty: in which the page shows instants."""
        super().__init__()
        self.value: str | bool = value
        self._changed = changed
        self._props.update(
            kind=kind, label=label, value=sendable(value) if isinstance(value, str) else value, slow=slow
        )
        given = {
            "hint": hint,
            "placeholder": placeholder,
            "disabled": disabled,
            "autofocus": autofocus,
            "tz": tz,
        }
        self._props.update({name: each for name, each in given.items() if each})
        if options:
            self._props["options"] = [list(option) for option in options]
        if suggestions:
            self._props["list"] = list(suggestions)
        self.on("input", self._typed)

    @property
    def text(self) -> str:
        """What stands in it, without spaces around."""
        return self.value.strip() if isinstance(self.value, str) else ""

    def blame(self, problem: str) -> None:
        """Show what is wrong with it; empty: nothing is."""
        if self._props.get("error", "") != problem:
            self._props["error"] = clean(problem)

    def warn(self, warning: str) -> None:
        """Show what may be wrong with it, and is taken all the same; empty: nothing is."""
        if self._props.get("warning", "") != warning:
            self._props["warning"] = clean(warning)

    def show(self, value: str) -> None:
        """Put another value in."""
        self.value = value
        self._props["value"] = sendable(
            value
        )  # as it was, maybe, and then the browser would keep what was typed
        self.run_method("put", sendable(value))

    def in_zone(self, tz: str) -> None:
        """Pick instants in another zone."""
        if self._props.get("tz", "") != tz:
            self._props["tz"] = tz

    def _typed(self, event: GenericEventArguments) -> Any:
        value = event.args
        if isinstance(value, bool) or (isinstance(value, str) and len(value) <= LONGEST):
            self.value = value
            return self._changed() if self._changed is not None else None
        return None
