"""Labelled inputs (field.js): the browser owns what is typed, the server hears of it.

An instant may be typed, or picked in a zone that stands beside. What is picked, or typed as a date or without an
offset, is written with the offset, so that what the field says means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from pipeline.server.console.parts.too_long import TooLong, unless_too_long
from pipeline.server.console.words import clean, sendable

PIECES = 100
"""In which a text comes at most, as field.js parts it."""


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
        self._too_long = False
        self._pieces: list[str] = []
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
        """What stands in it, without spaces around. TooLong."""
        if self._too_long:
            raise TooLong("field", "is too long for a page")
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
        self.value, self._too_long = value, False
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
        match value:
            case {"first": bool(first), "text": str(text), "last": bool(last)}:
                self._pieces = [text] if first else [*self._pieces[:PIECES], text]
                value = "".join(self._pieces) if last and len(self._pieces) <= PIECES else None
        self._too_long = not isinstance(value, bool | str)  # or not all of it has come
        if self._too_long:
            return None
        self._pieces = []
        self.value = value
        return unless_too_long(self._changed) if self._changed is not None else None
