"""Data on stdout, messages on stderr; JSON when asked for, else tables and lines for people (DESIGN §9)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import click

FIRST_ROWS = 200
"""Rows that the widths of a table are reckoned from where there are more than can be held."""
_JSON = "dueline.json"


def remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Callback of every command's `--json`. A context's meta is shared with its parents and children."""
    if value:
        ctx.meta[_JSON] = True


def json_wanted() -> bool:
    """Whether `--json` stood anywhere on the command line."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_JSON))


def emit(data: Any, text: Callable[[Any], str]) -> None:
    """Write `data` to stdout: as JSON when asked for, else as `text(data)`.

    An iterator is written item by item as it comes, one JSON object or one `text(item)` a line; anything else
    is one JSON value. An empty text writes nothing.
    """
    render = _compact if json_wanted() else text
    for item in data if isinstance(data, Iterator) else (data,):
        line = render(item)
        if line:
            click.echo(line)


def emit_rows(columns: Sequence[str], items: Iterator[Any], row: Callable[[Any], Sequence[object]]) -> bool:
    """Write items as they come: as JSON, one a line, else as rows under `columns`, as wide as the first of them are.
    Whether there were any."""
    first = [*islice(items, FIRST_ROWS)]
    if not first:
        return False
    if json_wanted():
        emit(chain(first, items), str)
        return True
    cells = [_cells(row(item)) for item in first]
    after = [*islice(items, 1)]
    if not after:
        click.echo(table(columns, cells))
        return True
    widths = _widths([columns, *cells])
    lines = chain(
        [[name.upper() for name in columns]], cells, (_cells(row(item)) for item in chain(after, items))
    )
    for line in lines:
        click.echo(_aligned(line, widths))
    return True


def note(text: str) -> None:
    """A message for the person at the terminal: stderr, so it never mixes with data."""
    click.echo(f"dueline: {text}", err=True)


def harmless(text: str, limit: int | None = None) -> str:
    """Somebody's text on one line: nothing in it moves the terminal. At most `limit` characters of it."""
    return "".join(char if char.isprintable() else "·" for char in text)[:limit]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """`rows` under `columns`: a rich table on a terminal, else plain aligned text without colours."""
    cells = [_cells(row) for row in rows]
    return _rich_table(columns, cells) if sys.stdout.isatty() else _plain_table(columns, cells)


def _cells(row: Sequence[object]) -> list[str]:
    return ["" if cell is None else str(cell) for cell in row]


def _compact(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[name.upper() for name in columns], *rows]
    widths = _widths(lines)
    return "\n".join(_aligned(line, widths) for line in lines)


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console  # 60 ms that `--help` and `--json` need not pay
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        grid.add_column(name.upper(), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console = Console()
    with console.capture() as capture:
        console.print(grid)
    return capture.get().rstrip("\n")
