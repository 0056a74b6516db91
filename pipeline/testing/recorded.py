"""An app that stores nothing and remembers what it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.client import Dueline
from pipeline.testing.book import Book
from pipeline.testing.clock import FakeClock
from pipeline.testing.records import ScheduledJob
from pipeline.testing.running import Outcome, run_job


class Recording:
    """What an app was asked for while it was recorded; `clock` is the time of its store."""

    def __init__(self, app: Dueline, clock: FakeClock, book: Book) -> None:
        self.clock = clock
        self._app, self._book = app, book

    @property
    def scheduled(self) -> list[ScheduledJob]:
        """The jobs that stand, in the order in which they were asked for: those that were cancelled are gone, others
        are as they were rescheduled, updated or replaced."""
        return list(self._book.jobs.values())

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Verb and id of every change that was asked for: cancel, reschedule, update."""
        return list(self._book.changes)

    def run(self, handler: str, payload: dict[str, Any] | None = None, **options: Any) -> Outcome:
        """`run_job` with this app and clock."""
        return run_job(self._app, handler, payload, **{"clock": self.clock, **options})


@contextmanager
def recording(app: Dueline, clock: FakeClock | None = None) -> Iterator[Recording]:
    """Have `app` store nothing until the end of the block. Every request is checked as always, owners answer at once,
    any queue exists, and no job runs by itself."""
    clock = clock or FakeClock()
    book = Book(app.settings.names, clock)
    with app.connected_by(lambda _settings: book.parts()):
        yield Recording(app, clock, book)
