"""Plain elements: text, buttons, blocks, empty and broken states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nicegui.element import Element

from pipeline.server.console.parts.too_long import unless_too_long
from pipeline.server.console.words import NOTHING, clean, sendable

Act = Callable[[], Any]


class Tag(Element):
    """An HTML element with text. Attribute names are ours, never data: NiceGUI evaluates those that begin with `:`."""

    def __init__(self, tag: str, text: str = "", classes: str = "", **attributes: object) -> None:
        super().__init__(tag)
        self._text = clean(text) or None
        if classes:
            self.classes(classes)
        for name, value in attributes.items():
            if value is not None:
                self._props[name.rstrip("_").replace("_", "-")] = value

    def say(self, text: str) -> None:
        """Another text; nothing is sent if it is the same."""
        if (self._text or "") != clean(text):
            self._text = clean(text)
            self.update()

    def mark_as(self, classes: str) -> None:
        """Other classes."""
        if list(self._classes) != classes.split():
            self.classes(replace=classes)

    def put(self, name: str, value: object) -> None:
        """Another attribute."""
        if self._props.get(name) != value:
            self._props[name] = value


def button(
    text: str,
    act: Act,
    *,
    kind: str = "",
    label: str | None = None,
    disabled: bool = False,
    autofocus: bool = False,
) -> Tag:
    """`label`: what a screen reader says, where the text alone would not tell of what. `autofocus`: of a question."""
    made = Tag("button", text, f"btn {kind}".strip(), type="button", aria_label=label)
    for name, given in (("disabled", disabled), ("autofocus", autofocus)):
        if given:
            made.put(name, True)
    made.on("click", lambda _: unless_too_long(act), args=[])
    return made


def link(text: str, href: str, classes: str = "") -> Tag:
    return Tag("a", text, classes, href=href)


def copy_button(text: str, what: str) -> Tag:
    return Tag("button", "copy", "copy", type="button", data_copy=sendable(text), aria_label=f"copy {what}")


def instant(at: str | None, how: str = "day") -> Tag:
    """Shown in the browser's zone or in UTC, as its switch says. `how`: day, full, time, rel."""
    return Tag("span", NOTHING, "muted") if at is None else Tag("due-at", at=at, how=how)


def block(title: str, *, aside: str = "", flush: bool = False) -> tuple[Tag, Tag, Tag]:
    """A titled part of a page: itself, its body, and the text at the right of its title."""
    with Tag("section", classes="block") as whole:
        with Tag("div", classes="top"):
            Tag("h2", title)
            beside = Tag("span", aside, "aside")
        body = Tag("div", classes="flush" if flush else "body")
    return whole, body, beside


def facts(pairs: Iterable[tuple[str, str | Callable[[], object] | None]]) -> Tag:
    """Names and values; a value may be drawn by a function."""
    with Tag("dl", classes="facts") as whole:
        for name, value in pairs:
            if value is None:
                continue
            Tag("dt", name)
            if callable(value):
                with Tag("dd"):
                    value()
            else:
                Tag("dd", value)
    return whole


def empty(title: str, hint: str = "") -> Tag:
    with Tag("div", classes="empty") as whole:
        Tag("b", title)
        if hint:
            Tag("span", hint)
    return whole


def bones(lines: int = 5) -> Tag:
    """What stands where an answer is waited for."""
    with Tag("div", classes="bones", role="status", aria_label="loading") as whole:
        for line in range(lines):
            Tag("span").style(f"width: {92 - 13 * (line % 4)}%")
    return whole


def banner(title: str, text: str = "", kind: str = "") -> Tag:
    with Tag("div", classes=f"banner {kind}".strip(), role="status") as whole:
        Tag("b", title)
        if text:
            Tag("span", text)
    return whole


def counts(of: Mapping[str, int]) -> str:
    """`3 dead, 12 succeeded`."""
    return (
        ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in of.items() if number) or "none"
    )
