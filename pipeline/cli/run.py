"""`dueline dispatcher` and `dueline worker`: the processes that own partitions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from pipeline.cli.output import emit
from pipeline.core.errors import InvalidInput

if TYPE_CHECKING:
    from pipeline.config import Settings

DRAIN_MARGIN_S = 10.0
"""What a worker may need beside its drain time-out: to leave its groups and its clients."""


@click.command()
@click.option(
    "--slot",
    type=click.IntRange(0, 999),
    help="Claim this slot; refused if it is held. Default: the lowest free.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Run this many, each with a slot of its own; one that crashes is started again.",
)
def dispatcher(slot: int | None, processes: int) -> int:
    """Own partitions of the jobs topic and fire what is due, until SIGTERM.

    Start as many as you like, on any host: the group shares the partitions out. Events go to stderr, one JSON
    object a line. With --processes, signals are passed on, and it exits 4 as soon as one of them refuses to go on.
    """
    from pipeline import tell_dev_store
    from pipeline.config import load_settings

    if processes > 1 and slot is not None:
        raise InvalidInput("--slot", "is for one process: with --processes each takes the lowest free")
    settings = load_settings()
    tell_dev_store(settings)
    if processes > 1:
        from pipeline.cli.several import run_several

        return run_several(["dispatcher"], processes)
    from pipeline.service import run_dispatcher

    run_dispatcher(settings, slot=slot)
    return 0


@click.command()
@click.option(
    "--app",
    "target",
    metavar="MODULE[:APP]",
    help="Where the handlers are, e.g. billing.jobs:app. Without it, only the built-in handlers run.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="Q[:WEIGHT]",
    help="Queue to work on; may be repeated. Weights share out the concurrency: a:3 and b:1 get ¾ and ¼.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    help="Runs at the same time, all queues together. Default: DUELINE_CONCURRENCY, or 32.",
)
@click.option("--burst", is_flag=True, help="Stop once nothing is left on the queues.")
@click.option("--reload", is_flag=True, help="Start again when the code changes; for development.")
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Run this many, each with that concurrency; one that crashes is started again.",
)
def worker(
    target: str | None,
    queues: tuple[str, ...],
    concurrency: int | None,
    burst: bool,
    reload: bool,
    processes: int,
) -> int:
    """Run the handlers of an application for the jobs of one or more queues, until SIGTERM or Ctrl-C.

    Either drains: what runs may finish within DUELINE_DRAIN_TIMEOUT_MS, the rest goes back unspent. A second one
    ends at once. Events go to stderr, one JSON object a line.

    --burst works until nothing is left on the queues and prints how many runs it finished. It waits for no job that
    is due later, no retry, and no run that another worker has.
    """
    from pipeline import tell_dev_store
    from pipeline.config import load_settings
    from pipeline.service.shares import parse_queues

    check_alone(burst=burst, reload=reload, processes=processes)
    settings = load_settings(concurrency=concurrency)
    weights = parse_queues(queues) or {settings.queue: 1}
    if not reload and processes == 1:
        return _work(settings, target, weights, burst)
    tell_dev_store(settings)
    arguments = worker_arguments(target, queues, concurrency)
    stop_timeout_s = settings.drain_timeout_ms / 1000 + DRAIN_MARGIN_S
    if reload:
        from pipeline.cli.reload import run_reloading

        return run_reloading(arguments, target, stop_timeout_s)
    from pipeline.cli.several import run_several

    return run_several(arguments, processes, stop_timeout_s)


def _work(settings: Settings, target: str | None, weights: Mapping[str, int], burst: bool) -> int:
    from pipeline import Dueline, tell_dev_store
    from pipeline.service import load_app, run_worker
    from pipeline.service.burst import Burst

    app = Dueline() if target is None else load_app(target)
    tell_dev_store(settings)
    done = Burst() if burst else None
    clean = run_worker(
        settings, app, queues=weights, concurrency=settings.concurrency, burst=done, target=target
    )
    if done is not None:
        emit({"finished": done.finished, "left": done.left}, _burst_text)
    if not clean:
        sys.stdout.flush()
        os._exit(0)  # a handler that goes on would run beside the next attempt of its run
    return 0


def _burst_text(view: Mapping[str, int]) -> str:
    left = f", {view['left']} left: nobody here knows their handlers" if view["left"] else ""
    return f"{view['finished']} runs finished{left}"


def check_alone(*, burst: bool, reload: bool, processes: int) -> None:
    """InvalidInput for options that exclude each other."""
    asked = {"--burst": burst, "--reload": reload, "--processes": processes > 1}
    given = [name for name, wanted in asked.items() if wanted]
    if len(given) > 1:
        raise InvalidInput(given[0], f"does not go with {given[1]}")


def worker_arguments(target: str | None, queues: Sequence[str], concurrency: int | None) -> list[str]:
    """The command of one child."""
    options = [("--app", target), *(("--queue", queue) for queue in queues), ("--concurrency", concurrency)]
    return ["worker", *(str(word) for name, value in options if value is not None for word in (name, value))]
