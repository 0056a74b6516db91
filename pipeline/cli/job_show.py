"""`dueline job get` and `why`: asked of a running server, else read from the topics."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.job_input import named_as_options
from pipeline.cli.job_text import job_text
from pipeline.cli.output import emit, harmless


@click.command("get", short_help="Show a job with its runs and attempts.")
@click.argument("id_", metavar="ID")
def get(id_: str) -> None:
    """Show a job with its payload, its runs and attempts and what they logged: as a running server knows it
    (DUELINE_URL, or that of `dueline dev`), else read from the topics. Which, is said on stderr.

    Of a job with a key the last incarnation is shown, and its `occurrence`, ID.INCARNATION, is the name by which it can
    be asked for once there is a newer one. What ended over 7 days ago is no longer kept in the topics: only a server
    knows it; else exit code 3, as for an id that never was. What cannot be read to its end, because the store is coming
    back or a transaction stays open, is not called missing: exit code 5, ask again.
    """
    from pipeline.cli.served import served_or_stored

    with named_as_options():
        emit(served_or_stored(lambda server: server.get(id_), lambda: _as_stored(id_)), job_text)


def _as_stored(id_: str) -> dict[str, Any]:
    from pipeline.cli.store import following

    with following() as store:
        return store.follower.job(id_)


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
