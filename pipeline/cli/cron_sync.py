"""`dueline cron sync` and `import`: schedules from a file, or from an app, and what becomes of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.cron_input import named_as_options, wait_option
from pipeline.cli.job_input import opened
from pipeline.cli.output import emit, note
from pipeline.core.errors import StoreUnreachable

if TYPE_CHECKING:
    from pipeline.client.connection import Connection
    from pipeline.client.schedules import ScheduleChange
    from pipeline.client.syncing import Sync
    from pipeline.core.schedule import ScheduleSpec
    from pipeline.crontab import Finding, Parsed

EXIT_FLUSH_MS = 5_000
FILE_LIMIT = 4 * 1024 * 1024
INVALID, UNKNOWN, REFUSED = 2, 1, 4
SCRIPT = "script"
"""The built-in handler that starts programs (docs/handlers.md)."""
WARNINGS, PROGRAM_SHOWN = 5, 120
"""Handlers or programs that are named in one line, and characters of each."""
SHOWN = 20
"""Problems that are told of one file."""
_SYNCED = {".toml": "toml"}
_IMPORTED = {".py": "beat", ".json": "beat", ".toml": "toml"}
_LEFT_ALONE = ("foreign", "older", "refused")

_dry_run = click.option("--dry-run", is_flag=True, help="Only show what it would do.")
_name = click.option("--name", metavar="N", help="Whose schedules these are. Default: the file's own name.")
_tz = click.option("--tz", metavar="ZONE", help="Zone of crontab lines without CRON_TZ= above. Default: UTC.")


@click.command("sync", short_help="Make schedules those of a file, or of an app.")
@click.argument("file", required=False)
@click.option("--app", "target", metavar="MODULE[:APP]", help="Those that an app declares with @app.cron.")
@_name
@click.option("--format", "form", type=click.Choice(["crontab", "toml"]), help="Default: by the file's name.")
@_tz
@_dry_run
@wait_option
def sync(
    file: str | None,
    target: str | None,
    name: str | None,
    form: str | None,
    tz: str | None,
    dry_run: bool,
    wait: str,
) -> int:
    """Make the schedules of one source those that FILE (a crontab, or TOML) or an app has now: create, update, and
    remove what it has no more. Shows the diff. Schedules of another source are never touched: they are marked `!`,
    exit code 4.

    A mistake in the file is told with line and field (exit code 2), and nothing is changed. The source of a file is its
    name, so a file that moves is the same and one of the same name is too, unless --name says otherwise.
    """
    if (file is None) == (target is None):
        raise click.UsageError("give a FILE, or --app")
    if target is not None:
        return _sync_app(target, dry_run, wait)
    assert file is not None
    own = _name_of(file, name)
    parsed = _parse(file, form or _form(file, _SYNCED), f"file:{own}", tz)
    if _told(parsed):
        return INVALID
    return _sync(parsed.specs, f"file:{own}", "", dry_run, wait)


def _name_of(file: str, name: str | None) -> str:
    if name is None and file == "-":
        raise click.UsageError("--name is needed for stdin")
    return PurePath(file).name if name is None else name


def _form(file: str, forms: Mapping[str, str]) -> str:
    return forms.get(PurePath(file).suffix.lower(), "crontab")


def _parse(file: str, form: str, source: str, tz: str | None) -> Parsed:
    """InvalidInput with file and line if the file as a whole is of no use."""
    from pipeline.crontab import parse_beat, parse_crontab, parse_toml

    with opened("FILE", file) as stream:
        content = stream.read(FILE_LIMIT + 1)
    shown = "stdin" if file == "-" else file
    if form == "toml":
        if tz is not None:
            raise click.UsageError("--tz is for crontabs: a TOML file says it itself")
        return parse_toml(content, source=source, name=shown)
    if form == "beat":
        return parse_beat(content, source=source, name=shown, tz=tz)
    return parse_crontab(content, source=source, name=shown, tz=tz or "UTC")


def _told(parsed: Parsed) -> bool:
    """Whether there are problems, which are told then; else the notes are."""
    for problem in parsed.problems[:SHOWN]:
        note(_line(str(problem)))
    if len(parsed.problems) > SHOWN:
        note(f"and {len(parsed.problems) - SHOWN} more")
    if not parsed.problems:
        for remark in parsed.notes:
            note(_line(str(remark)))
    return bool(parsed.problems)


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _sync_app(target: str, dry_run: bool, wait: str) -> int:
    from pipeline.config import load_settings
    from pipeline.service import load_app
    from pipeline.service.declared import declared_by

    with named_as_options():
        declared = declared_by(load_app(target), target, load_settings())
    return _sync(declared.specs, declared.source, declared.version, dry_run, wait)


def _sync(specs: Sequence[ScheduleSpec], source: str, version: str, dry_run: bool, wait: str) -> int:
    from pipeline.client.request import wait_ms
    from pipeline.client.syncing import check_queues, sync_of

    wait_ms(wait)
    with named_as_options(), _connected() as connection:
        check_queues(connection, specs)
        with connection.reading() as finder:
            current = finder.schedules()
        wanted = sync_of(current, specs, source=source, version=version)
        changes = [] if dry_run else list(_asked(connection, wanted, wait))
        if changes:
            _warn_unknown(connection, wanted.plan.create)
    _warn(wanted.plan.create)
    emit(_sync_view(wanted, changes, dry_run), lambda _view: "\n".join(_diff(wanted, changes, dry_run)))
    counts = Counter(change.outcome for change in changes)
    for change in changes:
        if change.outcome in (*_LEFT_ALONE, "unknown"):
            note(f"{change.id}: {change.outcome}{f': {change.reason}' if change.reason else ''}")
    if counts["unknown"]:
        return UNKNOWN
    refused = any(counts[outcome] for outcome in _LEFT_ALONE) or (wanted.plan.foreign and not dry_run)
    return REFUSED if refused else 0


def _asked(connection: Connection, wanted: Sync, wait: str) -> Iterator[ScheduleChange]:
    from pipeline.client.syncing import delete_all, put_all

    yield from put_all(connection, wanted.put, wait)
    yield from delete_all(connection, wanted.delete, wanted.source, wanted.version, wait)


def _sync_view(wanted: Sync, changes: Iterable[ScheduleChange], dry_run: bool) -> dict[str, Any]:
    plan = wanted.plan
    return {
        "source": wanted.source,
        "version": wanted.version or None,
        "dry_run": dry_run,
        "create": [spec.id for spec in plan.create],
        "update": [
            {
                "id": update.spec.id,
                "changed": [{"field": c.field, "old": c.old, "new": c.new} for c in update.changed],
            }
            for update in plan.update
        ],
        "delete": list(plan.delete),
        "unchanged": list(plan.unchanged),
        "foreign": [{"id": each.spec.id, "source": each.source} for each in plan.foreign],
        "outcomes": dict(Counter(change.outcome for change in changes)),
    }


def _diff(wanted: Sync, changes: Sequence[ScheduleChange], dry_run: bool) -> list[str]:
    lines = [_line(line) for line in wanted.plan.lines()]
    if dry_run:
        return lines
    counts = Counter(change.outcome for change in changes)
    done = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())) or "nothing to do"
    return [*lines, done]


@contextmanager
def _connected() -> Iterator[Connection]:
    """Raises StoreUnreachable; Refused if topics are missing."""
    from pipeline.cli.store import kafka_settings
    from pipeline.client import parts
    from pipeline.client.connection import Connection

    settings = kafka_settings()
    connection = Connection(parts.connect(settings), settings)
    try:
        yield connection
    finally:
        connection.close(EXIT_FLUSH_MS)


# -- import -------------------------------------------------------------------------------------------------


@click.command("import", short_help="Take over a crontab, or a Celery beat_schedule.")
@click.argument("file")
@click.option(
    "--format", "form", type=click.Choice(["crontab", "beat", "toml"]), help="Default: by the file's name."
)
@_tz
@_dry_run
@wait_option
def import_(file: str, form: str | None, tz: str | None, dry_run: bool, wait: str) -> int:
    """Create the schedules that FILE has: a crontab (`crontab -l | dueline cron import -`), or a Celery beat_schedule,
    in Python, which is read and never run, or in JSON. From then on they are kept by hand, as if by `cron create`.

    Reports what could not be carried over (left out), and what is done differently (notes). A schedule that is there
    already is left as it is.
    """
    from pipeline.client.request import wait_ms
    from pipeline.client.syncing import check_queues, create_all

    wait_ms(wait)
    parsed = _parse(file, form or _form(file, _IMPORTED), "cli", tz)
    changes: list[ScheduleChange] = []
    if parsed.specs and not dry_run:
        with named_as_options(), _connected() as connection:
            check_queues(connection, parsed.specs)
            changes = list(create_all(connection, parsed.specs, wait))
            _warn_unknown(connection, parsed.specs)
    _warn(parsed.specs)
    outcomes = {change.id: change for change in changes}
    view = {
        "file": file,
        "dry_run": dry_run,
        "schedules": [_imported(spec, outcomes.get(spec.id)) for spec in parsed.specs],
        "left_out": [_finding(each) for each in parsed.problems],
        "notes": [_finding(each) for each in parsed.notes],
    }
    emit(view, lambda view: "\n".join(_report(view, parsed)))
    refused = [change for change in changes if change.outcome == "refused"]
    for change in refused:
        note(f"{change.id}: {change.reason}")
    if any(change.outcome == "unknown" for change in changes):
        return UNKNOWN
    return REFUSED if refused else 0


def _imported(spec: ScheduleSpec, change: ScheduleChange | None) -> dict[str, Any]:
    from pipeline.core.schedule import spec_to_json

    return {"outcome": None if change is None else change.outcome, "spec": spec_to_json(spec)}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"line": finding.line or None, "field": finding.field or None, "text": finding.text}


def _report(view: Mapping[str, Any], parsed: Parsed) -> Iterator[str]:
    for each in view["schedules"]:
        spec = each["spec"]
        when = spec.get("cron") or f"every {spec['every']}"
        yield _line(
            f"{each['outcome'] or 'would create'} {spec['id']}  {when}  {spec['tz']}  {spec['handler']}"
        )
    yield from (f"left out: {_line(str(each))}" for each in parsed.problems)
    yield from (f"note: {_line(str(each))}" for each in parsed.notes)
    schedules, notes = _count(len(parsed.specs), "schedule"), _count(len(parsed.notes), "note")
    yield f"{schedules}, {len(parsed.problems)} left out, {notes}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


# -- what may keep them from running ----------------------------------------------------------------------------


def _warn(specs: Sequence[ScheduleSpec]) -> None:
    """Say which programs workers have to be allowed to run."""
    programs = sorted({_program(spec) for spec in specs if spec.handler == SCRIPT})
    if programs:
        shown = ", ".join(programs[:WARNINGS]) + (" …" if len(programs) > WARNINGS else "")
        note(
            f"{_count(len(programs), 'program')} that a worker runs only if its DUELINE_SCRIPT_ALLOW lists it,"
            f" else each run is dead: {shown}"
        )


def _program(spec: ScheduleSpec) -> str:
    command = json.loads(spec.payload or b"{}").get("command")
    return _line(str(command))[:PROGRAM_SHOWN]


def _warn_unknown(connection: Connection, specs: Sequence[ScheduleSpec]) -> None:
    """Say which handlers no live worker knows."""
    try:
        with connection.reading() as finder:
            live = finder.live_handlers(connection.clock.now())
    except StoreUnreachable:
        return  # they are stored all the same
    unknown = sorted({spec.handler for spec in specs} - live)
    if unknown:
        shown = ", ".join(unknown[:WARNINGS]) + (" …" if len(unknown) > WARNINGS else "")
        note(
            f"no live worker knows {_count(len(unknown), 'handler')}, whose occurrences wait until one does: {shown}"
        )
