"""Shapes that count jobs a second: create, index, drain."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from pipeline.core.errors import DuelineError
from pipeline.dev.bench.bare import bare, records
from pipeline.dev.bench.figures import Figure, at_least, per_second, ratio_at_least
from pipeline.dev.bench.load import far
from pipeline.dev.bench.site import Site, Store, Tell, site

T = TypeVar("T")
ROUNDS = 2
"""Each loop runs so many times and the last one counts: a broker and caches that are cold say nothing."""
PROBE = 2_000
SLACK = 2.5
"""Times that for creating and indexing together."""
LEAD_MS = 5_000
"""A dispatcher starts and takes over within this."""
PATIENCE_S = 600.0


class Context(NamedTuple):
    """What every shape gets."""

    store: Store
    directory: Path
    tell: Tell


def create_and_index(context: Context, count: int) -> list[Figure]:
    """`schedule_many` of far jobs, and a dispatcher that finds them in the log."""
    jobs = records(count, 0)
    created = indexed = bare_created = bare_indexed = 0.0
    for _ in range(ROUNDS):
        with site(context.store, context.directory) as here:
            places = {"used": here.layout.partitions, "partitions": here.layout.partitions}
            with bare(here.settings, here.directory, jobs, work=here.work_partitions, **places) as loops:
                bare_created, bare_indexed = loops.create(), loops.index()
            created, indexed = _created(here, count), _indexed(here, count)
            context.tell(
                f"create {created:,.0f}/s of {bare_created:,.0f}, index {indexed:,.0f}/s of {bare_indexed:,.0f}"
            )
    return [
        Figure(
            shape="create",
            name="create",
            value=created,
            unit="jobs/s",
            bare=bare_created,
            target=ratio_at_least(0.4),
            detail={"jobs": count},
        ),
        Figure(
            shape="index",
            name="index (cold rebuild)",
            value=indexed,
            unit="jobs/s",
            bare=bare_indexed,
            target=ratio_at_least(0.6),
            detail={"jobs": count},
        ),
    ]


def _created(here: Site, count: int) -> float:
    dues = far(count, here.now())
    began = time.perf_counter()
    here.create(dues)
    return per_second(count, (time.perf_counter() - began) * 1000)


def _indexed(here: Site, count: int) -> float:
    """From the first partition assigned until all run: each has then read all of its log."""
    dispatcher = here.dispatcher(state=here.directory / "cold")
    running = dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
    rate = per_second(count, running - dispatcher.first("assigned"))
    dispatcher.stop()
    return rate


# -- drain ---------------------------------------------------------------------------------------------------


class Drained(NamedTuple):
    """One drain: jobs a second from the due instant on, (ms since due, records in hand so far), the least emit
    delay in ms, and records too many."""

    rate: float
    curve: list[tuple[int, int]]
    least_emit_delay: int
    surplus: int


def drain(context: Context, count: int, curves: dict[str, list[tuple[float, float]]]) -> list[Figure]:
    """All due at one instant, one dispatcher process; until a waiting consumer has every work record."""
    jobs = records(count, 0)
    rate, found = 0.0, None
    for _ in range(ROUNDS):
        with site(context.store, context.directory) as here:
            used = here.layout.shards  # one bucket stands on as many partitions
            with bare(
                here.settings,
                here.directory,
                jobs,
                used=used,
                partitions=here.layout.partitions,
                work=here.work_partitions,
            ) as loops:
                loops.create()
                loops.index()
                rate = loops.drain()
        found = patiently(context, lambda here, slack: _drained(here, count, slack))
        context.tell(f"drain of {count:,}: {found.rate:,.0f}/s of {rate:,.0f}")
    assert found is not None
    curves[f"drain of {count:,}"] = [(at / 1000, done) for at, done in found.curve]
    name = f"drain of {count:,}"
    return [
        Figure(
            shape="drain",
            name=name,
            value=found.rate,
            unit="jobs/s",
            bare=rate,
            target=ratio_at_least(0.6),
            detail={"jobs": count, "surplus_records": found.surplus},
        ),
        Figure(
            shape="drain",
            name=f"{name}, least emit delay",
            value=found.least_emit_delay,
            unit="ms",
            target=at_least(0),
        ),
    ]


def _drained(here: Site, count: int, slack: float) -> Drained:
    ahead_ms = LEAD_MS + int(count * pace_ms(here) * slack)
    due = here.now() + ahead_ms
    with here.observer(lambda _key: due) as observer:
        here.create(due for _ in range(count))
        dispatcher = here.dispatcher()
        dispatcher.wait_running(here.layout.partitions, PATIENCE_S)
        check_time(here, due)
        observer.wait(count, (due - here.now()) / 1000 + PATIENCE_S, dispatcher.check)
        dispatcher.stop()
        seen = list(observer.seen)
    last = max(record.at for record in seen[:count])
    return Drained(
        rate=per_second(count, last - due),
        curve=curve([record.lateness for record in seen]),
        least_emit_delay=min(record.emit_delay for record in seen),
        surplus=len(seen) - count,
    )


class TooSoon(DuelineError):
    """An instant came before all was ready for it: the machine has become slower than the small try said."""


def check_time(here: Site, due: int) -> None:
    """TooSoon if it is `due` already."""
    late = here.now() - due
    if late >= 0:
        raise TooSoon(f"the first job was due {late} ms before everything was ready: use fewer jobs")


def patiently(context: Context, measure: Callable[[Site, float], T]) -> T:
    """`measure(site, slack)` on a site of its own, with more slack if that was too little. TooSoon in the end."""
    for slack in (SLACK, 2 * SLACK):
        with suppress(TooSoon), site(context.store, context.directory) as here:
            return measure(here, slack)
    with site(context.store, context.directory) as here:
        return measure(here, 5 * SLACK)


def pace_ms(here: Site) -> float:
    """What creating one job takes here now, by a small try. What is due at one instant must all be pending before
    it, so the instant must be far enough away on any machine."""
    began = time.perf_counter()
    here.create(far(PROBE, here.now()))
    return (time.perf_counter() - began) * 1000 / PROBE


def curve(arrivals: list[int]) -> list[tuple[int, int]]:
    """(ms since due, records so far), one point for each moment at which some came."""
    points: list[tuple[int, int]] = []
    for count, at in enumerate(arrivals, 1):
        if points and points[-1][0] == at:
            points[-1] = (at, count)
        else:
            points.append((at, count))
    return points
