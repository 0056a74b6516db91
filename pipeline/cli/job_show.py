"""`dueline job get`, `list` and `why`: asked of a running server, else read from the topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.job_input import named_as_options, pair
from pipeline.cli.output import emit, harmless, note, table
from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.core.times import format_instant, parse_instant

if TYPE_CHECKING:
    from pipeline.follower import Wanted

LISTED = ("pending", "retrying")


@click.command("get", short_help="Show a job with its runs and attempts.")
@click.argument("id_", metavar="ID")
def get(id_: str) -> None:
    """Show a job with its runs and attempts: as a running server knows it (DUELINE_URL, or that of `dueline dev`),
    else read from the topics. Which, is said on stderr.

    Of a job with a key the last incarnation is shown; ID.INCARNATION names an older one. What ended over 7 days
    ago is no longer kept in the topics: only a server knows it; else exit code 3, as for an id that never was. What
    cannot be read to its end, because the store is coming back or a transaction stays open, is not called missing:
    exit code 5, ask again.
    """
    from pipeline.cli.served import served_or_stored

    with named_as_options():
        emit(served_or_stored(lambda server: server.get(id_), lambda: _as_stored(id_)), _job_text)


def _as_stored(id_: str) -> dict[str, Any]:
    from pipeline.cli.store import following

    with following() as store:
        return store.follower.job(id_)


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
    serial group, a retry. A running server is asked (DUELINE_URL, or that of `dueline dev`), else the topics are read;
    which, is said on stderr. Processes are known by their heartbeats of the last 5 seconds.
    """
    from pipeline.cli.served import served_or_stored

    with named_as_options():
        view = served_or_stored(lambda server: server.why(id_), lambda: _why_as_stored(id_))
        emit(view, lambda told: harmless(f"{told['id']}: {told['sentence']}"))


def _why_as_stored(id_: str) -> dict[str, Any]:
    from pipeline.cli.store import following

    with following() as store:
        reason = store.follower.why(id_, store.parts.clock.now())
        status = None if reason.status is None else str(reason.status)
        return {"id": id_, "status": status, "waits_for": reason.waits_for, "sentence": reason.sentence}


@click.command("list", short_help="List jobs, pending and retrying ones unless told otherwise.")
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
    """List jobs that have a run to come, pending and retrying ones, or those of --status. With --json, one object a
    line.

    A running server is asked (DUELINE_URL, or that of `dueline dev`); without one the topics are read, where only
    pending and retrying jobs can be listed; which, is said on stderr. A server lists by due time; from the topics,
    without --limit, jobs come as they are read, in order of due time within each partition.
    """
    from pipeline.cli.served import running_server
    from pipeline.follower import Wanted

    wanted = Wanted(
        status=None if status is None else JobStatus(status),
        handler=handler,
        labels=dict(pair("--label", text) for text in labels),
        key_prefix=key_prefix,
        due_from=None if due_from is None else parse_instant("--due-from", due_from),
        due_to=None if due_to is None else parse_instant("--due-to", due_to),
    )
    with running_server() as server:
        if server is not None:
            _list(server.jobs(limit, **_query(wanted)))
            return
    if status is not None and status not in LISTED:
        raise InvalidInput(
            "--status", f"{status} needs a server; without one there are {' and '.join(LISTED)}"
        )
    from pipeline.cli.store import following

    with following() as store:
        _list(iter(store.follower.jobs(wanted, limit)))


def _query(wanted: Wanted) -> dict[str, Any]:
    """As the API has it."""
    given = {
        "status": [str(wanted.status)] if wanted.status is not None else list(LISTED),
        "handler": wanted.handler,
        "label": [f"{name}={value}" for name, value in wanted.labels.items()],
        "key_prefix": wanted.key_prefix,
        "due_from": None if wanted.due_from is None else format_instant(wanted.due_from),
        "due_to": None if wanted.due_to is None else format_instant(wanted.due_to),
    }
    return {name: value for name, value in given.items() if value}


def _list(jobs: Iterator[Mapping[str, Any]]) -> None:
    first = next(jobs, None)
    if first is None:
        note("no job matches")
    else:
        emit(chain([first], jobs), "{0[id]}  {0[status]:8}  {0[due_at]}  {0[handler]}".format)
