"""A window of the past and a filter, as `outage`, `verify` and their like take them, and where they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from pipeline.cli.job_input import pair
from pipeline.cli.output import note
from pipeline.cli.store import Store, following
from pipeline.core.times import format_instant, parse_instant
from pipeline.survey import Filter, Ground, Window, check_kept, window

Command = Callable[..., Any]


class Scene(NamedTuple):
    """A window of an installation. `gone_until`: what was due before it may be kept no longer, epoch ms; None: all of
    the window is there. `now` is the store's clock, in ms."""

    ground: Ground
    store: Store
    window: Window
    gone_until: int | None
    now: int


def filtered(command: Command) -> Command:
    """Give a command the options of a `Filter`; `wanted` makes one of them."""
    for option in (
        click.option("--key-prefix", metavar="P", help="With a key that begins so."),
        click.option(
            "--label", "labels", multiple=True, metavar="K=V", help="With this label; may be repeated."
        ),
        click.option("--queue", metavar="Q", help="Of this queue only."),
        click.option("--schedule", metavar="ID", help="Of this schedule only."),
        click.option("--handler", metavar="H", help="Of this handler only."),
    ):
        command = option(command)
    return command


def wanted(
    handler: str | None,
    schedule: str | None,
    queue: str | None,
    labels: tuple[str, ...],
    key_prefix: str | None,
) -> Filter:
    """InvalidInput names the option that makes no sense."""
    return Filter(
        handler=handler,
        schedule=schedule,
        queue=queue,
        labels=dict(pair("--label", text) for text in labels),
        key_prefix=key_prefix,
    )


@contextmanager
def surveying(from_: str | None, to: str | None, wanted: Filter, last_ms: int = 0) -> Iterator[Scene]:
    """From `from_`, else for the last `last_ms` before the end; to `to`, else until now.

    InvalidInput for a window that is reversed, in the future, or no longer kept; if some of it is gone, stderr says how
    much. Raises StoreUnreachable; Refused if topics are missing."""
    begin = None if from_ is None else parse_instant("--from", from_)
    end = None if to is None else parse_instant("--to", to)
    with following() as store, scanned(store) as ground:
        now = store.parts.clock.now()
        chosen = window((end or now) - last_ms if begin is None else begin, end, now)
        gone = check_kept(ground, chosen, wanted, now)
        if gone is not None:
            note(
                f"what was due from {format_instant(chosen.from_ms)} until {format_instant(gone)} is no longer"
                " kept, in whole or in part: it is not counted"
            )
        yield Scene(ground, store, chosen, gone, now)


@contextmanager
def scanned(store: Store) -> Iterator[Ground]:
    """The store, to be read in bulk."""
    scan = store.parts.open_scan()
    try:
        yield Ground(scan=scan, names=store.parts.names, layout=store.layout)
    finally:
        scan.close()
