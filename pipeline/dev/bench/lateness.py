"""Shapes that measure how late a waiting consumer has a record: beside a backlog, and as it drains."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipeline.core.errors import DuelineError
from pipeline.dev.bench.bare import Emitter, due_in_key
from pipeline.dev.bench.figures import Figure, Spread, at_least, at_most, spread
from pipeline.dev.bench.load import far, steady
from pipeline.dev.bench.observer import Observer, Seen
from pipeline.dev.bench.process import DispatcherProcess
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import (
    LEAD_MS,
    PATIENCE_S,
    ROUNDS,
    SLACK,
    Context,
    TooSoon,
    pace_ms,
    patiently,
)

P50_MS, P99_MS, CATCH_UP_P99_MS, RSS_MB, DISK_GROWTH = 15, 40, 250, 700, 1.5
GRACE_S = 60.0
"""How long the last record may take: what is later than that is not late but lost."""
SETTLE_MS = 2_000
"""On-time jobs begin so long after all else stands still."""


def on_time(
    context: Context, pending: int, rates: Sequence[int], seconds: float, plots: dict[str, list[float]]
) -> list[Figure]:
    """Lateness at each of these rates while `pending` other jobs wait for a far day; memory with them."""
    figures: list[Figure] = []
    with site(context.store, context.directory) as here:
        here.create(far(pending, here.now()))
        dispatcher = here.dispatcher()
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        for rate in rates:
            for _ in range(ROUNDS):
                bare = emitted(here, rate, seconds)
                seen = steadily(here, dispatcher, rate, seconds)
            figures += _figures(f"{rate:,} due/s, {pending:,} pending", seen, bare, rate)
            plots[f"{rate:,} due/s, {pending:,} pending"] = [record.lateness for record in seen]
            plots[f"bare, {rate:,} due/s"] = [record.lateness for record in bare]
            context.tell(f"lateness at {rate:,}/s: {_told(seen)}; bare: {_told(bare)}")
        memory = dispatcher.memory_mb()
        dispatcher.stop()
    if memory:
        figures.append(_memory(pending, memory))
    return figures


def _memory(pending: int, memory: dict[str, float]) -> Figure:
    return Figure(
        shape="lateness",
        name=f"dispatcher RSS, {pending:,} pending",
        value=memory["rss_mb"],
        unit="MB",
        target=at_most(RSS_MB),
        detail=memory,
    )


def _told(seen: Sequence[Seen]) -> str:
    late = spread(record.lateness for record in seen)
    return f"p50 {late.p50:g} ms, p99 {late.p99:g} ms, max {late.most:g} ms"


def steadily(here: Site, dispatcher: DispatcherProcess, rate: int, seconds: float) -> list[Seen]:
    """So many jobs a second for so long, all created before the first is due; every one, once."""
    count = int(rate * seconds)
    ahead_ms = SETTLE_MS + int(count * pace_ms(here) * SLACK)
    with here.observer() as observer:
        start = here.now() + ahead_ms
        here.create(steady(start, rate, seconds))
        if here.now() >= start:
            raise DuelineError("the jobs were due before they were stored: use a lower rate")
        return collected(observer, dispatcher, count, (start - here.now()) / 1000 + seconds)


def collected(observer: Observer, dispatcher: DispatcherProcess, count: int, ahead_s: float) -> list[Seen]:
    """DuelineError if a record came twice."""
    observer.wait(count, ahead_s + GRACE_S, dispatcher.check)
    time.sleep(0.2)  # a record too many would follow at once
    if len(observer.seen) != count:
        raise DuelineError(f"{len(observer.seen)} records of {count} jobs")
    return list(observer.seen)


def emitted(here: Site, rate: int, seconds: float) -> list[Seen]:
    """A loop that knows beforehand what is due when, and does nothing but transactions."""
    emitter = Emitter(here.settings, here.layout.shards, here.layout.partitions, here.work_partitions)
    try:
        with Observer(
            here.settings,
            emitter.topic,
            here.work_partitions,
            store_ahead=here.store_ahead,
            due_in=due_in_key,
        ) as observer:
            dues = list(steady(here.now() + SETTLE_MS // 4, rate, seconds))
            emitter.emit(dues, here.now)
            observer.wait(len(dues), GRACE_S)
            return list(observer.seen)
    finally:
        emitter.close()


def _figures(name: str, seen: Sequence[Seen], bare: Sequence[Seen], rate: int) -> list[Figure]:
    late, floor = spread(r.lateness for r in seen), spread(r.lateness for r in bare)
    strict = rate <= 1_000
    return [
        Figure(
            shape="lateness",
            name=f"lateness p50, {name}",
            value=late.p50,
            unit="ms",
            bare=floor.p50,
            target=at_most(P50_MS) if strict else None,
            detail=late.described(),
        ),
        Figure(
            shape="lateness",
            name=f"lateness p99, {name}",
            value=late.p99,
            unit="ms",
            bare=floor.p99,
            target=at_most(P99_MS) if strict else None,
            detail=late.described(),
        ),
        emit_delay("lateness", name, seen),
    ]


def emit_delay(shape: str, name: str, seen: Sequence[Seen]) -> Figure:
    delays: Spread = spread(record.emit_delay for record in seen)
    return Figure(
        shape=shape,
        name=f"least emit delay, {name}",
        value=delays.least,
        unit="ms",
        target=at_least(0),
        detail=delays.described(),
    )


# -- beside a backlog that drains ----------------------------------------------------------------------------


def catch_up(
    context: Context, overdue: int, rate: int, seconds: float, plots: dict[str, list[float]]
) -> list[Figure]:
    """No dispatcher for a while, so `overdue` jobs are late; one starts, and others fall due on time meanwhile."""
    meanwhile, took = patiently(
        context, lambda here, slack: _beside_backlog(here, overdue, rate, seconds, slack)
    )
    name = f"{rate:,} due/s beside {overdue:,} overdue"
    found = spread(record.lateness for record in meanwhile)
    plots[name] = [record.lateness for record in meanwhile]
    context.tell(f"catch-up of {overdue:,}: {_told(meanwhile)} over {took / 1000:.1f} s")
    return [
        Figure(
            shape="catch-up",
            name=f"lateness p99, {name}",
            value=found.p99,
            unit="ms",
            target=at_most(CATCH_UP_P99_MS),
            detail={**found.described(), "drain_ms": took},
        )
    ]


def _beside_backlog(
    here: Site, overdue: int, rate: int, seconds: float, slack: float
) -> tuple[list[Seen], int]:
    """What fell due while the backlog drained, and for how many ms that lasted. TooSoon if nothing did."""
    began = here.now()
    with here.observer() as observer:
        here.create(began - 1 for _ in range(overdue))
        # Due from now on, past the start of the dispatcher and the drain: only those due meanwhile count.
        span = seconds + slack * (LEAD_MS + pace_ms(here) * rate * seconds) / 1000
        here.create(steady(here.now(), rate, span))
        dispatcher = here.dispatcher()
        running = dispatcher.wait_running(here.layout.partitions, PATIENCE_S) + here.store_ahead
        seen = collected(observer, dispatcher, overdue + int(rate * span), PATIENCE_S)
        dispatcher.stop()
    drained = max(record.at for record in seen if record.due < began)
    meanwhile = [record for record in seen if running <= record.due <= drained]
    if not meanwhile:
        raise TooSoon("no job fell due while the backlog drained: use more jobs")
    return meanwhile, drained - running


# -- many more of them, on disk ------------------------------------------------------------------------------


def grown(context: Context, few: int, many: int, rate: int, seconds: float) -> list[Figure]:
    """Lateness and memory with `few` pending, then with `many`: what the second costs is told against the first."""
    with site(context.store, context.directory) as here:
        late: list[Spread] = []
        memory: dict[str, float] = {}
        there = 0
        for pending in (few, many):
            here.create_blindly(far(pending - there, here.now()))
            there = pending
            dispatcher = here.dispatcher()
            dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
            late.append(spread(record.lateness for record in steadily(here, dispatcher, rate, seconds)))
            memory = dispatcher.memory_mb()
            dispatcher.stop()
            context.tell(f"{pending:,} pending: p99 {late[-1].p99:g} ms, {memory.get('rss_mb', 0):.0f} MB")
    name = f"lateness p99, {rate:,} due/s, {many:,} pending"
    figures = [
        Figure(
            shape="disk",
            name=f"{name}, to {few:,} pending",
            value=late[1].p99 / max(late[0].p99, 1.0),
            unit="times",
            target=at_most(DISK_GROWTH),
            detail={**late[1].described(), "p99_of_few": late[0].p99},
        )
    ]
    return figures + ([_memory(many, memory)] if memory else [])
