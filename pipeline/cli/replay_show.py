"""`dueline replay list`, `show` and `cancel`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pipeline.cli.output import emit, json_wanted, note, table
from pipeline.core.errors import NotAllowed, NotFound, StoreUnreachable


@click.command("list", short_help="List the replays of the last 30 days.")
def list_() -> None:
    """List the replays of the last 30 days, the latest first. With --json, one object a line.

    An interrupted one is not finished, and no process carries it out: `dueline replay resume ID` goes on with it. A
    process counts as gone 30 s after its last word, or at once if it ran on this machine and is not there any more.
    """
    from pipeline.cli.replay import desk
    from pipeline.replay.shown import view_of

    with desk() as here:
        views = [view_of(replay, standing) for replay, standing in reversed(here.replays.all())]
    if json_wanted():
        emit(iter(views), str)
    else:
        emit(views, _table)


@click.command("show", short_help="Show one replay.")
@click.argument("id_", metavar="ID")
def show(id_: str) -> None:
    """Show who asked for a replay, for what, how far it is, and what became of it. Exit code 3 if there is none.

    How what it emitted stands now (outcomes) a running server knows: DUELINE_URL, or that of `dueline dev`.
    """
    from pipeline.cli.replay import desk
    from pipeline.replay.shown import view_of

    with desk() as here:
        replay = here.replays.get(id_)
        view = view_of(replay, here.replays.standing(replay))
    emit({**view, "outcomes": _outcomes(id_)}, _lines)


def _outcomes(id_: str) -> dict[str, Any] | None:
    from pipeline.cli.served import running_server
    from pipeline.client.http_calls import segment

    with running_server() as server:
        if server is None:
            return None
        try:
            return server.calls.ask("GET", f"/replays/{segment(id_)}", repeatable=True).get("outcomes")
        except (NotFound, NotAllowed, StoreUnreachable) as error:
            note(f"how it stands now is not known: {error}")
            return None


@click.command("cancel", short_help="End one that is under way.")
@click.argument("id_", metavar="ID")
def cancel(id_: str) -> None:
    """End a replay where it stands, for good; what it has run again goes on.

    The outcome is `cancelled`, or `cancelling`: the process that carries it out is told, and if that is not heard of
    the replay counts as cancelled after 30 s. Exit code 3 if there is none of this id, 4 if it has ended.
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
    from pipeline.replay.shown import NAMED

    named = (f"{name}={view[name]}" for name in NAMED if view[name])
    labels = (f"{name}={value}" for name, value in view["labels"].items())
    return " ".join([only_of(view), *named, *labels])


def only_of(view: Mapping[str, Any]) -> str:
    """The outcomes that a replay is about, as `--only` names them."""
    outcomes: list[str] = view["only"]
    return outcomes[0] if len(outcomes) == 1 else "all"


def _lines(view: Mapping[str, Any]) -> str:
    return "\n".join(_line(name, value) for name, value in _shown(view) if value not in (None, ""))


def _shown(view: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in view.items():
        if name == "counts":
            yield name, _counted(value)
        elif name == "outcomes":
            yield (
                name,
                value and _counted(value["counts"]) + (" (not all are counted)" if value["capped"] else ""),
            )
        elif isinstance(value, dict):
            yield name, " ".join(f"{key}={text}" for key, text in value.items())
        elif name == "only":
            yield name, only_of(view)
        else:
            yield name, value


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


def _line(name: str, value: object) -> str:
    return f"{name.replace('_', ' '):<13} {value}"


def outcome_lines(handlers: Mapping[str, Mapping[str, int]]) -> str:
    """Counts by handler and outcome, as a table with totals."""
    outcomes = sorted({outcome for counts in handlers.values() for outcome in counts})
    rows = [(name, *(counts.get(outcome, 0) for outcome in outcomes)) for name, counts in handlers.items()]
    if len(rows) > 1:
        rows.append(("in all", *(sum(counts.get(o, 0) for counts in handlers.values()) for o in outcomes)))
    return table(("handler", *outcomes), rows)
