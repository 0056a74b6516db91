"""What the person at the terminal sees while the night passes: bars on a terminal, lines elsewhere. All of it
goes to stderr, since stdout is for the report."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import click

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
    if not sys.stderr.isatty():
        return Lines()
    from pipeline.dev.demo.bars import Bars  # half a second of imports that nobody else needs

    return Bars()


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
