"""`dueline replay`: running again what failed, died or was lost in a window of due time."""

from __future__ import annotations

import getpass
import math
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pipeline.cli import interrupt
from pipeline.cli.job_input import named_as_options
from pipeline.cli.output import emit, note
from pipeline.cli.replay_show import cancel, list_, only_of, outcome_lines, show
from pipeline.cli.window import filtered, tell_newer, wanted
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.times import format_instant, parse_instant

if TYPE_CHECKING:
    from pipeline.client.connection import Connection
    from pipeline.replay import Asked, Chosen, Replay, Replays
    from pipeline.survey import Filter, Ground, Window

MANY = 1_000
"""Occurrences of one replay that need no --yes."""
EXIT_FLUSH_MS = 5_000
ONLY = ("failed", "dead", "unacked", "all")


class _Rate(click.FloatRange):
    """A range lets through what is no number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if not math.isfinite(rate):
            self.fail(f"{value!r} is no number of runs a second", param, ctx)
        return rate


RATE = _Rate(min=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a replay is made with."""

    connection: Connection
    ground: Ground
    replays: Replays

    def now(self) -> int:
        return self.connection.parts.clock.now()


@contextmanager
def desk() -> Iterator[Desk]:
    """Connected to the store that the settings name. Raises StoreUnreachable; Refused if its topics are missing."""
    from pipeline.cli.store import kafka_settings
    from pipeline.client import parts
    from pipeline.client.connection import Connection
    from pipeline.replay import Replays
    from pipeline.survey import Ground

    settings = kafka_settings()
    connection = Connection(parts.connect(settings), settings)
    try:
        outside = connection.parts
        with closing(outside.open_scan()) as scan:
            ground = Ground(scan=scan, names=outside.names, layout=connection.layout)
            yield Desk(connection=connection, ground=ground, replays=Replays(connection, ground))
    finally:
        connection.close(EXIT_FLUSH_MS)


@click.group("replay", invoke_without_command=True, short_help="Run again what failed or was lost.")
@click.option("--from", "from_", metavar="RFC3339", help="The first due time that counts.")
@click.option("--to", metavar="RFC3339", help="The first that counts no more. Default: now.")
@click.option("--bucket", metavar="RFC3339", help="The bucket of this due time, instead of --from and --to.")
@filtered
@click.option(
    "--only",
    type=click.Choice(ONLY),
    default="failed",
    show_default=True,
    help="failed: those that gave up, dead ones too; unacked: lost ones; all, with --force: whatever has ended.",
)
@click.option("--rate", type=RATE, metavar="N", help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Only count what would run.")
@click.option("--yes", is_flag=True, help=f"Though it may be more than {MANY:,}.")
@click.option("--force", is_flag=True, help="With --only all: run again even what succeeded.")
@click.option("--beside", is_flag=True, help="Though another replay is not finished that may mean the same.")
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> int | None:
    """Run again what failed, died or was lost in a window of due time.

    Each occurrence gets one further run under its own idempotency key, made by the owner of its job: one that
    somebody requeued, or that was acked, since it was looked for is left alone. Runs that workers have still before
    them are counted as waiting, and never replayed. Of jobs that had one key after the other only the latest is run
    again. Jobs on time go first; --rate holds the replay back further.

    \b
      dueline replay --from 2026-11-30T02:00:00Z --to 2026-11-30T03:30:00Z --dry-run
      dueline replay --from 2026-11-30T02:00:00Z --to 2026-11-30T03:30:00Z --only dead --handler email.send

    A replay has an id. `dueline replay resume ID`, or the same request again with --from and --to, goes on with one
    whose process is gone. Exit code 4: more than 1,000 occurrences without --yes; another replay that is not finished
    and may mean the same; somebody cancelled it, or took it up elsewhere; some that no owner took, or whose records are
    gone. 1: no owner answers, with what was asked for stored.
    """
    if ctx.invoked_subcommand is not None:
        if any(value not in (None, False, (), "failed") for value in options.values()):
            raise click.UsageError(f"options of a replay do not go with `replay {ctx.invoked_subcommand}`")
        return None
    with named_as_options():
        request = _request(
            **{name: value for name, value in options.items() if name not in ("dry_run", "yes")}
        )
        with desk() as here:
            return _replay(here, _asked(here, request), dry_run=options["dry_run"], yes=options["yes"])


replay.add_command(list_)
replay.add_command(show)
replay.add_command(cancel)


@replay.command("resume", short_help="Go on with one that was interrupted.")
@click.argument("id_", metavar="ID")
@click.option("--rate", type=RATE, metavar="N", help="At most N a second from now on.")
@click.option(
    "--force", is_flag=True, help="Though another process seems to carry it out: that one leaves it then."
)
def resume(id_: str, rate: float | None, force: bool) -> int:
    """Go on with a replay whose process ended before it did: nothing that was run again is run once more.

    A process counts as gone 30 s after its last word, or at once if it ran on this machine and is not there any more.

    Exit codes as of `dueline replay`; 3 if there is none of this id, 4 if it has ended or goes on elsewhere, or if an
    era began since: the topics of a restored installation do not hold its runs.
    """
    from pipeline.survey import check_kept

    with named_as_options(), desk() as here:
        found = here.replays.resumable(id_, force=force)
        try:
            gone = check_kept(here.ground, found.window, found.wanted, here.now())
        except InvalidInput as error:
            raise Refused(f"replay {id_}: {error.problem}") from error
        _tell_untold(here, found.window, gone)
        with _chosen(here, found.window, found.wanted) as chosen:
            mine = here.replays.resumed(id_, rate=rate, force=force)
            return _carry_out(here, mine, chosen, gone)


class Request(NamedTuple):
    """What the options say, before the store was asked for anything. Times are epoch ms."""

    from_ms: int | None
    to_ms: int | None
    bucket_ms: int | None
    wanted: Filter
    rate: float | None
    beside: bool


def _request(
    *,
    from_: str | None,
    to: str | None,
    bucket: str | None,
    only: str,
    rate: float | None,
    force: bool,
    beside: bool,
    **named: Any,
) -> Request:
    """InvalidInput and UsageError name the option."""
    from pipeline.replay.chosen import REPLAYABLE
    from pipeline.survey import State, in_order

    if only == "all" and not force:
        raise InvalidInput("--only", "all would run again what succeeded: add --force if that is meant")
    if (from_ is None) == (bucket is None) or (bucket is not None and to is not None):
        raise click.UsageError("give --from, and --to if it is not now; or --bucket")
    words = (("--from", from_), ("--to", to), ("--bucket", bucket))
    begin, end, in_bucket = (None if text is None else parse_instant(name, text) for name, text in words)
    in_order(begin, end)
    outcomes = REPLAYABLE if only == "all" else frozenset({State(only)})
    return Request(begin, end, in_bucket, replace(wanted(**named), outcomes=outcomes), rate, beside)


def _asked(here: Desk, request: Request) -> Asked:
    from pipeline.replay import Asked

    queue, queues = request.wanted.queue, here.connection.layout.queues
    if queue is not None and queue not in queues:
        raise InvalidInput("--queue", f"{queue!r} is unknown: there are {', '.join(sorted(queues))}")
    return Asked(
        window=_window(here, request),
        wanted=request.wanted,
        requested_by=f"{getpass.getuser()}@{socket.gethostname()}",
        rate=request.rate,
        beside=request.beside,
    )


def _window(here: Desk, request: Request) -> Window:
    from pipeline.survey import window

    now = here.now()
    if request.bucket_ms is None:
        assert request.from_ms is not None, "one of both is there"
        return window(request.from_ms, request.to_ms, now)
    width = here.connection.layout.bucket_width_ms
    begin = here.connection.layout.bucket(request.bucket_ms) * width
    return window(begin, min(begin + width, now) if begin < now else None, now)


@contextmanager
def _chosen(here: Desk, window: Window, wanted: Filter) -> Iterator[Chosen]:
    from pipeline.cli.replay_bars import reading
    from pipeline.replay import choose

    with reading() as tell:
        chosen = choose(here.ground, window, wanted, tell)
    with chosen:
        tell_newer(here.ground)
        yield chosen


def _replay(here: Desk, asked: Asked, *, dry_run: bool, yes: bool) -> int:
    from pipeline.survey import check_kept

    gone = check_kept(here.ground, asked.window, asked.wanted, here.now())
    _tell_untold(here, asked.window, gone)
    unfinished = None if dry_run else here.replays.unfinished(asked)
    if unfinished is not None:
        here.replays.resumable(unfinished.id)  # before a survey that may take a while
    with _chosen(here, asked.window, asked.wanted) as chosen:
        matched = chosen.tally.matched
        if not chosen.tally.states:
            note(_nothing(asked.window, asked.wanted))
        if unfinished is not None:
            mine = here.replays.resumed(unfinished.id, rate=asked.rate)
            note(f"going on with replay {mine.id}, which asked for the same")
            return _carry_out(here, mine, chosen, gone)
        if dry_run or not matched:
            emit(_counted(asked, chosen, gone, dry_run=dry_run), _text)
            return 0
        if matched > MANY and not yes:
            raise Refused(
                f"{matched} occurrences are more than {MANY}: look with --dry-run, and add --yes if they are meant"
            )
        return _carry_out(here, here.replays.begin(asked, matched), chosen, gone)


def _tell_untold(here: Desk, window: Window, gone: int | None) -> None:
    """What of the window the topics cannot tell."""
    from pipeline.survey import origin

    if gone is not None:
        note(f"what was due before {format_instant(gone)} may be gone from the store: it is not counted")
    came = origin(here.ground, window)
    if came.restored_at is not None and came.restored_at > window.from_ms:
        note(
            f"the store was restored at {format_instant(came.restored_at)}: what fired before is on no topic of it"
        )
    elif came.began_at is not None:
        note(f"the store began at {format_instant(came.began_at)}: nothing is known of before")


def _nothing(window: Window, wanted: Filter) -> str:
    """That nothing at all was found, whatever its outcome: a name may be misspelt, or the window be another one."""
    from pipeline.replay.shown import NAMED

    told = [f"{name} {value}" for name in NAMED if (value := getattr(wanted, name)) is not None]
    told += [f"label {name}={value}" for name, value in wanted.labels.items()]
    return (
        f"nothing{' of ' if told else ''}{', '.join(told).replace('_', ' ')} that was due from"
        f" {format_instant(window.from_ms)} to {format_instant(window.to_ms)} has fired: see `dueline outage`"
    )


def _carry_out(here: Desk, mine: Replay, chosen: Chosen, gone: int | None) -> int:
    from pipeline.cli.replay_bars import replaying
    from pipeline.replay import ReplayState

    # A polite stop takes the same way out as Ctrl-C: how far it is is noted, and it can be resumed at once.
    interrupt.stoppable()
    began = time.monotonic()
    try:
        note(f"replay {mine.id} of {mine.matched} occurrences")
        with replaying(mine) as tell:
            done = here.replays.carry_out(mine, chosen, tell, gone=gone is not None)
    except BaseException:
        if not interrupt.came():
            raise
        here.replays.leave(mine)  # it may have come before the replay had begun
        note(f"interrupted: go on with `dueline replay resume {mine.id}`")
        raise KeyboardInterrupt from None
    elapsed = time.monotonic() - began
    cancelled = done.state is ReplayState.CANCELLED
    if done.reason:
        note(done.reason if cancelled else f"the first that was refused: {done.reason}")
    emit(_counted_replay(done, chosen, gone, elapsed), _text)
    return 4 if cancelled or done.counts.get("refused") or done.counts.get("missing") else 0


def _counted(asked: Asked, chosen: Chosen, gone: int | None, *, dry_run: bool) -> dict[str, Any]:
    """The answer of a dry run, and where there is nothing to do."""
    from pipeline.replay.shown import asked_of

    estimate = None if asked.rate is None else round(chosen.tally.matched / asked.rate, 3)
    return {
        "dry_run": dry_run,
        "id": None,
        "state": None,
        **asked_of(asked.window, asked.wanted),
        **_tallied(chosen, gone),
        "rate": asked.rate,
        "estimated_seconds": estimate,
        "counts": None,
        "resumed": None,
        "elapsed_seconds": None,
    }


def _counted_replay(done: Replay, chosen: Chosen, gone: int | None, elapsed: float) -> dict[str, Any]:
    from pipeline.replay.shown import OUTCOMES, asked_of

    return {
        "dry_run": False,
        "id": done.id,
        "state": done.state.value,
        **asked_of(done.window, done.wanted),
        **_tallied(chosen, gone),
        "matched": done.matched,
        "rate": done.rate,
        "estimated_seconds": None,
        "counts": {name: done.counts.get(name, 0) for name in OUTCOMES},
        "resumed": done.resumed,
        "elapsed_seconds": round(elapsed, 3),
    }


def _tallied(chosen: Chosen, gone: int | None) -> dict[str, Any]:
    tally = chosen.tally
    return {
        **tally.view(),
        "matched": tally.matched,
        "waiting": tally.waiting,
        "key_taken": tally.key_taken,
        "gone_until": None if gone is None else format_instant(gone),
    }


def _text(view: Mapping[str, Any]) -> str:
    return _text_of_replay(view) if view["counts"] is not None else _text_of_dry_run(view)


def _text_of_dry_run(view: Mapping[str, Any]) -> str:
    lines = [outcome_lines(view["handlers"])] if view["handlers"] else []
    would = "would be" if view["dry_run"] else "to be"
    fired = sum(view["outcomes"].values())
    lines.append(
        f"{view['matched']} of {fired} {would} replayed (only {only_of(view)}), {view['waiting']} wait for a worker"
    )
    if view["key_taken"]:
        lines.append(f"{view['key_taken']} are left alone: their key had another job since")
    if view["estimated_seconds"] is not None:
        lines.append(f"in about {view['estimated_seconds']:,.0f} s at {view['rate']:g} a second")
    return "\n".join(lines)


def _text_of_replay(view: Mapping[str, Any]) -> str:
    counts = view["counts"]
    others = "".join(f", {count} {name}" for name, count in counts.items() if count and name != "replayed")
    took = f"in {view['elapsed_seconds']:,.1f} s"
    if view["resumed"]:
        took = f"in all, the last {view['elapsed_seconds']:,.1f} s after it was resumed"
    return f"{view['state']} {view['id']}: {counts['replayed']} of {view['matched']} replayed{others} {took}"
