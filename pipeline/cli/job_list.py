"""`dueline job list`: asked of a running server, else read from the topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.job_input import pair
from pipeline.cli.output import emit_rows, harmless, note
from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.core.times import format_instant, parse_instant

if TYPE_CHECKING:
    from pipeline.follower import Wanted

TO_COME = (JobStatus.PENDING, JobStatus.RETRYING)
OPEN = (*TO_COME, JobStatus.QUEUED, JobStatus.RUNNING)
"""What has not ended: listed unless told otherwise, and all that can be listed from the topics."""
COLUMNS = ("id", "status", "due_at", "queue", "handler", "key")


@click.command("list", short_help="List jobs that have not ended, or those of some status.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in JobStatus]),
    help="Of these only; may be repeated. Default: pending, queued, running, retrying.",
)
@click.option("--handler", metavar="H", help="Of this handler only.")
@click.option("--queue", metavar="Q", help="Of this queue only.")
@click.option("--schedule", metavar="S", help="Occurrences of this schedule only.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="With this label; may be repeated.")
@click.option("--key", metavar="K", help="With exactly this key.")
@click.option("--key-prefix", metavar="P", help="With a key that begins so.")
@click.option("--text", metavar="T", help="With this in the id, key or handler.")
@click.option("--due-from", metavar="RFC3339", help="Due then or later.")
@click.option("--due-to", metavar="RFC3339", help="Due before then.")
@click.option(
    "--order",
    type=click.Choice(["due", "-due"]),
    default="due",
    help="By due time, or -due: the latest first.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N of all.")
def list_(
    statuses: tuple[str, ...], labels: tuple[str, ...], limit: int | None, **options: str | None
) -> None:
    """List jobs that have not ended: pending (also the next instant of each schedule), queued, running and retrying; or
    those of --status. With --json, one object a line. `--key K --status succeeded` lists incarnations that had a key
    before, as ID.INCARNATION.

    A running server is asked (DUELINE_URL, or that of `dueline dev`); without one the topics are read, where what has
    ended cannot be listed; which, is said on stderr. A server lists by due time. From the topics without --limit jobs
    come as they are read, in order of due time within each partition, those that have fired last; -due holds all of
    them, to sort them.
    """
    from pipeline.cli.served import running_server

    wanted = _wanted(statuses, labels, **options)
    with running_server() as server:
        if server is not None:
            _list(server.jobs(limit, **_query(wanted)))
            return
    ended = sorted(status for status in wanted.statuses if status not in OPEN)
    if ended:
        raise InvalidInput("--status", f"{ended[0]} needs a server; without one there are {', '.join(OPEN)}")
    _list_stored(wanted, limit)


def _wanted(
    statuses: tuple[str, ...],
    labels: tuple[str, ...],
    *,
    due_from: str | None,
    due_to: str | None,
    order: str | None,
    **same: str | None,
) -> Wanted:
    from pipeline.follower import Wanted

    return Wanted(
        statuses=frozenset(map(JobStatus, statuses or OPEN)),
        labels=dict(pair("--label", text) for text in labels),
        due_from=None if due_from is None else parse_instant("--due-from", due_from),
        due_to=None if due_to is None else parse_instant("--due-to", due_to),
        order=order or "due",
        **same,
    )


def _query(wanted: Wanted) -> dict[str, Any]:
    """As the API has it."""
    same = ("handler", "queue", "schedule", "key", "key_prefix", "text", "order")
    given = {
        **{name: getattr(wanted, name) for name in same},
        "status": [status.value for status in JobStatus if status in wanted.statuses],
        "label": [f"{name}={value}" for name, value in wanted.labels.items()],
        "due_from": None if wanted.due_from is None else format_instant(wanted.due_from),
        "due_to": None if wanted.due_to is None else format_instant(wanted.due_to),
    }
    return {name: value for name, value in given.items() if value not in (None, [])}


def _list_stored(wanted: Wanted, limit: int | None) -> None:
    from pipeline.cli.store import following
    from pipeline.follower import open_jobs

    with following() as store, closing(store.parts.open_scan()) as scan:
        fired: Iterator[dict[str, Any]] = iter(())
        if wanted.statuses - set(TO_COME):
            fired = open_jobs(scan, store.parts.names, store.layout.queues, wanted)
        _list(store.follower.jobs(wanted, limit, fired))


def _list(jobs: Iterator[Mapping[str, Any]]) -> None:
    if not emit_rows(COLUMNS, jobs, _row):
        note("no job matches")


def _row(view: Mapping[str, Any]) -> list[str | None]:
    return [view[name] and harmless(view[name]) for name in COLUMNS]
