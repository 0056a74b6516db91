"""Tables: rows as data, drawn in the browser (table.js)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui.element import Element
from nicegui.events import GenericEventArguments

from pipeline.server.console.parts.looks import kind_of
from pipeline.server.console.words import clean

Cell = str | int | None | Mapping[str, Any]
TEXT_LIMIT = 400
"""Characters of a cell at most: a row is a line, and a page of rows must stay small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`kind`: num | nowrap; `head`: it names the row; `bare`: its name is for screen readers only."""

    label: str
    kind: str = ""
    head: bool = False
    bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`id` is what events of the row tell."""

    id: str
    cells: Sequence[Cell]


class Table(Element, component="table.js"):
    """`caption` names it; `choose` is told which rows are chosen, `act` which button of which row was pressed;
    `wide`: it stays a table on a narrow screen."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        caption: str,
        choose: Callable[[list[str]], Any] | None = None,
        act: Callable[[str, str], Any] | None = None,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self._columns = [_column(column) for column in columns]
        self._props.update(caption=caption, choosable=choose is not None, wide=wide)
        self._props["data"] = self._written(())
        if choose is not None:
            self.on("choose", lambda event: choose(_ids(event)))
        if act is not None:
            self.on("act", lambda event: act(*_pressed(event)) if isinstance(event.args, dict) else None)

    def show(self, rows: Sequence[Row]) -> None:
        """Nothing is sent if they are the same."""
        data = self._written(rows)
        if data != self._props["data"]:
            self._props["data"] = data

    def unchoose(self) -> None:
        self.run_method("clear")

    def _written(self, rows: Sequence[Row]) -> str:
        own = [{"id": row.id, "cells": [_clipped(cell) for cell in row.cells]} for row in rows]
        return json.dumps({"columns": self._columns, "rows": own}, separators=(",", ":"))


def _column(column: Column) -> dict[str, Any]:
    return {"label": column.label, "kind": column.kind, "head": column.head, "bare": column.bare}


def _clipped(cell: Any) -> Any:
    match cell:
        case str():
            return clean(cell, TEXT_LIMIT)
        case Mapping():
            return {
                name: value if name in ("href", "copy") else _clipped(value) for name, value in cell.items()
            }
        case list() | tuple():
            return [_clipped(each) for each in cell]
        case _:
            return cell


def _pressed(event: GenericEventArguments) -> tuple[str, str]:
    """The id of the row, and which of its buttons."""
    return str(event.args.get("id")), str(event.args.get("name"))


def _ids(event: GenericEventArguments) -> list[str]:
    return [str(each) for each in event.args] if isinstance(event.args, list) else []


# -- cells -----------------------------------------------------------------------------------------------------


def text(value: str | None, *, href: str | None = None, mono: bool = False, clip: bool = False) -> Cell:
    return None if value is None else {"text": value, "href": href, "mono": mono, "clip": clip}


def at(value: str | None, how: str = "day") -> Cell:
    return None if value is None else {"at": value, "how": how}


def status(word: str | None, *, shown: str | None = None, kind: str | None = None) -> Cell:
    return None if word is None else {"text": shown or word, "kind": kind or kind_of(word)}


def lines(*cells: Cell) -> Cell:
    own = [cell for cell in cells if cell is not None and cell != ""]
    return {"lines": own} if own else None


def tags(pairs: Mapping[str, str]) -> Cell:
    return {"tags": [f"{name}={value}" for name, value in pairs.items()]} if pairs else None


def acts(*buttons: tuple[str, str, str]) -> Cell:
    """(name, text, label) of each."""
    return {"acts": [{"name": name, "text": shown, "label": label} for name, shown, label in buttons]}
