"""Shapes that stop dispatchers: restart from a warm and from no index, and takeover while jobs keep falling due."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from enum import StrEnum

from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.dev.bench.figures import Figure, at_most, spread
from pipeline.dev.bench.lateness import SETTLE_MS, collected
from pipeline.dev.bench.load import far, steady
from pipeline.dev.bench.observer import Observer, Seen
from pipeline.dev.bench.process import DispatcherProcess, OwnerProcess
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, SLACK, Context, pace_ms

WARM_MS = 3_000
RATE = 500
SECONDS = 8.0
FAULT_AFTER_MS = 2_000
"""Of steady emission: the fault hits transactions that follow each other without a break."""
SESSION_MS = 3_000
"""The lowest that the embedded broker allows, which is what a dispatcher takes."""
BALANCE_TIMEOUT_S = 30.0


class Fault(StrEnum):
    """What happens to the dispatcher that runs the partitions of the jobs that fall due."""

    TERM = "SIGTERM"
    KILL = "kill -9"
    STOP = "SIGSTOP"


TARGET_MS = {Fault.TERM: 2_000, Fault.KILL: SESSION_MS + 3_000, Fault.STOP: 20_000}
"""Worst lateness, with the embedded broker's session."""


def restart(context: Context, pending: int) -> list[Figure]:
    """From the start of the process until every partition runs, with an index of all jobs and with none."""
    with site(context.store, context.directory) as here:
        here.create(far(pending, here.now()))
        first = here.dispatcher()
        cold = first.wait_running(here.layout.partitions, PATIENCE_S) - first.started_at
        first.stop()
        again = here.dispatcher()
        warm = again.wait_running(here.layout.partitions, PATIENCE_S) - again.started_at
        detail = {"until_assigned": again.first("assigned") - again.started_at, "pending": pending}
        again.stop()
    context.tell(f"restart with {pending:,} pending: cold {cold:,} ms, warm {warm:,} ms")
    return [
        Figure(
            shape="restart",
            name=f"warm restart, {pending:,} pending",
            value=warm,
            unit="ms",
            target=at_most(WARM_MS),
            detail=detail,
        ),
        Figure(
            shape="restart",
            name=f"cold restart, {pending:,} pending",
            value=cold,
            unit="ms",
            detail={"until_assigned": first.first("assigned") - first.started_at},
        ),
    ]


# -- takeover ------------------------------------------------------------------------------------------------


def takeover(context: Context, plots: dict[str, list[float]]) -> list[Figure]:
    """Two dispatchers; one of them ends or freezes while jobs keep falling due on its partitions."""
    figures = []
    for fault in Fault:
        with site(context.store, context.directory) as here:
            seen, at = _struck(here, fault)
        late = spread(record.lateness for record in seen)
        delay = spread(record.emit_delay for record in seen)
        plots[f"takeover after {fault}"] = [record.lateness for record in seen]
        context.tell(f"takeover after {fault}: worst lateness {late.most:g} ms")
        figures.append(
            Figure(
                shape="takeover",
                name=f"worst lateness, {fault}",
                value=late.most,
                unit="ms",
                target=at_most(TARGET_MS[fault]),
                detail={
                    **late.described(),
                    "least_emit_delay": delay.least,
                    "late_records": sum(1 for r in seen if r.due >= at and r.lateness > WARM_MS // 10),
                },
            )
        )
    return figures


def _struck(here: Site, fault: Fault) -> tuple[list[Seen], int]:
    """All records, and when the fault came (epoch ms). DuelineError if one is missing or came twice."""
    dispatchers = [here.dispatcher(), here.dispatcher()]
    balanced(dispatchers, here.layout.partitions)
    count = int(RATE * SECONDS)
    ahead_ms = SETTLE_MS + int(count * pace_ms(here) * SLACK)
    with here.observer() as observer:
        start = here.now() + ahead_ms
        ids = here.create(steady(start, RATE, SECONDS))
        victim, other = _chosen(dispatchers, [here.layout.home(id_) for id_ in ids])
        while here.now() < start + FAULT_AFTER_MS:
            time.sleep(0.002)
        at = _strike(victim, fault)
        seen = collected(observer, other, count, SECONDS)
        if fault is Fault.STOP:
            seen = _thawed(victim, observer, count)
    for dispatcher in dispatchers:
        dispatcher.end()
    return seen, at


def balanced(owners: Sequence[OwnerProcess], partitions: int) -> None:
    """Until they run all partitions between them, each some."""
    deadline = time.monotonic() + BALANCE_TIMEOUT_S
    while True:
        shares = [len(owner.running()) for owner in owners]
        if min(shares) > 0 and sum(shares) == partitions:
            return
        for owner in owners:
            owner.check()
        if time.monotonic() > deadline:
            raise StoreUnreachable(f"the {owners[0].role}s run {shares} of {partitions} partitions")
        time.sleep(0.05)


def _chosen(
    dispatchers: list[DispatcherProcess], homes: list[int]
) -> tuple[DispatcherProcess, DispatcherProcess]:
    """The one on whose partitions most of the jobs are, and another."""
    share = {d.pid: sum(home in d.running() for home in homes) for d in dispatchers}
    ordered = sorted(dispatchers, key=lambda dispatcher: share[dispatcher.pid])
    return ordered[-1], ordered[0]


def _strike(victim: DispatcherProcess, fault: Fault) -> int:
    match fault:
        case Fault.TERM:
            return victim.signal(signal.SIGTERM)
        case Fault.KILL:
            return victim.kill()
        case Fault.STOP:
            return victim.signal(signal.SIGSTOP)


def _thawed(victim: DispatcherProcess, observer: Observer, count: int) -> list[Seen]:
    """The frozen one goes on: whatever it still had in hand must be refused. DuelineError if it was not."""
    victim.signal(signal.SIGCONT)
    time.sleep(1.0)
    if len(observer.seen) != count:
        raise DuelineError(f"a thawed dispatcher emitted {len(observer.seen) - count} records again")
    return list(observer.seen)
