"""A window of the past and a filter, as `outage`, `verify` and their like take them, and where they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import click

from pipeline.cli.job_input import pair
from pipeline.cli.output import note
from pipeline.cli.store import Store, following
from pipeline.core.errors import InvalidInput
from pipeline.core.times import format_instant, parse_instant
from pipeline.survey import Filter, Ground, Origin, Window, check_kept, in_order, origin, window

Command = Callable[..., Any]


class Scene(NamedTuple):
    """A window of an installation. `gone_until`: what was due before it may be kept no longer, epoch ms; None: all of
    the window is there. `now` is the store's clock, in ms."""

    ground: Ground
    store: Store
    window: Window
    gone_until: int | None
    origin: Origin
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

    InvalidInput for a window that is reversed (before the store is asked for anything), in the future, or no longer
    kept, and for an unknown queue; if some of it is gone, or from before the store began, stderr says how much. Raises
    StoreUnreachable; Refused if topics are missing."""
    begin = None if from_ is None else parse_instant("--from", from_)
    end = None if to is None else parse_instant("--to", to)
    in_order(begin, end)
    with following() as store, scanned(store) as ground:
        if wanted.queue is not None and wanted.queue not in ground.layout.queues:
            there = ", ".join(sorted(ground.layout.queues))
            raise InvalidInput("--queue", f"{wanted.queue!r} is unknown: there are {there}")
        now = store.parts.clock.now()
        chosen = window((end or now) - last_ms if begin is None else begin, end, now)
        gone = check_kept(ground, chosen, wanted, now)
        came = origin(ground, chosen)
        for line in _missing(chosen, gone, came):
            note(line)
        yield Scene(ground, store, chosen, gone, came, now)


def _missing(window: Window, gone: int | None, came: Origin) -> Iterator[str]:
    """What of the window the topics cannot tell, a line each."""
    begin = format_instant(window.from_ms)
    if gone is not None:
        yield (
            f"what was due from {begin} until {format_instant(gone)} is no longer kept, in whole or in part: it is"
            f" not counted, {_share(window, gone)} of the window"
        )
    if came.restored_at is not None and came.restored_at > window.from_ms:
        yield (
            f"the store was restored at {format_instant(came.restored_at)}: what fired before that is on no topic of"
            f" it, {_share(window, came.restored_at)} of the window"
        )
    elif came.began_at is not None and _share(window, came.began_at) != "0%":
        yield (
            f"the store began at {format_instant(came.began_at)}: nothing is known of before,"
            f" {_share(window, came.began_at)} of the window"
        )


def _share(window: Window, until: int) -> str:
    """How much of the window lies before this instant."""
    length = window.to_ms - window.from_ms
    before = min(max(until - window.from_ms, 0), length)
    return "all" if before == length else f"{before / length:.0%}"


def came_view(scene: Scene) -> dict[str, str | None]:
    """What a report says of how much the topics can tell."""
    times = {"gone_until": scene.gone_until, **scene.origin._asdict()}
    return {name: None if at is None else format_instant(at) for name, at in times.items()}


def tell_newer(ground: Ground) -> None:
    """Say on stderr what could not be read, once all has been."""
    if count := ground.newer.total():
        topics = ", ".join(sorted(ground.newer))
        note(
            f"records of a newer version on {topics} cannot be read here ({count}): what they say is not known. Use"
            " the newest version that runs on this store"
        )


@contextmanager
def scanned(store: Store) -> Iterator[Ground]:
    """The store, to be read in bulk."""
    scan = store.parts.open_scan()
    try:
        yield Ground(scan=scan, names=store.parts.names, layout=store.layout)
    finally:
        scan.close()
