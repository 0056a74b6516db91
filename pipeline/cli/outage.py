"""`dueline outage`: what came due in a window, and what became of it."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.output import emit, note, table
from pipeline.cli.window import Scene, came_view, filtered, surveying, tell_newer, wanted
from pipeline.core.errors import InvalidInput, NotFound
from pipeline.core.times import parse_duration, parse_instant
from pipeline.follower import shown_instant

if TYPE_CHECKING:
    from pipeline.survey import Filter

STATES = (
    *("succeeded", "dead", "cancelled", "unacked", "waiting", "running", "retrying", "unreadable"),
    "pending",
)
"""Counted as they are; `failed` and `skipped` beside them."""
COLUMNS = (
    *(
        "from",
        "due",
        "on_time",
        "late",
        "emit_delay_p50",
        "emit_delay_p99",
        "emit_delay_max",
        "pending",
        "skipped",
    ),
    *("succeeded", "failed", "dead", "cancelled", "unacked", "waiting", "running", "retrying"),
    "unreadable",
)
_ALWAYS = (
    "from",
    "due",
    "on_time",
    "late",
    "emit_delay_max",
    "skipped",
    "failed",
    "dead",
    "unacked",
    "waiting",
)
"""Shown in a table even if they are zero throughout."""
PICTURES = (".svg", ".png")


@click.command("outage")
@click.option("--from", "from_", required=True, metavar="RFC3339", help="What was due then or later.")
@click.option("--to", metavar="RFC3339", help="What was due before then. Default: now.")
@click.option("--by", metavar="DURATION", help="Width of a bucket. Default: as gives at most 60.")
@filtered
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the buckets there as CSV too.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write a picture of them there: .svg or .png. Needs the extra `plot`.",
)  # fmt: skip
def outage(
    from_: str,
    to: str | None,
    by: str | None,
    handler: str | None,
    schedule: str | None,
    queue: str | None,
    labels: tuple[str, ...],
    key_prefix: str | None,
    csv_file: Path | None,
    plot: Path | None,
) -> None:
    """Count what came due in a window, by bucket of due time, and what became of it. Read from the topics as they
    are now; nothing is changed.

    \b
    due        occurrences: jobs, and instants of schedules
    on_time    fired within a second of their due time
    late       fired later: emit_delay_p50, _p99 and _max say how late
    pending    not fired yet
    skipped    left out by the policy of a schedule
    failed     gave up, or an attempt failed for good; dead ones are among them
    dead       gave up, or was buried unfired: `dueline dead list` has them
    unacked    handed to workers and passed by them, and nothing says how it ended
    waiting    fired, and a worker will take it
    running    a worker has it; retrying: it will run again

    What has fired stands under its last state too: due = succeeded + failed + cancelled + unacked + waiting +
    running + retrying + unreadable + pending + skipped.
    """
    if plot is not None:
        check_plot(plot)
    if csv_file is not None:
        check_writable("--csv", csv_file)
    if csv_file is not None and plot is not None and csv_file.resolve() == plot.resolve():
        raise InvalidInput("--plot", f"{plot.name} is the file of --csv")
    asked = None if by is None else parse_duration("--by", by)
    filter_ = wanted(handler, schedule, queue, labels, key_prefix)
    if asked is not None and to is not None:
        check_width(from_, to, asked)
    with surveying(from_, to, filter_) as scene:
        report = read_report(scene, filter_, asked)
        tell_newer(scene.ground)
        if not report["total"]["due"]:
            _tell_unknown(scene, filter_)
    if csv_file is not None:
        write_csv(csv_file, report["buckets"])
    if plot is not None:
        from pipeline.cli.outage_plot import draw

        draw(plot, report)
    emit(report, _text)


def check_width(from_: str, to: str, asked_ms: int) -> None:
    """InvalidInput naming the option if the window or its buckets make no sense, before the store is asked."""
    from pipeline.survey import Window, in_order
    from pipeline.survey.outage import width_of

    begin, end = parse_instant("--from", from_), parse_instant("--to", to)
    in_order(begin, end)
    width_of(Window(from_ms=begin, to_ms=end), asked_ms, asked_ms)


def check_plot(path: Path) -> None:
    """InvalidInput('--plot') if no picture can be made, before anything is read."""
    if path.suffix not in PICTURES:
        raise InvalidInput("--plot", f"{path.name} ends in neither .svg nor .png")
    if find_spec("matplotlib") is None:
        raise InvalidInput("--plot", "needs matplotlib: pip install 'dueline[plot]'")
    check_writable("--plot", path)


def check_writable(option: str, path: Path) -> None:
    """InvalidInput naming the option if no file can be written there, as far as can be told without writing one."""
    problem = None
    if path.is_dir():
        problem = "is a directory"
    elif not path.parent.is_dir():
        problem = "No such file or directory" if not path.parent.exists() else "Not a directory"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "Permission denied"
    if problem is not None:
        raise InvalidInput(option, f"cannot write {path}: {problem}")


def _tell_unknown(scene: Scene, filter_: Filter) -> None:
    """Nothing was found: say so if nobody knows a name that was asked for."""
    if filter_.handler is not None and filter_.handler not in scene.store.follower.live_handlers(scene.now):
        note(f"--handler: nothing of {filter_.handler} was due, and no live worker knows it")
    if filter_.schedule is not None:
        try:
            scene.store.follower.schedule(filter_.schedule)
        except NotFound:
            note(f"--schedule: nothing of {filter_.schedule} was due, and there is no schedule of this id")


def read_report(scene: Scene, filter_: Filter, asked_ms: int | None) -> dict[str, Any]:
    """The JSON of `dueline outage` (schemas/cli/outage.json)."""
    from pipeline.survey import survey
    from pipeline.survey.outage import ON_TIME_MS, count, width_of

    width = width_of(scene.window, asked_ms, scene.ground.layout.bucket_width_ms)
    lines, total = count(survey(scene.ground, scene.window, filter_), scene.window, width)
    return {
        "prefix": scene.ground.names.prefix,
        "at": shown_instant(scene.now),
        "from": shown_instant(scene.window.from_ms),
        "to": shown_instant(scene.window.to_ms),
        **came_view(scene),
        "by_ms": width,
        "on_time_ms": ON_TIME_MS,
        "newer_records": scene.ground.newer.total(),
        "total": tally_view(total),
        "buckets": [{"from": shown_instant(line.at), **tally_view(line.tally)} for line in lines],
    }


def tally_view(tally: Any) -> dict[str, Any]:
    late = tally.late
    return {
        "due": tally.due,
        "on_time": tally.on_time,
        "late": late.count,
        "emit_delay_ms": {"p50": late.within(50), "p99": late.within(99), "max": late.longest}
        if late.count
        else None,
        "skipped": tally.states["skipped"],
        "skips": dict(sorted(tally.skips.items())),
        "failed": tally.failed,
        **{state: tally.states[state] for state in STATES},
    }


# -- for people ---------------------------------------------------------------------------------------------


def flat(view: Mapping[str, Any]) -> dict[str, Any]:
    """A bucket as one row: how late in columns of their own."""
    late = view["emit_delay_ms"] or {}
    return {**view, **{f"emit_delay_{name}": late.get(name) for name in ("p50", "p99", "max")}}


def write_csv(path: Path, buckets: Sequence[Mapping[str, Any]]) -> None:
    """One row a bucket; times of lateness in ms. InvalidInput('--csv') if it cannot be written."""
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow((*COLUMNS, "skips"))
            for row in map(flat, buckets):
                writer.writerow((*(row[name] for name in COLUMNS), _reasons(row["skips"])))
    except OSError as error:
        raise InvalidInput("--csv", f"cannot write {path}: {error.strerror}") from error


def _text(report: Mapping[str, Any]) -> str:
    total = flat(report["total"])
    names = [name for name in COLUMNS if name in _ALWAYS or total[name]]
    shown = [row for row in map(flat, report["buckets"]) if row["due"]]
    rows = [[_cell(name, row[name]) for name in names] for row in (*shown, {**total, "from": "total"})]
    return "\n".join(
        (
            f"{report['prefix']} from {report['from']} to {report['to']}, by {_duration(report['by_ms'])} of due"
            f" time, as of {report['at']}:",
            table(names, rows) if shown else "nothing was due",
            *(f"skipped: {_reasons(total['skips'])}" for _ in range(bool(total["skips"]))),
        )
    )


def _cell(name: str, value: Any) -> Any:
    if name.startswith("emit_delay"):
        return None if value is None else _duration(value)
    return value


def _duration(ms: int) -> str:
    return f"{ms / 1000:.4g} s" if ms < 600_000 else f"{ms / 60_000:.4g} min"


def _reasons(skips: Mapping[str, int]) -> str:
    return " ".join(f"{reason}={number}" for reason, number in skips.items())
