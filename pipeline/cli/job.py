"""`dueline job`: the group, and `create`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from pipeline.cli import job_change, job_list, job_show
from pipeline.cli.job_input import LINE_LIMIT, opened, option, pair, parse, payload
from pipeline.cli.output import emit, note
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.times import format_instant, instant_of

if TYPE_CHECKING:
    from pipeline import Dueline

HANDLERS_WATCHED = 1_000
"""Names of handlers remembered from a file, to say which of them no worker knows."""
WARNINGS = 5
REJECTED = 4
"""Exit code where the key was taken and that was to be refused."""


@click.group("job")
def job() -> None:
    """Create, read and change jobs."""


for _command in (
    *(job_show.get, job_list.list_, job_show.why),
    *(job_change.cancel, job_change.reschedule, job_change.update, job_change.requeue),
):
    job.add_command(_command)


@job.command("create", short_help="Create one job, or many from a file.")
@click.argument("handler", required=False)
@click.option("--payload", metavar="JSON|@FILE|-", help="A JSON object; from a file, or from stdin.")
@click.option("--at", metavar="RFC3339", help="When, with an offset or Z; a past instant fires at once.")
@click.option("--in", "in_", metavar="DURATION", help="How long from now by the store's clock, e.g. 90s.")
@click.option("--now", is_flag=True, help="At once.")
@click.option(
    "--idempotency-key",
    metavar="I",
    help="Key that the handler makes its effect unique by, e.g. an invoice number. Default: the job's id.",
)
@click.option("--queue", metavar="Q", help="Whose workers run it. Default: the setting, `default`.")
@click.option("--max-attempts", type=int, metavar="N", help="Default: the handler's own.")
@click.option("--timeout", metavar="DURATION", help="Of one attempt. Default: the handler's own.")
@click.option("--serial", metavar="GROUP", help="Jobs of one group start one after the other.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="To list by; may be repeated.")
@click.option("--header", "headers", multiple=True, metavar="K=V", help="Handed on; may be repeated.")
@click.option("--file", metavar="JOBS.JSONL|-", help="Create many: one JSON object a line.")
@click.option("--spread", metavar="DURATION", help="Put it off by up to so long, the same for the same key.")
@click.option("--key", metavar="K", help="Identity: while it holds the key there is no second one.")
@click.option("--unique", metavar="U", help="How long: finished (default), started, or a duration from now.")
@click.option(
    "--on-conflict",
    metavar="C",
    help="If the key is taken: existing (default), replace, debounce (put it off), reject.",
)
@click.option("--wait", metavar="DURATION", help="How long the owner of a key is waited for. Default: 5s.")
@click.option("--priority", hidden=True, is_flag=False, flag_value="")
def create(file: str | None, now: bool, **options: Any) -> int:
    """Create one job for HANDLER and answer its id once the store has acknowledged it; or, with --file, one
    for each line.

    With --key the owner of the key answers: created, or existing, replaced, debounced, rejected (exit code 4);
    accepted if it does not within --wait: the job is stored and not lost.

    A line holds handler, at or in, and optionally payload, queue, idempotency_key, max_attempts, timeout,
    serial, labels, headers, spread, key, unique, on_conflict. Lines are streamed; no owner is waited for. A bad
    line ends it with exit code 2, naming line and field: the lines before it are stored, nothing from it on is.

    \b
    dueline job create email.send --payload '{"to": "a@b"}' --in 10m
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if file is not None:
        if given or now:
            raise click.UsageError(f"--file excludes {'--now' if now else option(next(iter(given)))}")
        _create_file(file)
        return 0
    return _create_one(given, now)


def _create_one(given: dict[str, Any], now: bool) -> int:
    from pipeline import Dueline

    if now and "in_" in given:
        raise click.UsageError("--now excludes --in")
    if now and "at" in given:
        raise click.UsageError("--now excludes --at")
    if given.keys() >= {"at", "in_"}:
        raise click.UsageError("--at excludes --in")
    if now:
        given["in_"] = 0
    try:
        _read_values(given)
        handler = given.pop("handler", None)
        with Dueline() as app:
            ref = app.schedule(handler, **given)
            due_at = format_instant(instant_of("due_at", ref.due_at))
            emit(
                {"id": ref.id, "status": ref.status, "due_at": due_at},
                "{0[status]} {0[id]}, due {0[due_at]}".format,
            )
            _warn_unknown(app, {handler})
            return REJECTED if ref.status == "rejected" else 0
    except InvalidInput as error:
        if error.field == "at" and not given.keys() & {"at", "in_"}:
            raise click.UsageError("one of --at, --in, --now is needed") from error
        raise InvalidInput(option(error.field), error.problem) from error


def _read_values(given: dict[str, Any]) -> None:
    for name in ("labels", "headers"):
        if name in given:
            given[name] = dict(pair(name, text) for text in given[name])
    if "payload" in given:
        given["payload"] = payload(given["payload"])


class Lines:
    """The jobs in a JSONL stream; `number` is the line last handed out, from 1."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.number = 0
        self.handlers: set[str] = set()
        self._stream = stream

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        while line := self._stream.readline(LINE_LIMIT):
            self.number += 1
            if len(line) == LINE_LIMIT:
                raise InvalidInput("line", f"is longer than {LINE_LIMIT} bytes")
            if not line.isspace():
                yield self._request(line)

    def _request(self, line: bytes) -> Mapping[str, Any]:
        request = parse("line", line)
        if not isinstance(request, dict):
            raise InvalidInput("line", "is not a JSON object")
        if "in" in request:
            _refuse_two_times(request)
            request["in_"] = request.pop("in")
        if isinstance(request.get("handler"), str) and len(self.handlers) < HANDLERS_WATCHED:
            self.handlers.add(request["handler"])
        return request


def _refuse_two_times(request: Mapping[str, Any]) -> None:
    if "in_" in request:
        raise InvalidInput("in", "excludes in_, which is the same")
    if request["in"] is not None and request.get("at") is not None:
        raise InvalidInput("at", "excludes in: give one of them")


def _create_file(path: str) -> None:
    from pipeline import Dueline

    accepted = 0
    with opened("--file", path) as stream, Dueline() as app:
        lines = Lines(stream)
        try:
            for _ in app.schedule_many(lines):
                accepted += 1
        except InvalidInput as error:
            raise _bad_line(lines.number, accepted, error) from error
        except StoreUnreachable as error:
            raise StoreUnreachable(f"{error}; {_jobs(accepted)} confirmed before") from error
        emit({"accepted": accepted}, lambda view: f"accepted {_jobs(view['accepted'])}")
        _warn_unknown(app, lines.handlers)


def _bad_line(number: int, accepted: int, error: InvalidInput) -> InvalidInput:
    # A bad item carries what is wrong in it as its context; a line that is no item is raised as it is.
    problem = error.__context__ if isinstance(error.__context__, InvalidInput) else error
    match accepted:
        case 0:
            stored = "nothing is stored"
        case 1:
            stored = "the job before it is stored"
        case _:
            stored = f"the {accepted} jobs before it are stored"
    return InvalidInput(f"line {number}: {_field(problem.field)}", f"{problem.problem}; {stored}")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _warn_unknown(app: Dueline, handlers: set[str]) -> None:
    try:
        unknown = sorted(handlers - app.live_handlers())
    except StoreUnreachable:
        return  # the jobs are stored all the same, and that is what was asked for
    for name in unknown[:WARNINGS]:
        note(
            f"no live worker knows the handler {name!r}; the job waits until one does:"
            " start it with `dueline worker --app MODULE:APP`"
        )


def _field(field: str) -> str:
    return field.removesuffix("_")
