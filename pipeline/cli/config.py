"""`dueline config show`: what this process would be told, by whom, and what it means."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.output import emit, note, table
from pipeline.config import describe, load_settings, unknown_variables


@click.group("config")
def config() -> None:
    """Settings of this shell."""


@config.command("show")
def show() -> None:
    """Show every setting with its value, source and meaning; secrets are hidden."""
    rows = [row._asdict() for row in describe(load_settings())]
    for warning in unknown_variables():
        note(warning)
    emit(rows, _table)


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [
        (row["variable"], _text(row["value"]), _source(row["source"], row["variable"]), row["meaning"])
        for row in rows
    ]
    return table(("variable", "value", "source", "meaning"), cells)


def _text(value: Any) -> str:
    match value:
        case None | []:
            return "-"
        case list():
            return ",".join(value)
        case _:
            return str(value)


def _source(source: str, variable: str) -> str:
    """The variable stands in the first column already."""
    return "environment" if source == variable else source
