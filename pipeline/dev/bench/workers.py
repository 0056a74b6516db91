"""Shapes that count runs a second: one worker process and what stands on its topic already, and its memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from pipeline.core.errors import DuelineError
from pipeline.dev.bench.bare import records
from pipeline.dev.bench.bare_worker import BareWorker, alone
from pipeline.dev.bench.burst import Burst
from pipeline.dev.bench.figures import Figure, at_most, per_second, ratio_at_least
from pipeline.dev.bench.handlers import NOTHING, NOTHING_ASYNC, SLEEP_S, SLEEPING
from pipeline.dev.bench.process import WorkerProcess
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, ROUNDS, Context

CONCURRENCY = 32
"""The default of the settings."""
ASYNC_CONCURRENCY = 100
ALONE = 20_000
RSS_MB, GROWTH = 300, 1.1
MEMORY_S = 60.0
"""A worker is watched for so long, or until it has run all."""
SAMPLE_S = 0.1


class Kind(NamedTuple):
    """A kind of handler, the bare loop it is compared with, and the share of that which must be reached."""

    name: str
    handler: str
    concurrency: int
    bare: Callable[[BareWorker], float]
    share: float


KINDS = (
    Kind("no-op def", NOTHING, CONCURRENCY, BareWorker.pool, 0.3),
    Kind("no-op async def", NOTHING_ASYNC, ASYNC_CONCURRENCY, BareWorker.asyncio, 0.3),
    Kind(
        f"async def of {SLEEP_S * 1000:g} ms, {ASYNC_CONCURRENCY} at once",
        SLEEPING,
        ASYNC_CONCURRENCY,
        lambda loops: loops.sleeping(ASYNC_CONCURRENCY, SLEEP_S),
        0.8,
    ),
)


def throughput(context: Context, count: int) -> list[Figure]:
    """Runs a second through one worker process, from its first partition running until the last ack is committed."""
    return [_of_kind(context, kind, count) for kind in KINDS]


def _of_kind(context: Context, kind: Kind, count: int) -> Figure:
    ours = bare = 0.0
    for _ in range(ROUNDS):
        with site(context.store, context.directory) as here:
            with closing(BareWorker(here.settings, records(count, 0), here.work_partitions)) as loops:
                loops.fill()
                bare = kind.bare(loops)
            ours = _worked(here, kind, count)
    context.tell(f"worker, {kind.name}: {ours:,.0f}/s of {bare:,.0f}")
    detail: dict[str, float] = {"runs": count, "concurrency": kind.concurrency}
    if kind.handler == SLEEPING:
        detail["event_loop_alone"] = alone(min(count, ALONE), kind.concurrency, SLEEP_S)
    return Figure(
        shape="worker",
        name=f"worker, {kind.name}",
        value=ours,
        unit="runs/s",
        bare=bare,
        target=ratio_at_least(kind.share),
        detail=detail,
    )


def _worked(here: Site, kind: Kind, count: int) -> float:
    """DuelineError if a run is lost or ended twice."""
    burst = Burst(here, kind.handler, count)
    worker = here.worker(concurrency=kind.concurrency)
    until = burst.wait(PATIENCE_S, worker.check)
    began = worker.first("running")
    worker.stop()
    restarted = burst.account().restarted
    if restarted:
        raise DuelineError(f"{len(restarted)} runs were started again, and nothing had happened")
    return per_second(count, until - began)


# -- memory --------------------------------------------------------------------------------------------------


def memory(context: Context, waiting: int) -> list[Figure]:
    """RSS of a worker while so many runs wait on its topic and pass through it: the most, and whether it grows. No
    figures where /proc does not tell."""
    with site(context.store, context.directory) as here:
        burst = Burst(here, NOTHING, waiting)
        worker = here.worker(concurrency=CONCURRENCY)
        worker.wait_running(here.work_partitions, PATIENCE_S)
        samples = _sampled(worker, burst)
        worker.stop()
        if burst.finished():
            burst.account()
    if not samples:
        return []
    most, growth = max(samples), grown(samples)
    context.tell(f"worker memory with {waiting:,} waiting: {most:.0f} MB, x {growth:.2f}")
    detail = {"waiting": waiting, "first": samples[0], "last": samples[-1], "samples": len(samples)}
    return [
        Figure(
            shape="worker-memory",
            name=f"worker RSS, {waiting:,} waiting",
            value=most,
            unit="MB",
            target=at_most(RSS_MB),
            detail=detail,
        ),
        Figure(
            shape="worker-memory",
            name=f"worker RSS, {waiting:,} waiting, second half to first",
            value=growth,
            unit="times",
            target=at_most(GROWTH),
        ),
    ]


def grown(samples: list[float]) -> float:
    """The most in the second half to the most in the first."""
    half = len(samples) // 2
    return max(samples[half:]) / max(samples[:half] or samples)


def _sampled(worker: WorkerProcess, burst: Burst) -> list[float]:
    """MB, one in SAMPLE_S, until all has run or for MEMORY_S."""
    samples: list[float] = []
    deadline = time.monotonic() + MEMORY_S
    while time.monotonic() < deadline and not burst.finished():
        worker.check()
        samples += [mb for name, mb in worker.memory_mb().items() if name == "rss_mb"]
        time.sleep(SAMPLE_S)
    return samples
