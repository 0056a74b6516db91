"""The read model of a server: how fast it folds what was created, and how soon it answers with all of that pending."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TypeVar

from pipeline.core.errors import StoreUnreachable
from pipeline.core.job import JobStatus
from pipeline.core.times import parse_instant
from pipeline.dev.bench.bare import bare, records
from pipeline.dev.bench.figures import Figure, at_least, at_most, per_second
from pipeline.dev.bench.load import far
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, Context
from pipeline.readmodel import JobsWanted, ReadModel, open_readmodel

T = TypeVar("T")
ASKED = 500
"""Questions of each kind."""
PAGE = 50
POLL_S = 0.02
PENDING = frozenset({JobStatus.PENDING})


def answers(context: Context, count: int) -> list[Figure]:
    """Create so many far jobs; a dispatcher indexes them, a read model folds them, and is asked."""
    with site(context.store, context.directory) as here:
        places = {"used": here.layout.partitions, "partitions": here.layout.partitions}
        with bare(
            here.settings, here.directory, records(count, 0), work=here.work_partitions, **places
        ) as loops:
            loops.create()
            bare_indexed = loops.index()
        here.create_blindly(far(count, here.now()))
        indexed = _indexed(here, count)
        with closing(open_readmodel(here.settings)) as model:
            folded = _folded(model, count)
            context.tell(f"read model {folded:,.0f}/s, index {indexed:,.0f}/s, bare {bare_indexed:,.0f}/s")
            pages, gets = _asked(model)
            disk = model.footprint() / 1_000_000
    detail = {"jobs": float(count)}
    return [
        _figure("fold", folded, "jobs/s", bare_indexed, {**detail, "disk_mb": round(disk, 1)}),
        Figure(
            shape="readmodel", name="read model, fold to index of the same run", value=folded / indexed, unit="",
            target=at_least(0.5), detail=detail,
        ),
        Figure(
            shape="readmodel", name=f"read model, page of {PAGE}, p99", value=_p99(pages), unit="ms",
            target=at_most(100), detail=detail,
        ),
        Figure(
            shape="readmodel", name="read model, one job, p99", value=_p99(gets), unit="ms", target=at_most(30),
            detail=detail,
        ),
    ]  # fmt: skip


def _figure(what: str, value: float, unit: str, beside: float, detail: dict[str, float]) -> Figure:
    return Figure(
        shape="readmodel", name=f"read model, {what}", value=value, unit=unit, bare=beside, detail=detail
    )


def _indexed(here: Site, count: int) -> float:
    """From the first partition assigned until all run, without an index."""
    dispatcher = here.dispatcher(state=here.directory / "cold")
    running = dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
    rate = per_second(count, running - dispatcher.first("assigned"))
    dispatcher.stop()
    return rate


def _folded(model: ReadModel, count: int) -> float:
    """From now until it has caught up."""
    began = time.perf_counter()
    while not model.freshness().ready:
        if time.perf_counter() - began > PATIENCE_S:
            raise StoreUnreachable(f"the read model has not caught up after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)
    return per_second(count, (time.perf_counter() - began) * 1000)


def _asked(model: ReadModel) -> tuple[list[float], list[float]]:
    """How long pages that begin anywhere take, and jobs out of them, ms."""
    begin, end = _ends(model)
    chance, ids, pages = random.Random(1), list[str](), list[float]()
    for _ in range(ASKED):
        wanted = JobsWanted(statuses=PENDING, due_from=chance.randrange(begin, end + 1))
        rows = _timed(pages, partial(model.jobs, wanted, limit=PAGE)).rows
        ids += [row["id"] for row in islice(rows, 2)]
    gets = list[float]()
    for _ in range(ASKED):
        _timed(gets, partial(model.job, chance.choice(ids)))
    return pages, gets


def _ends(model: ReadModel) -> tuple[int, int]:
    """Due times of the first job and the last, epoch ms."""
    rows = [
        model.jobs(JobsWanted(statuses=PENDING, order=order), limit=1).rows[0] for order in ("due", "-due")
    ]
    first, last = (parse_instant("due_at", row["due_at"]) for row in rows)
    return first, last


def _timed(times: list[float], ask: Callable[[], T]) -> T:
    began = time.perf_counter()
    answer = ask()
    times.append((time.perf_counter() - began) * 1000)
    return answer


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)]
