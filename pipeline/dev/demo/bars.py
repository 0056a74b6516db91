"""The night as bars on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from pipeline.dev.demo.screen import Counts


class Bars:
    """Four bars, shown from the first counts on, with the moments above them."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=console or Console(stderr=True),
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def tell(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def show(self, counts: Counts) -> None:
        if not self._tasks:
            self._progress.start()
            totals = {"due": counts.jobs, "fired": counts.jobs, "started": counts.jobs, "sent": counts.mails}
            self._tasks = {name: self._progress.add_task(name, total=total) for name, total in totals.items()}
        for name, task in self._tasks.items():
            self._progress.update(task, completed=getattr(counts, name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
