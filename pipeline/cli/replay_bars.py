"""How far a replay is, on a terminal: what is read of its window, then what has been run again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from pipeline.replay import Replay


@contextmanager
def reading() -> Iterator[Callable[[int, int], None]]:
    """Told the work partitions read so far, of how many. Nothing is shown to a program."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    with _progress() as progress:
        task = progress.add_task("reading", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
        progress.update(task, visible=False)


@contextmanager
def replaying(begun: Replay) -> Iterator[Callable[[Replay], None]]:
    """Told the replay after each round."""
    if not sys.stderr.isatty():
        yield lambda replay: None
        return
    with _progress() as progress:
        task = progress.add_task("replaying", total=begun.matched, completed=sum(begun.counts.values()))
        yield lambda replay: progress.update(task, completed=sum(replay.counts.values()))


def _progress() -> Progress:
    from rich.console import Console  # 60 ms that a program need not pay
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    columns = (
        TextColumn("{task.description:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
