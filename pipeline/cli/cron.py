"""`dueline cron`: the group, `create` and `update`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pipeline.cli import cron_change, cron_show, cron_sync
from pipeline.cli.cron_change import source_of, tell, tell_keeper
from pipeline.cli.cron_input import id_argument, named_as_options, read, schedule_options, wait_option
from pipeline.cli.output import note
from pipeline.core.errors import InvalidInput, StoreUnreachable

if TYPE_CHECKING:
    from pipeline import Dueline

REFUSED = 4
"""Exit code where there is another schedule of that id."""
CLEARED = (
    *(
        "tz",
        "dst_gap",
        "dst_overlap",
        "exclude",
        "start",
        "end",
        "jitter",
        "phase",
        "payload",
        "queue",
        "note",
    ),
    *(
        "max_occurrences",
        "misfire",
        "catch_up",
        "misfire_threshold",
        "overlap",
        "overlap_timeout",
        "pause_after",
    ),
    *("max_attempts", "timeout", "serial", "labels", "headers"),
)
"""What `update --clear` takes back to its default."""


@click.group("cron")
def cron() -> None:
    """Create, read and change recurring schedules.

    What the options mean, and the rules of time, are in docs/schedules.md; `dueline cron preview` shows what an
    expression does.
    """


for _command in (
    *(cron_show.list_, cron_show.describe, cron_show.preview),
    *(cron_change.pause, cron_change.resume, cron_change.trigger, cron_change.delete, cron_change.backfill),
    *(cron_sync.sync, cron_sync.import_),
):
    cron.add_command(_command)


@cron.command("create", short_help="Create a schedule.")
@id_argument
@click.option("--handler", metavar="H", required=True, help="The handler to run.")
@schedule_options
@wait_option
def create(id_: str, handler: str, wait: str, **options: Any) -> int:
    """Create the schedule ID, which runs a handler by --cron or --every from now on. The outcome is

    \b
    created   its first instant is to come (exit code 0)
    existing  there is one of this id, which was left as it is: 0 if it is the same, else 4
    accepted  stored and not lost, but no owner answered within --wait (0)

    \b
    dueline cron create daily-report --cron "0 10 * * *" --tz Europe/Berlin --handler report.daily
    """
    from pipeline import Dueline
    from pipeline.client.schedule_options import spec_of
    from pipeline.core.schedule import spec_to_json

    with named_as_options(), Dueline() as app:
        given = read(options)
        # Made here too, so that what is wrong is told without a store.
        wanted = spec_of({"queue": app.settings.queue, **given, "id": id_, "handler": handler})
        change = app.schedules.create(id_, handler, source="cli", wait=wait, **given)
        code = 0
        if change.outcome == "existing" and not _is_as_wanted(app, spec_to_json(wanted)):
            note(f"{id_} exists with another definition: `dueline cron update` changes it")
            code = REFUSED
        _warn_unknown(app, handler)
        return tell(change, "next_due", "revision", code=code)


def _is_as_wanted(app: Dueline, wanted: dict[str, Any]) -> bool:
    there = app.schedules.get(wanted["id"])["spec"]
    return all(there.get(name) == wanted.get(name) for name in {*there, *wanted} - {"source", "version"})


def _warn_unknown(app: Dueline, handler: str) -> None:
    try:
        known = handler in app.live_handlers()
    except StoreUnreachable:
        return
    if not known:
        note(f"no live worker knows the handler {handler!r}; its occurrences wait until one does")


@cron.command("update", short_help="Change options of a schedule.")
@id_argument
@click.option("--handler", metavar="H", help="The handler to run.")
@schedule_options
@click.option(
    "--clear", multiple=True, metavar="NAME", help="Take an option back to its default; may be repeated."
)
@wait_option
def update(id_: str, handler: str | None, clear: tuple[str, ...], wait: str, **options: Any) -> int:
    """Change what is given, and keep the rest. Nothing of the past fires for it: what was due before is decided by the
    old definition. The outcome is `updated`, or `not_found` (exit code 3).

    A schedule that a file or an app keeps is changed back by its next sync, or the next start of a worker of that app.
    """
    from pipeline import Dueline

    with named_as_options(), Dueline() as app:
        given = {**_cleared(clear), **read(options)}
        if not given and handler is None:
            raise click.UsageError("nothing to change: give an option")
        source = source_of(app, id_)
        change = app.schedules.update(id_, handler=handler, wait=wait, **given)
        tell_keeper(change, source)
        return tell(change, "next_due", "revision")


def _cleared(names: tuple[str, ...]) -> dict[str, Any]:
    fields = [name.removeprefix("--").replace("-", "_") for name in names]
    fields = [{"label": "labels", "header": "headers"}.get(name, name) for name in fields]
    for name in fields:
        if name not in CLEARED:
            raise InvalidInput("clear", f"{name!r} is none of {', '.join(CLEARED)}")
    return dict.fromkeys(fields)
