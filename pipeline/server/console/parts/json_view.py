"""JSON as a tree with exact numbers (json.js). The reading is pure."""

from __future__ import annotations

import json
from typing import Any

from nicegui.element import Element

NODES = 2_000
TEXT_LIMIT = 4_000
"""What of a payload is drawn at most; it is copied whole."""

Node = tuple[str | int | None, str, Any] | tuple[str | int | None, str, Any, int]
"""Its name, its kind (object, array, string, number, literal, more), what is shown of it, and of an object or array how
many it holds."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


def tree_of(text: str) -> Node:
    """The tree of a JSON text. ValueError if it is none; RecursionError never: what is too deep is a ValueError too."""
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except RecursionError:
        raise ValueError("too deep to be shown as a tree") from None
    return _Drawing(NODES).node(None, value, 0)


class _Drawing:
    def __init__(self, left: int) -> None:
        self._left = left

    def node(self, key: str | int | None, value: Any, depth: int) -> Node:
        self._left -= 1
        match value:
            case dict():
                return (key, "object", self._children(list(value.items()), depth), len(value))
            case list():
                return (key, "array", self._children(list(enumerate(value)), depth), len(value))
            case Number():
                return (key, "number", _shortened(str(value)))
            case str():
                return (key, "string", _shortened(value))
            case _:
                return (key, "literal", json.dumps(value))

    def _children(self, pairs: list[tuple[Any, Any]], depth: int) -> list[Node]:
        shown: list[Node] = []
        for key, value in pairs:
            if self._left <= 0 or depth > 60:
                shown.append((None, "more", f"… {len(pairs) - len(shown):,} more; copy it to see all"))
                break
            shown.append(self.node(key, value, depth + 1))
        return shown


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}… ({len(text):,} characters)"


class JsonView(Element, component="json.js"):
    """`label` is what a screen reader calls it."""

    def __init__(self, text: str, *, label: str) -> None:
        """ValueError if the text is no JSON."""
        super().__init__()
        self._props["label"] = label
        self._props["data"] = json.dumps(tree_of(text))
