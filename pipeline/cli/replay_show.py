"""`dueline replay list`, `show` and `cancel`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.output import emit, json_wanted, table
from pipeline.core.times import format_instant

if TYPE_CHECKING:
    from pipeline.replay import Replay
    from pipeline.survey import Filter, Window

OUTCOMES = (
    *("replayed", "brought_forward", "superseded", "changed", "pending", "stopped", "key_taken", "refused"),
)
"""What becomes of an occurrence that was to be replayed."""


def asked_of(window: Window, wanted: Filter) -> dict[str, Any]:
    """What a replay asks for, as JSON shows it."""
    return {
        "from": format_instant(window.from_ms),
        "to": format_instant(window.to_ms),
        "only": sorted(state.value for state in wanted.outcomes),
        "handler": wanted.handler,
        "schedule": wanted.schedule,
        "queue": wanted.queue,
        "labels": dict(wanted.labels),
        "key_prefix": wanted.key_prefix,
    }


def view_of(replay: Replay, standing: str) -> dict[str, Any]:
    return {
        "id": replay.id,
        "state": standing,
        **asked_of(replay.window, replay.wanted),
        "rate": replay.rate,
        "requested_by": replay.requested_by,
        "created_at": format_instant(replay.created_at),
        "updated_at": format_instant(replay.updated_at),
        "runner": replay.runner or None,
        "resumed": replay.resumed,
        "matched": replay.matched,
        "counts": {name: replay.counts.get(name, 0) for name in OUTCOMES},
        "reason": replay.reason or None,
    }


@click.command("list", short_help="List the replays of the last 30 days.")
def list_() -> None:
    """List the replays of the last 30 days, the latest first. With --json, one object a line.

    An interrupted one is not finished, and no process carries it out: `dueline replay resume ID` goes on with it.
    """
    from pipeline.cli.replay import desk

    with desk() as here:
        views = [view_of(replay, standing) for replay, standing in reversed(here.replays.all())]
    if json_wanted():
        emit(iter(views), str)
    else:
        emit(views, _table)


@click.command("show", short_help="Show one replay.")
@click.argument("id_", metavar="ID")
def show(id_: str) -> None:
    """Show who asked for a replay, for what, how far it is, and what became of it. Exit code 3 if there is none."""
    from pipeline.cli.replay import desk

    with desk() as here:
        replay = here.replays.get(id_)
        emit(view_of(replay, here.replays.standing(replay)), _lines)


@click.command("cancel", short_help="End one that is under way.")
@click.argument("id_", metavar="ID")
def cancel(id_: str) -> None:
    """End a replay where it stands; what it has run again goes on. The outcome is `cancelled`, or `cancelling`: the
    process that carries it out is told. Exit code 3 if there is none of this id, 4 if it has ended.
    """
    from pipeline.cli.replay import desk

    with desk() as here:
        by = f"cancelled by {getpass.getuser()}@{socket.gethostname()}"
        emit(
            {"id": id_, "outcome": here.replays.cancel(id_, by)},
            lambda view: f"{view['outcome']} {view['id']}",
        )


def _table(views: list[Mapping[str, Any]]) -> str:
    columns = ("id", "state", "from", "to", "what", "replayed", "of", "by", "begun")
    rows = [
        (
            each["id"],
            each["state"],
            each["from"],
            each["to"],
            _what(each),
            each["counts"]["replayed"],
            each["matched"],
            each["requested_by"],
            each["created_at"],
        )
        for each in views
    ]
    return table(columns, rows) if rows else "no replays"


def _what(view: Mapping[str, Any]) -> str:
    named = (f"{name}={view[name]}" for name in ("handler", "schedule", "queue", "key_prefix") if view[name])
    labels = (f"{name}={value}" for name, value in view["labels"].items())
    return " ".join([",".join(view["only"]), *named, *labels])


def _lines(view: Mapping[str, Any]) -> str:
    return "\n".join(_line(name, value) for name, value in _shown(view) if value not in (None, ""))


def _shown(view: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in view.items():
        if name == "counts":
            yield name, ", ".join(f"{count} {outcome}" for outcome, count in value.items() if count)
        elif isinstance(value, dict):
            yield name, " ".join(f"{key}={text}" for key, text in value.items())
        elif isinstance(value, list):
            yield name, ", ".join(value)
        else:
            yield name, value


def _line(name: str, value: object) -> str:
    return f"{name.replace('_', ' '):<13} {value}"


def outcome_lines(handlers: Mapping[str, Mapping[str, int]]) -> str:
    """Counts by handler and outcome, as a table."""
    outcomes = sorted({outcome for counts in handlers.values() for outcome in counts})
    rows = [(name, *(counts.get(outcome, 0) for outcome in outcomes)) for name, counts in handlers.items()]
    return table(("handler", *outcomes), rows)
