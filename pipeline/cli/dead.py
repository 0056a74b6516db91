"""`dueline dead`: what gave up or could not be read, and running it once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.cli.job_input import named_as_options
from pipeline.cli.job_input import payload as payload_of
from pipeline.cli.output import emit, harmless, json_wanted, note, table
from pipeline.core.errors import InvalidInput
from pipeline.core.times import parse_instant

if TYPE_CHECKING:
    from pipeline import JobChange
    from pipeline.client.connection import Connection
    from pipeline.follower import Follower, WantedLetters

T = TypeVar("T")

REASONS_TOLD = 5
EXIT_FLUSH_MS = 5_000
_EXITS = (
    (1, ("unknown",)),
    (3, ("not_found",)),
    (4, ("refused", "superseded", "pending", "cancelled", "stopped")),
)
"""Exit codes, the first of which one outcome is counted."""
_TEXT_LIMIT = 120
_CHOICES = (
    ("handler", "H", "Of this handler."),
    ("queue", "Q", "On this queue."),
    ("reason", "R", "With this reason, e.g. max_attempts."),
    ("error", "TYPE", "With an error of this type, e.g. ConnectionError."),
    ("group", "G", "Of this group: `dueline dead groups` names it."),
    ("since", "RFC3339", "That died then or later."),
)


@click.group("dead")
def dead() -> None:
    """List, count and requeue dead letters: runs that gave up, and records that nobody could read.

    Of a job the letter of its latest run counts. One that was requeued since is not listed, unless it died again.
    """


def choice_options(function: Callable[..., T]) -> Callable[..., T]:
    """By what letters are chosen: as `WantedLetters` names it, but for `since`, which is text."""
    for name, metavar, meaning in reversed(_CHOICES):
        function = click.option(f"--{name}", metavar=metavar, help=meaning)(function)
    return function


def _wanted(choice: Mapping[str, str | None], ids: Iterable[str] = ()) -> WantedLetters:
    from pipeline.follower import WantedLetters

    given: dict[str, Any] = dict(choice)
    if given["since"] is not None:
        given["since"] = parse_instant("--since", given["since"])
    return WantedLetters(**given, ids=frozenset(ids) or None)


@dead.command("list", short_help="List dead letters, the latest first.")
@choice_options
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The N latest.")
@click.option("--payload", is_flag=True, help="With the payloads, not only their sizes.")
def list_(limit: int | None, payload: bool, **choice: str | None) -> None:
    """List dead letters, the latest first. With --json, one object a line.

    A record that nobody could read has no id: it is listed with its place (`source`), and cannot be requeued.

    A running server is asked (DUELINE_URL, or that of `dueline dev`), else the topic is read, as it always is with
    --payload; which, is said on stderr.
    """
    from pipeline.cli.served import letters_of, running_server

    wanted = _wanted(choice)
    if not payload:
        with running_server() as server:
            if server is not None:
                _list(letters_of(server, wanted, limit))
                return
    _list(iter(_stored(wanted, payload)[:limit]))


@dead.command("groups", short_help="Count dead letters by handler and error.")
@choice_options
@click.option("--limit", type=click.IntRange(1), metavar="N", help="The N largest.")
def groups(limit: int | None, **choice: str | None) -> None:
    """Count dead letters that are alike: of one handler, with the same reason, type of error and first line of its
    message. The largest group first; with --json, one object a line.

    Ids, instants, fractions and numbers of four digits and more are `#` in the message, so that they do not make each
    letter a group of its own. A group is looked at with `dueline dead list --group G`, and run again with `dueline dead
    requeue --group G`.

    A running server is asked (DUELINE_URL, or that of `dueline dev`), else the topic is read; which, is said on stderr.
    """
    from pipeline.cli.served import groups_of, served_or_stored
    from pipeline.follower.letter_groups import counted

    wanted = _wanted(choice)
    found = served_or_stored(
        lambda server: groups_of(server, wanted), lambda: counted(_stored(wanted, payload=False))
    )[:limit]
    if not found:
        note("no dead letter matches")
    elif json_wanted():
        emit(iter(found), str)
    else:
        emit(found, _group_table)


def _group_table(found: list[Mapping[str, Any]]) -> str:
    columns = ("count", "group", "handler", "reason", "error", "oldest", "newest", "example")
    names = [name for name in columns if name != "error"]
    rows = [{**{name: each[name] for name in names}, "error": _error(each)} for each in found]
    return table(columns, [[row[name] for name in columns] for row in rows])


def _error(group: Mapping[str, Any]) -> str:
    parts = (group["error"], group["message"])
    return harmless(": ".join(part for part in parts if part), _TEXT_LIMIT)


def _stored(wanted: WantedLetters, payload: bool) -> list[Mapping[str, Any]]:
    from pipeline.cli.store import following

    with following() as store:
        return [letter.view for letter in store.follower.letters(wanted, payload=payload)]


def _list(letters: Iterator[Mapping[str, Any]]) -> None:
    first = next(letters, None)
    if first is None:
        note("no dead letter matches")
    else:
        emit(chain([first], letters), _line)


def _line(view: Mapping[str, Any]) -> str:
    source = view["source"]
    name = view["id"] or f"{source['topic']}/{source['partition']}/{source['offset']}"
    what = f"{view['handler']}, run {view['run']}" if view["id"] else "unreadable"
    detail = " ".join(view["detail"].split())[:_TEXT_LIMIT]
    line = f"{name}  {view['at']}  {what}  {view['reason']}" + (f": {detail}" if detail else "")
    return f"{line}  {view['payload']}" if view.get("payload") is not None else line


@dead.command("requeue", short_help="Run dead jobs once more, at once.")
@click.argument("ids", metavar="[ID]…", nargs=-1)
@choice_options
@click.option("--all", "all_", is_flag=True, help="All there are.")
@click.option("--payload", metavar="JSON|@FILE|-", help="With this payload instead of their own.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Only count what would be requeued.")
@click.option("--wait", metavar="DURATION", help="How long each answer is waited for. Default: 5s.")
def requeue(
    ids: tuple[str, ...],
    all_: bool,
    payload: str | None,
    rate: float | None,
    dry_run: bool,
    wait: str | None,
    **choice: str | None,
) -> int:
    """Run dead jobs once more, at once, their failures forgotten: those named by ID, or all that have in common what is
    given (`dueline dead groups` counts them), or --all. The answer counts the outcomes:

    \b
    requeued         a further run was emitted
    brought_forward  a retry of it was waiting, and runs now
    superseded       a later run was emitted since the letter: nothing was done
    pending, cancelled, stopped: the job is to come, or was ended: nothing was done
    refused          its owner does not take it, and says why (on stderr)
    not_found        no letter of this ID
    unreadable       a record that nobody could read: it cannot run
    unknown          no owner answered in time; it is asked for all the same

    Safe to repeat: no letter is requeued twice. Exit code 0; 1 if any outcome is unknown, 3 if an ID has no letter,
    4 if a job was not requeued.
    """
    from pipeline.client.dead import OUTCOMES, requeue_runs
    from pipeline.follower import latest_of_each, without_letter

    by_choice = any(each is not None for each in choice.values())
    if [bool(ids), by_choice, all_].count(True) != 1:
        raise click.UsageError("give IDs, or what they have in common, as --handler and --reason, or --all")
    edited = None if payload is None else _object(payload)
    wanted = _wanted(choice, ids)
    with named_as_options(), _connected() as (connection, follower):
        found = follower.letters(wanted)
        letters = latest_of_each(found, ids) if ids else found
        counts = Counter(unreadable=sum(letter.job is None for letter in letters))
        counts["not_found"] = len(without_letter(ids, letters))
        if not dry_run:
            runs = (run for _, run in follower.dead_runs(letters))
            changes = requeue_runs(connection, runs, payload=edited, wait=wait, rate=rate)
            counts += _counted(changes)
    answer = {"dry_run": dry_run, "matched": len(letters), **{name: counts[name] for name in OUTCOMES}}
    emit(answer, _counts)
    return _exit_code(counts)


def _object(given: str) -> dict[str, Any]:
    edited = payload_of(given)
    if not isinstance(edited, dict):
        raise InvalidInput("--payload", f"must be a JSON object, not {type(edited).__name__}")
    return edited


@contextmanager
def _connected() -> Iterator[tuple[Connection, Follower]]:
    """A client to send with, and what reads. Raises StoreUnreachable; Refused if topics are missing."""
    from pipeline.cli.store import kafka_settings
    from pipeline.client import parts
    from pipeline.client.connection import Connection
    from pipeline.follower import Follower

    settings = kafka_settings()
    connection = Connection(parts.connect(settings), settings)
    try:
        outside = connection.parts
        yield (
            connection,
            Follower(reader=outside.reader, names=outside.names, layout=connection.layout),
        )
    finally:
        connection.close(EXIT_FLUSH_MS)


def _counted(changes: Iterable[tuple[JobChange, str]]) -> Counter[str]:
    from pipeline.client.dead import OUTCOMES

    counts: Counter[str] = Counter()
    told: set[str] = set()
    for change, why in changes:
        counts[change.outcome if change.outcome in OUTCOMES else "refused"] += 1
        if why and why not in told and len(told) < REASONS_TOLD:
            told.add(why)
            note(f"{change.id}: {why}")
    return counts


def _counts(answer: Mapping[str, Any]) -> str:
    from pipeline.client.dead import OUTCOMES

    if answer["dry_run"]:
        return f"{answer['matched']} would be requeued" + _others(answer, "unreadable", "not_found")
    return f"{answer['requeued']} of {answer['matched']} requeued" + _others(answer, *OUTCOMES[1:])


def _others(answer: Mapping[str, Any], *names: str) -> str:
    return "".join(f", {answer[name]} {name}" for name in names if answer[name])


def _exit_code(counts: Mapping[str, int]) -> int:
    return next((code for code, names in _EXITS if any(counts[name] for name in names)), 0)
