"""`dueline job`: create, read and list jobs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import click

from pipeline.cli.output import emit, note, table
from pipeline.core.errors import InvalidInput, StoreUnreachable
from pipeline.core.job import JobStatus
from pipeline.core.times import format_instant, instant_of, parse_instant

if TYPE_CHECKING:
    from pipeline import Dueline

LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of one line of `job create --file`: no more is ever held at once."""
HANDLERS_WATCHED = 1_000
"""Names of handlers remembered from a file, to say which of them no worker knows."""
WARNINGS = 5
LISTED = ("pending", "retrying")


@click.group("job")
def job() -> None:
    """Create, read and list jobs."""


# -- create -------------------------------------------------------------------------------------------------


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
@click.option("--key", hidden=True, is_flag=False, flag_value="")
@click.option("--unique", hidden=True, is_flag=False, flag_value="")
@click.option("--wait", hidden=True, is_flag=False, flag_value="")
@click.option("--priority", hidden=True, is_flag=False, flag_value="")
def create(file: str | None, now: bool, **options: Any) -> None:
    """Create one job for HANDLER and answer its id once the store has acknowledged it; or, with --file, one
    for each line.

    A line holds handler, at or in, and optionally payload, queue, idempotency_key, max_attempts, timeout,
    serial, labels, headers. Lines are streamed. A bad line ends it with exit code 2, naming line and field:
    the lines before it are stored, nothing from it on is.

    \b
    dueline job create email.send --payload '{"to": "a@b"}' --in 10m
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if file is not None:
        if given or now:
            raise click.UsageError(f"--file excludes {'--now' if now else _option(next(iter(given)))}")
        _create_file(file)
    else:
        _create_one(given, now)


def _create_one(given: dict[str, Any], now: bool) -> None:
    from pipeline import Dueline

    if now and "in_" in given:
        raise click.UsageError("--now excludes --in")
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
    except InvalidInput as error:
        if error.field == "at" and not given.keys() & {"at", "in_"}:
            raise click.UsageError("one of --at, --in, --now is needed") from error
        raise InvalidInput(_option(error.field), error.problem) from error


def _read_values(given: dict[str, Any]) -> None:
    for name in ("labels", "headers"):
        if name in given:
            given[name] = dict(_pair(name, text) for text in given[name])
    if "payload" in given:
        given["payload"] = _parse("payload", _payload_text(given["payload"]))


def _pair(field: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(field, f"{text!r} is not name=value")
    return name, value


def _payload_text(given: str) -> str | bytes:
    if given != "-" and not given.startswith("@"):
        return given
    with _opened("payload", given.removeprefix("@")) as stream:
        text = stream.read(LINE_LIMIT)
    if len(text) == LINE_LIMIT:
        raise InvalidInput("payload", f"is longer than {LINE_LIMIT} bytes")
    return text


def _opened(field: str, path: str) -> IO[bytes]:
    try:
        return click.open_file(path, "rb")
    except OSError as error:
        raise InvalidInput(field, f"cannot read {path}: {error.strerror}") from error


def _parse(field: str, text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=partial(_object, field))
    except RecursionError:
        raise InvalidInput(field, "nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(field, f"is not JSON: {error}") from error


def _object(field: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """One JSON object. A name twice is refused: which of its values was meant, nobody can tell."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidInput(field, f"has the name {twice!r} twice in one object")
    return found


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
        request = _parse("line", line)
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
    with _opened("--file", path) as stream, Dueline() as app:
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


def _option(field: str) -> str:
    """What the user calls a field here; anything else, such as a variable, keeps its name."""
    return _OPTIONS.get(field.partition(".")[0], field)


_OPTIONS = {
    "handler": "HANDLER",
    "payload": "--payload",
    "at": "--at",
    "in_": "--in",
    "idempotency_key": "--idempotency-key",
    "queue": "--queue",
    "max_attempts": "--max-attempts",
    "timeout": "--timeout",
    "serial": "--serial",
    "labels": "--label",
    "headers": "--header",
    "key": "--key",
    "unique": "--unique",
    "wait": "--wait",
    "priority": "--priority",
}


# -- get and list -------------------------------------------------------------------------------------------


@job.command("get", short_help="Show a job with its runs and attempts.")
@click.argument("id_", metavar="ID")
def get(id_: str) -> None:
    """Show a job with its runs and attempts, read from the topics; no server is needed.

    What ended over 7 days ago is no longer kept there: exit code 3, as for an id that never was.
    """
    from pipeline.cli.store import following

    with following() as store:
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


@job.command("list", short_help="List pending and retrying jobs.")
@click.option("--status", type=click.Choice([status.value for status in JobStatus]), help="Of these only.")
@click.option("--handler", metavar="H", help="Of this handler only.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="With this label; may be repeated.")
@click.option("--key-prefix", hidden=True)
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

    if key_prefix is not None:
        raise InvalidInput("--key-prefix", "not supported yet")
    if status is not None and status not in LISTED:
        raise InvalidInput("--status", f"{status} is not supported yet; {' and '.join(LISTED)} are")
    wanted = Wanted(
        status=None if status is None else JobStatus(status),
        handler=handler,
        labels=dict(_pair("--label", text) for text in labels),
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


# -- not yet ------------------------------------------------------------------------------------------------


def _not_yet(name: str) -> None:
    settings = {"ignore_unknown_options": True}

    @job.command(name, context_settings=settings, short_help="Not supported yet.", add_help_option=False)
    @click.argument("arguments", nargs=-1)
    def refuse(arguments: tuple[str, ...]) -> None:
        raise click.UsageError(f"job {name}: not supported yet")


for _name in ("cancel", "reschedule", "requeue", "why"):
    _not_yet(_name)
