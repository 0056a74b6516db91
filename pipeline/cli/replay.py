"""`dueline replay`: running again what failed, died or was lost in a window of due time."""

from __future__ import annotations

import getpass
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.job_input import named_as_options
from pipeline.cli.output import emit, note
from pipeline.cli.replay_show import OUTCOMES, asked_of, cancel, list_, outcome_lines, show
from pipeline.cli.window import filtered, wanted
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
    from pipeline.client import parts
    from pipeline.client.connection import Connection
    from pipeline.config import load_settings
    from pipeline.replay import Replays
    from pipeline.survey import Ground

    settings = load_settings()
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
@click.option("--rate", type=click.FloatRange(0.01), metavar="N", help="At most N a second.")
@click.option("--dry-run", is_flag=True, help="Only count what would run.")
@click.option("--yes", is_flag=True, help=f"Though it may be more than {MANY:,}.")
@click.option("--force", is_flag=True, help="Run succeeded ones too with --only all; beside another replay.")
@click.pass_context
def replay(ctx: click.Context, /, **options: Any) -> int | None:
    """Run again what failed, died or was lost in a window of due time.

    Each occurrence gets one further run under its own idempotency key, made by the owner of its job: one that
    somebody requeued, or that was acked, since it was looked for is left alone. Runs that workers have still before
    them are counted as waiting, and never replayed. Jobs on time go first; --rate holds the replay back further.

    \b
      dueline replay --from 2026-11-30T02:00:00Z --to 2026-11-30T03:30:00Z --dry-run
      dueline replay --from 2026-11-30T02:00:00Z --to 2026-11-30T03:30:00Z --only dead --handler email.send

    A replay has an id, and what is asked for again, or resumed by its id, goes on where it was interrupted. More than
    1,000 occurrences are refused without --yes (exit code 4), and so is a window that another unfinished replay may
    share; some that no owner took: 4 too. No owner answers: 1, with what was asked for stored.
    """
    if ctx.invoked_subcommand is not None:
        if any(value not in (None, False, (), "failed") for value in options.values()):
            raise click.UsageError(f"options of a replay do not go with `replay {ctx.invoked_subcommand}`")
        return None
    with named_as_options(), desk() as here:
        asked = _asked(here, **{name: options[name] for name in _ASKED})
        return _replay(here, asked, dry_run=options["dry_run"], yes=options["yes"])


_ASKED = (
    "from_", "to", "bucket", "handler", "schedule", "queue", "labels", "key_prefix", "only", "rate", "force",
)  # fmt: skip

replay.add_command(list_)
replay.add_command(show)
replay.add_command(cancel)


@replay.command("resume", short_help="Go on with one that was interrupted.")
@click.argument("id_", metavar="ID")
@click.option("--rate", type=click.FloatRange(0.01), metavar="N", help="At most N a second from now on.")
@click.option("--force", is_flag=True, help="Though another process seems to carry it out.")
def resume(id_: str, rate: float | None, force: bool) -> int:
    """Go on with a replay whose process ended before it did: nothing that was run again is run once more.

    Exit codes as of `dueline replay`; 3 if there is none of this id, 4 if it has ended or goes on elsewhere.
    """
    with named_as_options(), desk() as here:
        found = here.replays.get(id_)
        mine = here.replays.resumed(found, rate=rate, force=force)
        with _chosen(here, mine.window, mine.wanted) as chosen:
            return _carry_out(here, mine, chosen, None)


def _asked(
    here: Desk,
    *,
    from_: str | None,
    to: str | None,
    bucket: str | None,
    only: str,
    rate: float | None,
    force: bool,
    **named: Any,
) -> Asked:
    from pipeline.replay import Asked
    from pipeline.replay.chosen import REPLAYABLE
    from pipeline.survey import State

    if only == "all" and not force:
        raise InvalidInput("--only", "all would run again what succeeded: add --force if that is meant")
    queue, queues = named["queue"], here.connection.layout.queues
    if queue is not None and queue not in queues:
        raise InvalidInput("--queue", f"{queue!r} is unknown: there are {', '.join(sorted(queues))}")
    return Asked(
        window=_window(here, from_, to, bucket),
        wanted=replace(wanted(**named), outcomes=REPLAYABLE if only == "all" else frozenset({State(only)})),
        requested_by=f"{getpass.getuser()}@{socket.gethostname()}",
        rate=rate,
        force=force,
    )


def _window(here: Desk, from_: str | None, to: str | None, bucket: str | None) -> Window:
    from pipeline.survey import window

    if (from_ is None) == (bucket is None) or (bucket is not None and to is not None):
        raise click.UsageError("give --from, and --to if it is not now; or --bucket")
    if bucket is None:
        return window(
            parse_instant("--from", from_), None if to is None else parse_instant("--to", to), here.now()
        )
    width = here.connection.layout.bucket_width_ms
    begin = here.connection.layout.bucket(parse_instant("--bucket", bucket)) * width
    return window(begin, min(begin + width, here.now()) if begin < here.now() else None, here.now())


@contextmanager
def _chosen(here: Desk, window: Window, wanted: Filter) -> Iterator[Chosen]:
    from pipeline.cli.replay_bars import reading
    from pipeline.replay import choose

    with reading() as tell:
        chosen = choose(here.ground, window, wanted, tell)
    with chosen:
        yield chosen


def _replay(here: Desk, asked: Asked, *, dry_run: bool, yes: bool) -> int:
    from pipeline.survey import check_kept

    gone = check_kept(here.ground, asked.window, asked.wanted, here.now())
    if gone is not None:
        note(f"what was due before {format_instant(gone)} may be gone from the store: it is not counted")
    with _chosen(here, asked.window, asked.wanted) as chosen:
        matched = chosen.tally.matched
        unfinished = None if asked.force or dry_run else here.replays.unfinished(asked)
        if unfinished is not None:
            note(f"going on with replay {unfinished.id}, which asked for the same")
            return _carry_out(here, here.replays.resumed(unfinished, rate=asked.rate), chosen, gone)
        if dry_run or not matched:
            emit(_counted(asked, chosen, gone, dry_run=dry_run), _text)
            return 0
        if matched > MANY and not yes:
            raise Refused(
                f"{matched} occurrences are more than {MANY}: look with --dry-run, and add --yes if they are meant"
            )
        return _carry_out(here, here.replays.begin(asked, matched), chosen, gone)


def _carry_out(here: Desk, mine: Replay, chosen: Chosen, gone: int | None) -> int:
    from pipeline.cli.replay_bars import replaying

    # A polite stop takes the same way out as Ctrl-C: how far it is is noted, and it can be resumed at once.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        note(f"replay {mine.id} of {mine.matched} occurrences")
        with replaying(mine) as tell:
            done = here.replays.carry_out(mine, chosen, tell)
    except KeyboardInterrupt:
        here.replays.leave(mine.id)  # it may have come before the replay had begun
        note(f"interrupted: go on with `dueline replay resume {mine.id}`")
        raise
    elapsed = time.monotonic() - began
    if done.reason:
        note(f"the first that was refused: {done.reason}")
    emit(_counted_replay(done, chosen, gone, elapsed), _text)
    return 4 if done.counts.get("refused") else 0


def _counted(asked: Asked, chosen: Chosen, gone: int | None, *, dry_run: bool) -> dict[str, Any]:
    """The answer of a dry run, and where there is nothing to do."""
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
        "elapsed_seconds": None,
    }


def _counted_replay(done: Replay, chosen: Chosen, gone: int | None, elapsed: float) -> dict[str, Any]:
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
        "elapsed_seconds": round(elapsed, 3),
    }


def _tallied(chosen: Chosen, gone: int | None) -> dict[str, Any]:
    tally = chosen.tally
    return {
        **tally.view(),
        "matched": tally.matched,
        "waiting": tally.waiting,
        "gone_until": None if gone is None else format_instant(gone),
    }


def _text(view: Mapping[str, Any]) -> str:
    lines = [outcome_lines(view["handlers"])] if view["handlers"] else []
    if view["counts"] is None:
        would = "would be" if view["dry_run"] else "to be"
        lines.append(f"{view['matched']} {would} replayed, {view['waiting']} wait for a worker")
        if view["estimated_seconds"] is not None:
            lines.append(f"in about {view['estimated_seconds']:,.0f} s at {view['rate']:g} a second")
    else:
        others = (
            f", {count} {name}" for name, count in view["counts"].items() if count and name != "replayed"
        )
        lines.append(
            f"{view['state']} {view['id']}: {view['counts']['replayed']} of {view['matched']} replayed"
            f"{''.join(others)} in {view['elapsed_seconds']:,.1f} s"
        )
    return "\n".join(lines)
