"""`dueline bench`: what it does on this machine, each figure beside a bare loop of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli import interrupt
from pipeline.cli.output import emit, note, table


@click.command()
@click.option(
    "--scale",
    type=click.Choice(["small", "full"]),
    default="small",
    show_default=True,
    help="small: 100,000 jobs, some minutes; full: a million, most of an hour.",
)
@click.option("-n", "--jobs", type=click.IntRange(min=1_000), help="So many jobs instead, all in proportion.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--store", metavar="HOST:PORT", help="Use this Kafka instead of a running or embedded one.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write lateness distributions and drains over time there, as SVG.",
)
def bench(scale: str, jobs: int | None, shapes: tuple[str, ...], store: str | None, plot: Path | None) -> int:
    """Measure the product on this machine, each figure beside a bare loop.

    A bare loop does what the parts alone can do: same broker, records, partitions and compression, and no
    promise kept. Every loop runs twice and the second one counts. Exit code 1 if a target was missed.

    \b
    Shapes: create (and index), drain, lateness, catch-up, restart, takeover, commands, cancelled, replay;
    schedules; readmodel, server; worker, instant, start-latency, worker-kill, worker-memory; disk only when asked for.
    """
    from pipeline.dev.bench import play

    unknown = [name for name in shapes if name not in play.SHAPES]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(play.SHAPES)}", param_hint="--shape")
    # A polite stop takes the same way out as Ctrl-C: the processes end, the topics go.
    interrupt.stoppable()
    wanted = play.SCALES[scale] if jobs is None else play.SCALES[scale].sized(jobs)
    found = play.bench(wanted, shapes or play.USUAL, told=store, tell=note, plot_file=plot)
    emit(found, _text)
    return 1 if found["missed"] else 0


def _text(found: dict[str, Any]) -> str:
    from pipeline.dev.bench.figures import COLUMNS, rows

    machine, missed = found["machine"], found["missed"]
    lines = [
        table(COLUMNS, rows(found["figures"])),
        "",
        f"on {machine['cpus']} cores shared with the store, Python {machine['python']},"
        f" {machine['loop_ns']} ns a turn of an empty loop",
        f"{missed} targets missed" if missed else "all targets reached",
    ]
    if found["plot"]:
        lines.append(f"plot: {found['plot']}")
    return "\n".join(lines)
