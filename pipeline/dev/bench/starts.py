"""Shapes that measure when handlers begin: after a job is emitted, after it is due, and all jobs of one instant."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipeline.core.errors import DuelineError
from pipeline.dev.bench.bare import Bare, Emitter, records
from pipeline.dev.bench.bare_worker import bare_process
from pipeline.dev.bench.burst import accounted
from pipeline.dev.bench.figures import Figure, Spread, Target, at_most, spread
from pipeline.dev.bench.lateness import GRACE_S, SETTLE_MS
from pipeline.dev.bench.load import steady
from pipeline.dev.bench.marks import Mark, MarkReader
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import (
    LEAD_MS,
    PATIENCE_S,
    ROUNDS,
    SLACK,
    Context,
    check_time,
    pace_ms,
    patiently,
)
from pipeline.dev.bench.workers import CONCURRENCY

IDLE_JOBS = 200
"""One after the other: the handler of each has begun before the next is created."""
IDLE_RATE, IDLE_S = 20, 5.0
"""Of the bare loop: each record is done long before the next."""
INSTANT_JOBS, INSTANT_MS = 100_000, 3_000
PAUSE_S = 0.002

Owners = Callable[[], None]
"""Raises if a process of the site has ended."""


class Measured(NamedTuple):
    """ms until each handler began, of the product and of the bare loops."""

    ours: list[float]
    bare: list[float]

    def __str__(self) -> str:
        return f"{_told(spread(self.ours))}; bare: {_told(spread(self.bare))}"


def latency(context: Context, rate: int, seconds: float, plots: dict[str, list[float]]) -> list[Figure]:
    """From the LogAppendTime of the work record until its handler begins, with nothing else to do; then from due, at
    `rate` jobs a second. Beside them transactions on time, and a bare worker process."""
    with site(context.store, context.directory) as here:
        idle, due = _latencies(here, rate, seconds)
    figures = []
    for name, found, p50, p99 in (
        ("emit to handler start, idle", idle, 10, 40),
        (f"due to handler start at {rate:,}/s", due, 25, 80),
    ):
        context.tell(f"{name}: {found}")
        plots[name], plots[f"bare, {name}"] = found.ours, found.bare
        figures += _figures(name, found, p50, p99)
    return figures


def _latencies(here: Site, rate: int, seconds: float) -> tuple[Measured, Measured]:
    """DuelineError if a job was lost or started twice."""
    owners, marks, ids = _staffed(here), here.marks(), list[str]()
    idle = due = Measured([], [])
    for n in range(ROUNDS):
        bare_idle = _of_bare(here, f"idle-{n}", IDLE_RATE, IDLE_S)
        first = len(marks.marks)
        for _ in range(IDLE_JOBS):
            ids += here.create([here.now()])
            marks.wait(len(ids), GRACE_S, owners, PAUSE_S)
        idle = Measured(_since_emitted(here, marks.marks[first:]), _since_emitted(here, bare_idle))
        bare_due = _of_bare(here, f"due-{n}", rate, seconds)
        first = len(marks.marks)
        ids += _steadily(here, rate, seconds)
        marks.wait(len(ids), seconds + PATIENCE_S, owners)
        due = Measured(_since_due(here, marks.marks[first:]), _since_due(here, bare_due))
    here.end()
    _check(here, ids, marks)
    return idle, due


def _staffed(here: Site) -> Owners:
    """A dispatcher and a worker process, which run all partitions."""
    dispatcher, worker = here.dispatcher(), here.worker(concurrency=CONCURRENCY)
    dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
    worker.wait_running(here.work_partitions, PATIENCE_S)

    def check() -> None:
        dispatcher.check()
        worker.check()

    return check


def _steadily(here: Site, rate: int, seconds: float) -> list[str]:
    """The ids of so many jobs a second for so long, all created before the first is due."""
    ahead_ms = SETTLE_MS + int(rate * seconds * pace_ms(here) * SLACK)
    start = here.now() + ahead_ms
    ids = here.create(steady(start, rate, seconds))
    check_time(here, start)
    return ids


def _of_bare(here: Site, name: str, rate: int, seconds: float) -> list[Mark]:
    emitter = Emitter(here.settings, here.layout.shards, here.layout.partitions, here.work_partitions)
    directory = here.directory / f"bare-{name}"
    directory.mkdir()
    marks = MarkReader(directory)
    try:
        with bare_process(here.settings, emitter.topic, here.work_partitions, directory):
            dues = list(steady(here.now() + SETTLE_MS // 4, rate, seconds))
            emitter.emit(dues, here.now)
            marks.wait(len(dues), GRACE_S, _nobody)
    finally:
        emitter.close()
    return marks.marks


def _nobody() -> None:
    """A bare worker that ends is told of by its marks, which do not come."""


def _check(here: Site, ids: Sequence[str], marks: MarkReader) -> None:
    """DuelineError if a job was lost, ended twice or began twice."""
    accounted(here, ids)
    if marks.count() != len(ids):
        raise DuelineError(f"{len(marks.marks)} handlers began for {len(ids)} jobs")


def _since_emitted(here: Site, marks: Sequence[Mark]) -> list[float]:
    return [mark.since_emitted(here.store_ahead) for mark in marks]


def _since_due(here: Site, marks: Sequence[Mark]) -> list[float]:
    return [mark.since_due(here.store_ahead) for mark in marks]


def _told(found: Spread) -> str:
    return f"p50 {found.p50:.1f} ms, p99 {found.p99:.1f} ms"


def _figures(name: str, found: Measured, p50: int, p99: int) -> list[Figure]:
    ours, bare = spread(found.ours), spread(found.bare)
    return [
        _figure(f"{name}, p50", ours.p50, bare.p50, at_most(p50), ours),
        _figure(f"{name}, p99", ours.p99, bare.p99, at_most(p99), ours),
    ]


def _figure(name: str, value: float, bare: float, target: Target, found: Spread) -> Figure:
    return Figure(
        shape="start-latency",
        name=name,
        value=value,
        unit="ms",
        bare=bare,
        target=target,
        detail=found.described(),
    )


# -- all of one instant --------------------------------------------------------------------------------------


def instant(context: Context, count: int) -> list[Figure]:
    """All due at one instant, one dispatcher and one worker process: until the last handler is called."""
    ours, bare = list[float](), list[float]()
    for _ in range(ROUNDS):
        with site(context.store, context.directory) as here:
            bare = _bare_instant(here, count)
        ours = patiently(context, lambda here, slack: _instant(here, count, slack))
        context.tell(
            f"instant of {count:,}: last handler after {max(ours):,.0f} ms, bare {max(bare):,.0f} ms"
        )
    return [
        Figure(
            shape="instant",
            name=f"{count:,} due at one instant, last handler call",
            value=max(ours),
            unit="ms",
            bare=max(bare),
            target=at_most(INSTANT_MS) if count >= INSTANT_JOBS else None,
            detail=spread(ours).described(),
        )
    ]


def _instant(here: Site, count: int, slack: float) -> list[float]:
    """ms from the instant to each handler call. DuelineError if a job was lost or started twice."""
    ahead_ms = LEAD_MS + int(count * pace_ms(here) * slack)
    due = here.now() + ahead_ms
    marks, ids = here.marks(), here.create(due for _ in range(count))
    owners = _staffed(here)
    check_time(here, due)
    time.sleep(max(0, due - here.now()) / 1000)
    marks.wait(count, PATIENCE_S, owners)
    here.end()
    _check(here, ids, marks)
    return _since_due(here, marks.marks)


def _bare_instant(here: Site, count: int) -> list[float]:
    """The bare drain in this process, and a bare worker in another: started records, one submit a run, acks."""
    directory = here.directory / "bare-instant"
    directory.mkdir()
    marks = MarkReader(directory)
    loops = _Begun(
        here.settings,
        here.directory,
        records(count, 0),
        here.layout.shards,
        here.layout.partitions,
        here.work_partitions,
    )
    try:
        loops.create()
        loops.index()
        with bare_process(here.settings, loops.topic, here.work_partitions, directory):
            loops.drain()
            marks.wait(count, GRACE_S, _nobody)
    finally:
        loops.close()
    return [(mark.began - loops.began) / 1e6 for mark in marks.marks]


class _Begun(Bare):
    """Says where its work goes, and when the first transaction of its drain began (epoch ns)."""

    began = 0

    @property
    def topic(self) -> str:
        return self._work

    def _transaction(self, *parts: Any) -> int:
        self.began = self.began or time.time_ns()
        return super()._transaction(*parts)
