"""`dueline job cancel`, `reschedule`, `update` and `requeue`: asked of the owner, whose answer is the outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.job_input import named_as_options
from pipeline.cli.job_input import payload as payload_of
from pipeline.cli.output import emit, note
from pipeline.core.times import format_instant, instant_of

if TYPE_CHECKING:
    from pipeline import Dueline, JobChange

EXIT_CODES: Mapping[str, int] = {
    "cancelled": 0,
    "stopped": 0,
    "stopping": 0,
    "rescheduled": 0,
    "updated": 0,
    "requeued": 0,
    "brought_forward": 0,
    "unknown": 1,
    "not_found": 3,
    "too_late": 4,
    "pending": 4,
}
REFUSED = 4
"""Exit code where `cancelled` and `stopped` are not what was asked for."""

_wait = click.option(
    "--wait", metavar="DURATION", default="5s", show_default=True, help="How long an answer is waited for."
)
_id = click.argument("id_", metavar="ID")


@click.command("cancel", short_help="Cancel a job that has not fired, or stop one that has.")
@_id
@click.option("--stop", is_flag=True, help="Also if it has fired: its worker ends the run.")
@_wait
def cancel(id_: str, stop: bool, wait: str) -> int:
    """Cancel a job. The outcome is

    \b
    cancelled  it did not fire and will not; asked again, the answer is the same (exit code 0)
    stopped    it fired, and its pending retry was dropped; or, with --stop, its run was ended: no further run
               will start (0)
    stopping   with --stop: its worker is told, and had not ended the run within --wait (0)
    too_late   it fired, is queued or running, or ended (4)
    not_found  the store has nothing under this id (3)
    unknown    no owner answered in time; it is asked for all the same (1)
    """
    change = _changed(lambda app: app.cancel(id_, stop=stop, wait=wait))
    return _answer(change, EXIT_CODES[change.outcome])


@click.command("reschedule", short_help="Have a job due at another time.")
@_id
@click.option("--at", metavar="RFC3339", help="When, with an offset or Z.")
@click.option("--in", "in_", metavar="DURATION", help="How long from now by the store's clock, e.g. 90s.")
@click.option("--now", is_flag=True, help="At once.")
@_wait
def reschedule(id_: str, at: str | None, in_: str | None, now: bool, wait: str) -> int:
    """Bring a job, or its pending retry, forward or put it off. The outcome is `rescheduled`, or `too_late`,
    `cancelled`, `stopped` (exit code 4), `not_found` (3), `unknown` (1).
    """
    if [at is not None, in_ is not None, now].count(True) != 1:
        raise click.UsageError("exactly one of --at, --in, --now is needed")
    change = _changed(lambda app: app.reschedule(id_, at=at, in_="0s" if now else in_, wait=wait))
    return _answer(change, _of_change(change), "due_at")


@click.command("update", short_help="Replace the payload of a job that has not fired.")
@_id
@click.option(
    "--payload", required=True, metavar="JSON|@FILE|-", help="A JSON object; from a file, or stdin."
)
@_wait
def update(id_: str, payload: str, wait: str) -> int:
    """Replace the payload of a job that has not fired. The outcome is `updated`, or as of `job reschedule`."""
    change = _changed(lambda app: app.update(id_, payload_of(payload), wait=wait))
    return _answer(change, _of_change(change))


@click.command("requeue", short_help="Run a job once more, at once.")
@_id
@_wait
def requeue(id_: str, wait: str) -> int:
    """Run a job once more, at once, its failures forgotten. The outcome is `requeued`; `brought_forward`: its
    pending retry runs now; `pending`, `cancelled`: it has not fired, nothing was done (exit code 4); `not_found` (3);
    `unknown` (1). A run that is queued or running goes on beside the new one.
    """
    change = _changed(lambda app: app.requeue(id_, wait=wait))
    return _answer(change, _of_change(change), "run", "due_at")


def _changed(ask: Callable[[Dueline], JobChange]) -> JobChange:
    from pipeline import Dueline

    with named_as_options(), Dueline() as app:
        return ask(app)


def _of_change(change: JobChange) -> int:
    return REFUSED if change.outcome in ("cancelled", "stopped") else EXIT_CODES[change.outcome]


def _answer(change: JobChange, code: int, *more: str) -> int:
    view: dict[str, Any] = {"id": change.id, "outcome": change.outcome}
    for name in more:
        view[name] = getattr(change, name)
    if view.get("due_at") is not None:
        view["due_at"] = format_instant(instant_of("due_at", view["due_at"]))
    emit(view, _text)
    if change.outcome == "unknown":
        note(
            "no owner answered in time: does a `dueline dispatcher` run? It is stored, and done once one does"
        )
    return code


def _text(view: Mapping[str, Any]) -> str:
    run = f", run {view['run']}" if view.get("run") is not None else ""
    due = f", due {view['due_at']}" if view.get("due_at") is not None else ""
    return f"{view['outcome']} {view['id']}{run}{due}"
