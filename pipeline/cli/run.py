"""`dueline dispatcher` and `dueline worker`: the processes that own partitions."""

from __future__ import annotations

import os
import sys

import click

from pipeline.core.errors import InvalidInput


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

        return run_several("dispatcher", processes)
    from pipeline.service import run_dispatcher

    run_dispatcher(settings, slot=slot)
    return 0


@click.command()
@click.option(
    "--app",
    "target",
    required=True,
    metavar="MODULE:APP",
    help="Where the handlers are, e.g. billing.jobs:app.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="Q",
    help="Queue to work on; may be repeated. Default: `default`.",
)
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), help="Runs at the same time, all queues together."
)
def worker(target: str, queues: tuple[str, ...], concurrency: int | None) -> None:
    """Run the handlers of an application for the jobs of one or more queues, until SIGTERM.

    SIGTERM drains: what runs may finish within DUELINE_DRAIN_TIMEOUT_MS, the rest goes back unspent. A second
    signal ends at once.
    """
    from pipeline import tell_dev_store
    from pipeline.config import load_settings
    from pipeline.service import load_app, run_worker

    settings = load_settings(concurrency=concurrency)
    app = load_app(target)
    tell_dev_store(settings)
    if not run_worker(settings, app, queues=queues or (settings.queue,), concurrency=settings.concurrency):
        sys.stdout.flush()
        os._exit(0)  # a handler that goes on would run beside the next attempt of its run
