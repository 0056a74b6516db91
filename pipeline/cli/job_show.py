"""`dueline job get`, `list` and `why`: read from the topics, no server needed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import click

from pipeline.cli.job_input import named_as_options, pair
from pipeline.cli.output import emit, note, table
from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.core.times import parse_instant

LISTED = ("pending", "retrying")


@click.command("get", short_help="Show a job with its runs and attempts.")
@click.argument("id_", metavar="ID")
def get(id_: str) -> None:
    """Show a job with its runs and attempts, read from the topics; no server is needed.

    Of a job with a key the last incarnation is shown; ID.INCARNATION names an older one. What ended over 7 days
    ago is no longer kept there: exit code 3, as for an id that never was. What cannot be read to its end, because the
    store is coming back or a transaction stays open, is not called missing: exit code 5, ask again.
    """
    from pipeline.cli.store import following

    with named_as_options(), following() as store:
        emit(store.follower.job(id_), _job_text)


def _job_text(view: Mapping[str, Any]) -> str:
    lines = [
        f"{name:8} {view[name]}"
        for name in ("id", "handler", "status", "due_at", "key", "queue", "result")
        if view[name] is not None
    ]
    attempts = [
        (run["run"], run["fired_at"], *(attempt[name] for name in _ATTEMPT), _error_text(attempt["error"]))
        for run in view["runs"]
        for attempt in run["attempts"] or [dict.fromkeys((*_ATTEMPT, "error"))]
    ]
    if attempts:
        lines += ["", table(("run", "fired_at", *_ATTEMPT, "error"), attempts)]
    return "\n".join(lines)


_ATTEMPT = ("attempt", "outcome", "started_at", "finished_at", "worker")


def _error_text(error: Mapping[str, str] | None) -> str | None:
    return f"{error['type']}: {error['message']}" if error else None


@click.command("why", short_help="Say what a job waits for.")
@click.argument("id_", metavar="ID")
def why(id_: str) -> None:
    """Say in one sentence what a job waits for: its time, the owner of its partition, its turn, a worker, its
    serial group, a retry. Read from the topics; processes by their heartbeats of the last 5 seconds.
    """
    from pipeline.cli.store import following

    with named_as_options(), following() as store:
        reason = store.follower.why(id_, store.parts.clock.now())
        status = None if reason.status is None else str(reason.status)
        view = {"id": id_, "status": status, "waits_for": reason.waits_for, "sentence": reason.sentence}
        emit(view, "{0[id]}: {0[sentence]}".format)


@click.command("list", short_help="List pending and retrying jobs.")
@click.option("--status", type=click.Choice([status.value for status in JobStatus]), help="Of these only.")
@click.option("--handler", metavar="H", help="Of this handler only.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="With this label; may be repeated.")
@click.option("--key-prefix", metavar="P", help="With a key that begins so.")
@click.option("--due-from", metavar="RFC3339", help="Due then or later.")
@click.option("--due-to", metavar="RFC3339", help="Due before then.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The first N due of all.")
def list_(
    status: str | None,
    handler: str | None,
    labels: tuple[str, ...],
    key_prefix: str | None,
    due_from: str | None,
    due_to: str | None,
    limit: int | None,
) -> None:
    """List jobs that have a run to come: pending and retrying ones. With --json, one object a line.

    Jobs that fired or ended are listed by a server, which is not there yet; `job get` shows any of them.
    Without --limit they come as they are read, in order of due time within each partition.
    """
    from pipeline.cli.store import following
    from pipeline.follower import Wanted

    if status is not None and status not in LISTED:
        raise InvalidInput("--status", f"{status} is not supported yet; {' and '.join(LISTED)} are")
    wanted = Wanted(
        status=None if status is None else JobStatus(status),
        handler=handler,
        labels=dict(pair("--label", text) for text in labels),
        key_prefix=key_prefix,
        due_from=None if due_from is None else parse_instant("--due-from", due_from),
        due_to=None if due_to is None else parse_instant("--due-to", due_to),
    )
    with following() as store:
        jobs = iter(store.follower.jobs(wanted, limit))
        first = next(jobs, None)
        if first is None:
            note("no job matches")
        else:
            emit(chain([first], jobs), "{0[id]}  {0[status]:8}  {0[due_at]}  {0[handler]}".format)
