"""What the person at the terminal sees while the night passes: bars on a terminal, lines elsewhere. All of it
goes to stderr, since stdout is for the report."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_INTERVAL_S = 1.0


class Counts(NamedTuple):
    """How far the night is. `jobs` and `mails` are what there is to do; the rest grows up to it."""

    jobs: int
    mails: int
    due: int
    fired: int
    started: int
    sent: int


class Screen(Protocol):
    """A context manager that shows counts and moments."""

    def tell(self, text: str) -> None:
        """One moment, kept on the screen."""
        ...

    def show(self, counts: Counts) -> None:
        """The counts now; as often as the caller likes."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def screen() -> Screen:
    """The one that fits where stderr goes."""
    return Bars() if sys.stderr.isatty() else Lines()


class Lines:
    """One line a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def tell(self, text: str) -> None:
        click.echo(f"dueline: {text}", err=True)

    def show(self, counts: Counts) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_INTERVAL_S
            self.tell(
                f"due {counts.due}/{counts.jobs} · fired {counts.fired} · started {counts.started}"
                f" · mails {counts.sent}/{counts.mails}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


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
