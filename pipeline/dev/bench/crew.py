"""Shapes that change who works in the middle of a burst: a worker killed, stopped, added, replaced."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import NamedTuple

from pipeline.adapters.kafka_admin import topic_admin
from pipeline.core.errors import DuelineError
from pipeline.dev.bench.acks import Account
from pipeline.dev.bench.burst import Burst
from pipeline.dev.bench.faults import balanced
from pipeline.dev.bench.figures import Figure, at_most
from pipeline.dev.bench.handlers import SLOW
from pipeline.dev.bench.process import WorkerProcess
from pipeline.dev.bench.site import Site, site
from pipeline.dev.bench.throughput import PATIENCE_S, Context

MOST = 20_000
"""Runs of a burst."""
BURST_S = 12.0
"""Of one worker: handlers take as long as makes it so, thus every change comes in the middle."""
CONCURRENCY = 16
STRIKE = 0.25
"""Share of the burst begun when it comes."""
TAKEOVER_MS = 3_000
"""Beyond the session."""
PAUSE_S = 0.01


def changes(context: Context, count: int) -> list[Figure]:
    """Each on a site of its own. DuelineError if a run is lost, ends twice, or starts again after its end."""
    count = min(count, MOST)
    figures = _killed(context, count)
    for name, began_with, change in CHANGES:
        with site(context.store, context.directory) as here:
            found, left = _through(here, count, began_with, change)
        context.tell(f"{name}: {len(found.restarted)} runs restarted, {found.released} released")
        figures.append(
            Figure(
                shape="worker-kill",
                name=f"runs restarted, {name}",
                value=len(found.restarted),
                unit="runs",
                target=at_most(0),
                detail={"runs": count, "released": found.released, "left_after_it": left},
            )
        )
    return figures


def _killed(context: Context, count: int) -> list[Figure]:
    """kill -9 of one of two: only what it had in flight may start again, and soon."""
    with site(context.store, context.directory) as here:
        struck = list[Struck]()
        found, left = _through(here, count, 2, lambda here, workers: struck.append(_kill(here, workers)))
        session = topic_admin(here.settings).lowest_session_timeout()
        ahead = here.store_ahead
    victim, at, taken = struck[0]
    in_flight, restarted = found.left_open_by(victim), found.restarted
    if restarted.keys() - in_flight:
        raise DuelineError(
            f"{len(restarted.keys() - in_flight)} runs restarted that the killed worker did not run"
        )
    taken = max([taken, *(start.at - ahead for start in restarted.values())])
    context.tell(
        f"kill -9: {len(restarted)} of {len(in_flight)} runs in flight restarted, takeover {taken - at:,} ms"
    )
    detail = {"runs": count, "in_flight": len(in_flight), "left_after_it": left}
    return [
        Figure(
            shape="worker-kill",
            name="runs restarted, kill -9 of one of two",
            value=len(restarted),
            unit="runs",
            target=at_most(len(in_flight)),
            detail=detail,
        ),
        Figure(
            shape="worker-kill",
            name="takeover, kill -9 of one of two",
            value=taken - at,
            unit="ms",
            target=at_most(session + TAKEOVER_MS),
            detail={"session_ms": session},
        ),
    ]


class Struck(NamedTuple):
    """The killed worker's process id, when it was killed, and when another ran all partitions (epoch ms)."""

    victim: str
    at: int
    taken: int


Workers = list[WorkerProcess]
"""Those that live."""
Change = Callable[[Site, Workers], None]


def _through(here: Site, count: int, began_with: int, change: Change) -> tuple[Account, int]:
    """What the acks say of a burst in whose middle `change` happened, and how many runs had not begun after that."""
    workers = [here.worker(concurrency=CONCURRENCY) for _ in range(began_with)]
    balanced(workers, here.work_partitions)
    payload = json.dumps({"seconds": BURST_S * CONCURRENCY / count}).encode()
    burst, marks = Burst(here, SLOW, count, payload), here.marks()

    def alive() -> None:
        for worker in workers:
            worker.check()

    marks.wait(int(count * STRIKE), PATIENCE_S, alive, PAUSE_S)
    change(here, workers)
    left = max(0, count - marks.count())
    burst.wait(PATIENCE_S, alive)
    here.end()
    return burst.account(), left


def _kill(here: Site, workers: Workers) -> Struck:
    victim, other = workers.pop(0), workers[-1]
    at = victim.kill()
    return Struck(victim.name, at, other.wait_running(here.work_partitions, PATIENCE_S))


def _terminate(here: Site, workers: Workers) -> None:
    _stop(workers.pop(0))
    balanced(workers, here.work_partitions)


def _scale_out_and_in(here: Site, workers: Workers) -> None:
    workers += [here.worker(concurrency=CONCURRENCY) for _ in range(2)]
    balanced(workers, here.work_partitions)
    for _ in range(2):
        _stop(workers.pop())
    balanced(workers, here.work_partitions)


def _roll(here: Site, workers: Workers) -> None:
    for _ in range(len(workers)):
        _stop(workers.pop(0))
        workers.append(here.worker(concurrency=CONCURRENCY))
        balanced(workers, here.work_partitions)


def _stop(worker: WorkerProcess) -> None:
    """DuelineError if it had to be killed."""
    worker.stop()
    if worker.exit_code == -signal.SIGKILL:
        raise DuelineError("a worker did not end after SIGTERM")


CHANGES: tuple[tuple[str, int, Change], ...] = (
    ("SIGTERM of one of two", 2, _terminate),
    ("1 to 3 to 1 workers", 1, _scale_out_and_in),
    ("rolling restart of two", 2, _roll),
)
"""With how many workers each begins."""
