"""`dueline cron pause`, `resume`, `trigger`, `delete` and `backfill`: asked of the owner of the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.cron_input import id_argument, named_as_options, wait_option
from pipeline.cli.output import emit, note
from pipeline.core.errors import NotFound, Refused
from pipeline.core.times import format_instant, instant_of

if TYPE_CHECKING:
    from pipeline import Dueline, ScheduleChange

EXIT_CODES: Mapping[str, int] = {"unknown": 1, "not_found": 3, "skipped": 4, "foreign": 4, "older": 4}
"""Of outcomes which are not what was asked for."""
MANY = 1_000
"""Occurrences of one backfill that need no --yes."""
NO_LIMIT = 10_000_000


def tell(change: ScheduleChange, *more: str, code: int | None = None, **extra: Any) -> int:
    """Write what became of a change; the exit code."""
    view: dict[str, Any] = {"id": change.id, "outcome": change.outcome}
    for name in more:
        view[name] = getattr(change, name)
    view |= extra
    if view.get("next_due") is not None:
        view["next_due"] = format_instant(instant_of("next_due", view["next_due"]))
    emit(view, _text)
    if change.outcome in ("unknown", "accepted"):
        note(
            "no owner answered in time: does a `dueline dispatcher` run? It is stored, and done once one does"
        )
    return EXIT_CODES.get(change.outcome, 0) if code is None else code


def _text(view: Mapping[str, Any]) -> str:
    due = f", next due {view['next_due']}" if view.get("next_due") else ""
    occurrence = f": {view['occurrence_id']}" if view.get("occurrence_id") else ""
    total = f", {view['total']} occurrences" if view.get("total") is not None else ""
    return f"{view['outcome']} {view['id']}{occurrence}{total}{due}"


def _changed(ask: Callable[[Dueline], ScheduleChange]) -> ScheduleChange:
    from pipeline import Dueline

    with named_as_options(), Dueline() as app:
        return ask(app)


@click.command("pause", short_help="Let a schedule not fire.")
@id_argument
@click.option("--note", "text", metavar="TEXT", default="", help="Why.")
@wait_option
def pause(id_: str, text: str, wait: str) -> int:
    """Let nothing of a schedule fire until it is resumed; `cron trigger` works all the same. The outcome is `paused`,
    or `not_found` (exit code 3), `unknown` (1).
    """
    return tell(_changed(lambda app: app.schedules.pause(id_, text, wait=wait)), "next_due", "revision")


@click.command("resume", short_help="Let a paused schedule fire again.")
@id_argument
@wait_option
def resume(id_: str, wait: str) -> int:
    """Let a paused schedule fire again, from now on: what fell into the pause is skipped. The outcome is `resumed`, or
    `not_found` (exit code 3), `unknown` (1).
    """
    return tell(_changed(lambda app: app.schedules.resume(id_, wait=wait)), "next_due", "revision")


@click.command("trigger", short_help="Fire one occurrence now.")
@id_argument
@click.option("--overlap", metavar="P", help="allow (default), or skip if an earlier one still runs.")
@wait_option
def trigger(id_: str, overlap: str | None, wait: str) -> int:
    """Fire one occurrence now, beside those of its grid, and answer its id. The outcome is `fired`; `skipped` (exit
    code 4) if one still runs and --overlap is skip; `not_found` (3); `unknown` (1).
    """
    change = _changed(lambda app: app.schedules.trigger(id_, overlap=overlap, wait=wait))
    return tell(change, "occurrence_id", "next_due")


@click.command("delete", short_help="Remove a schedule.")
@id_argument
@wait_option
def delete(id_: str, wait: str) -> int:
    """Remove a schedule; what has fired goes on. The outcome is `deleted`, or `not_found` (exit code 3), `unknown` (1).

    A schedule that a file or an app keeps comes back with its next sync, or the next start of a worker of that app.
    """
    from pipeline import Dueline

    with named_as_options(), Dueline() as app:
        source = source_of(app, id_)
        change = app.schedules.delete(id_, wait=wait)
    tell_keeper(change, source)
    return tell(change)


def source_of(app: Dueline, id_: str) -> str | None:
    """What keeps a schedule, e.g. app:shop; None: there is none of this id."""
    try:
        return str(app.schedules.get(id_)["spec"]["source"])
    except NotFound:
        return None


def tell_keeper(change: ScheduleChange, source: str | None) -> None:
    """Say that what was changed by hand does not stay so, if it is somebody's."""
    kind, _, name = (source or "").partition(":")
    if change.outcome in ("updated", "deleted", "unknown") and kind in _COMES_BACK:
        note(f"{change.id} is kept by {kind} {name}: {_COMES_BACK[kind]} takes this back")


_COMES_BACK = {
    "app": "the next start of its worker, or `cron sync --app`,",
    "file": "the next `cron sync` of it",
}


@click.command("backfill", short_help="Run the instants of a range of the past.")
@id_argument
@click.option("--from", "from_", metavar="RFC3339", help="The first instant that counts.")
@click.option("--to", metavar="RFC3339", help="The first that counts no more; not in the future.")
@click.option("--overlap", metavar="P", help="Among its own: allow (default), skip, buffer_all.")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="At most N a minute.")
@click.option("--reverse", is_flag=True, help="The newest first.")
@click.option("--dry-run", is_flag=True, help="Only count what would run.")
@click.option("--yes", is_flag=True, help=f"Though it may be more than {MANY}.")
@click.option("--cancel", metavar="BACKFILL", help="End this backfill instead: what has fired goes on.")
@wait_option
def backfill(
    id_: str,
    from_: str | None,
    to: str | None,
    overlap: str | None,
    rate: int | None,
    reverse: bool,
    dry_run: bool,
    yes: bool,
    cancel: str | None,
    wait: str,
) -> int:
    """Run the instants of a schedule's grid in a range of the past, once more or for the first time, as occurrences of
    their own. The outcome is `started`, with their number and the id of the backfill (--dry-run: `counted`).

    More than 1,000 are refused without --yes (exit code 4). `not_found` is exit code 3, `unknown` 1.
    """
    if cancel is not None:
        if from_ or to or dry_run:
            raise click.UsageError("--cancel excludes --from, --to and --dry-run")
        change = _changed(lambda app: app.schedules.cancel_backfill(id_, cancel, wait=wait))
        return tell(change, backfill=cancel, total=None)
    if from_ is None or to is None:
        raise click.UsageError("--from and --to are needed")
    from pipeline import Dueline

    limit = NO_LIMIT if yes else MANY
    with named_as_options(), Dueline() as app:
        try:
            total = app.schedules.count(id_, from_, to)
        except NotFound:
            emit({"id": id_, "outcome": "not_found", "backfill": None, "total": None}, _text)
            return EXIT_CODES["not_found"]
        if dry_run:
            emit({"id": id_, "outcome": "counted", "backfill": None, "total": total}, _text)
            return 0
        if total > limit:
            raise Refused(f"{id_}: {total} occurrences are more than {MANY}: add --yes if they are meant")
        options: dict[str, Any] = {"overlap": overlap, "rate": rate, "reverse": reverse, "limit": limit}
        change = app.schedules.backfill(id_, from_, to, wait=wait, **options)
    return tell(change, backfill=change.detail.get("backfill"), total=total)
