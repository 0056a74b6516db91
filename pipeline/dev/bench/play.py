"""Runs the shapes that were asked for and puts the report together (schemas/cli/bench.json)."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.dev.bench import (
    commands,
    crew,
    faults,
    lateness,
    plot,
    readmodel,
    replay,
    schedules,
    server,
    starts,
    throughput,
    workers,
)
from pipeline.dev.bench.bare import COMPRESSION, bare, records
from pipeline.dev.bench.figures import Figure, missed
from pipeline.dev.bench.load import PAYLOAD_BYTES
from pipeline.dev.bench.site import Store, Tell, opened, site
from pipeline.dev.bench.throughput import Context

LOOP = 1_000_000
RATE = 1_000
WARM_JOBS = 50_000
WARM_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured. Counts of jobs, and of schedules that fire once a minute and every second; `seconds` of
    steady emission, `minutes` of schedules."""

    jobs: int
    drains: tuple[int, ...]
    pending: int
    overdue: int
    on_disk: int
    waiting: int
    minutely: int
    secondly: int
    rates: tuple[int, ...] = (RATE, 10_000)
    seconds: float = 10.0
    minutes: int = 1

    def sized(self, jobs: int) -> Scale:
        """The same shapes over so many jobs, in proportion; a drain needs at least a batch for each partition."""
        share = jobs / self.jobs
        return replace(
            self,
            jobs=jobs,
            drains=tuple(max(4, int(drain * share) // 4 * 4) for drain in self.drains),
            pending=max(1, int(self.pending * share)),
            overdue=max(1, int(self.overdue * share)),
            on_disk=max(1, int(self.on_disk * share)),
            waiting=max(1, int(self.waiting * share)),
            minutely=max(60, int(self.minutely * share)),
            secondly=max(10, int(self.secondly * share)),
            rates=tuple(dict.fromkeys(max(1, min(rate, jobs // 10)) for rate in self.rates)),
            seconds=min(self.seconds, max(1.0, jobs / 10_000)),
        )


SCALES: Mapping[str, Scale] = {
    "small": Scale(
        jobs=100_000,
        drains=(100_000,),
        pending=100_000,
        overdue=50_000,
        on_disk=500_000,
        waiting=100_000,
        minutely=10_000,
        secondly=200,
        seconds=5.0,
    ),
    "full": Scale(
        jobs=1_000_000,
        drains=(100_000, 1_000_000),
        pending=1_000_000,
        overdue=500_000,
        on_disk=10_000_000,
        waiting=1_000_000,
        minutely=100_000,
        secondly=1_000,
        seconds=20.0,
        minutes=4,
    ),
}


@dataclass(slots=True)
class Plots:
    """What the shapes leave for the plot: lateness values (ms) and drains (s, records) by name."""

    lateness: dict[str, list[float]] = field(default_factory=dict)
    drains: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


MINUTE_S = 60

Shape = Callable[[Context, Scale, Plots], list[Figure]]


def _drain(context: Context, scale: Scale, plots: Plots) -> list[Figure]:
    return [figure for count in scale.drains for figure in throughput.drain(context, count, plots.drains)]


def _schedules(context: Context, scale: Scale, plots: Plots) -> list[Figure]:
    figures = schedules.minutely(context, scale.minutely, scale.minutes, plots.lateness)
    seconds = (scale.minutes + 1) * MINUTE_S
    return figures + schedules.through_restarts(context, scale.secondly, seconds, plots.lateness)


SHAPES: Mapping[str, Shape] = {
    "create": lambda c, s, p: throughput.create_and_index(c, s.jobs),
    "drain": _drain,
    "lateness": lambda c, s, p: lateness.on_time(c, s.pending, s.rates, s.seconds, p.lateness),
    "catch-up": lambda c, s, p: lateness.catch_up(c, s.overdue, s.rates[0], s.seconds, p.lateness),
    "restart": lambda c, s, p: faults.restart(c, s.pending),
    "takeover": lambda c, s, p: faults.takeover(c, p.lateness),
    "commands": lambda c, s, p: commands.answers(c, s.drains[0], p.lateness),
    "cancelled": lambda c, s, p: commands.cancelled(c, s.drains[0]),
    "replay": lambda c, s, p: replay.replays(c, s.drains[-1]),
    "schedules": _schedules,
    "readmodel": lambda c, s, p: readmodel.answers(c, s.jobs),
    "server": lambda c, s, p: server.answers(c, s.pending, s.secondly, s.jobs),
    "worker": lambda c, s, p: workers.throughput(c, s.drains[0]),
    "instant": lambda c, s, p: starts.instant(c, s.drains[0]),
    "start-latency": lambda c, s, p: starts.latency(c, s.rates[0], s.seconds, p.lateness),
    "worker-kill": lambda c, s, p: crew.changes(c, s.jobs),
    "worker-memory": lambda c, s, p: workers.memory(c, s.waiting),
    "disk": lambda c, s, p: lateness.grown(c, s.pending, s.on_disk, s.rates[0], s.seconds),
}
"""In this order. `create` measures the index too, `commands` cancel and reschedule."""
USUAL = tuple(name for name in SHAPES if name != "disk")
"""Without being asked for: the one that needs gigabytes and a quarter of an hour is not."""


def bench(
    scale: Scale, shapes: Sequence[str], *, told: str | None, tell: Tell, plot_file: Path | None
) -> dict[str, Any]:
    """Measure and report. Raises what the parts raise: StoreUnreachable, DuelineError with a process's last words.
    Nothing is left behind but the plot."""
    began = time.monotonic()
    plots, figures, elapsed = Plots(), list[Figure](), dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="dueline-bench-") as name:
        directory = Path(name)
        with opened(told, directory, tell) as store:
            context = Context(store, directory, tell)
            warm_up(context, scale)
            for shape in [shape for shape in SHAPES if shape in shapes]:
                started = time.monotonic()
                figures += SHAPES[shape](context, scale, plots)
                elapsed[shape] = round((time.monotonic() - started) * 1000)
    if plot_file is not None:
        plot_file.write_text(plot.document(plots.lateness, plots.drains))
    return report(store, figures, elapsed, plot_file, round((time.monotonic() - began) * 1000))


def warm_up(context: Context, scale: Scale) -> None:
    """A broker that has just started compiles its own code beside whatever is measured first."""
    count = min(scale.jobs, WARM_JOBS) // 4 * 4
    with site(context.store, context.directory) as here:
        with bare(
            here.settings,
            here.directory,
            records(count, 0),
            used=here.layout.shards,
            partitions=here.layout.partitions,
            work=here.work_partitions,
        ) as loops:
            rates = loops.create(), loops.index(), loops.drain()
        lateness.emitted(here, scale.rates[0], min(scale.seconds, WARM_S))
    context.tell(f"warmed up: {' / '.join(f'{rate:,.0f}' for rate in rates)} records/s")


def report(
    store: Store, figures: Sequence[Figure], elapsed: Mapping[str, int], plot_file: Path | None, total_ms: int
) -> dict[str, Any]:
    return {
        "store": {"kind": store.kind, "bootstrap": store.bootstrap},
        "machine": machine(),
        "conditions": {"payload_bytes": PAYLOAD_BYTES, "compression": COMPRESSION},
        "figures": [figure.described() for figure in figures],
        "missed": len(missed(figures)),
        "plot": None if plot_file is None else str(plot_file),
        "elapsed_ms": {**elapsed, "total": total_ms},
    }


def machine() -> dict[str, Any]:
    """What a figure depends on beside the code. `loop_ns`: one turn of an empty Python loop, for comparing."""
    return {
        "cpus": os.cpu_count() or 1,
        "python": platform.python_version(),
        "version": __version__,
        "loop_ns": loop_ns(),
    }


def loop_ns() -> float:
    began = time.perf_counter_ns()
    for _ in range(LOOP):
        pass
    return round((time.perf_counter_ns() - began) / LOOP, 2)
