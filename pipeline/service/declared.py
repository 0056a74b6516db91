"""What an app declares with `@app.cron` and `@app.every`, stored when a worker of it starts (DESIGN §8)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pipeline.client import Dueline, parts
from pipeline.client.connection import Connection
from pipeline.client.schedules import ScheduleChange
from pipeline.client.syncing import check_queues, put_all, retain_only
from pipeline.config import Settings
from pipeline.core.errors import DuelineError
from pipeline.core.schedule import ScheduleSpec
from pipeline.ports import Events

WAIT = "30s"
"""How long an owner is waited for to say what it did; the commands are durable at once."""
CLOSE_MS = 1_000


class Declared(NamedTuple):
    """The schedules of an app, as of its deploy version."""

    source: str
    version: str
    specs: tuple[ScheduleSpec, ...]


def declared_by(app: Dueline, target: str, settings: Settings) -> Declared:
    """What the app that `target` = `module:attribute` names declares. InvalidInput."""
    name = app.settings.app_name or settings.app_name or target.partition(":")[0]
    version = app.settings.app_version or settings.app_version or ""
    source = f"app:{name}"
    return Declared(source, version, app.declared(source=source, version=version, queue=settings.queue))


@contextmanager
def storing(settings: Settings, declared: Declared | None, events: Events) -> Iterator[None]:
    """Store it beside what the block does: a worker need not wait for its schedules, nor for those who own them. What
    could not be stored is an event; the next worker that starts tries again."""
    if declared is None:
        yield
        return
    thread = threading.Thread(
        target=_store, args=(settings, declared, events), name="dueline-schedules", daemon=True
    )
    thread.start()
    yield
    thread.join(CLOSE_MS / 1_000)


def _store(settings: Settings, declared: Declared, events: Events) -> None:
    try:
        connection = Connection(parts.connect(settings), settings)
        try:
            _tell(store(connection, declared), declared, events)
        finally:
            connection.close(CLOSE_MS)
    except DuelineError as error:
        events.on("schedules.failed", source=declared.source, problem=str(error))


def store(connection: Connection, declared: Declared) -> Iterator[ScheduleChange]:
    """Put what is declared, then have removed what this source has beside that. Raises InvalidInput,
    StoreUnreachable."""
    check_queues(connection, declared.specs)
    yield from put_all(connection, declared.specs, WAIT)
    kept = [spec.id for spec in declared.specs]
    yield from retain_only(connection, kept, declared.source, declared.version, WAIT)


def _tell(changes: Iterable[ScheduleChange], declared: Declared, events: Events) -> None:
    counts: Counter[str] = Counter()
    for change in changes:
        counts[change.outcome] += 1
        if change.outcome in ("foreign", "older", "refused"):
            events.on(
                f"schedules.{change.outcome}",
                schedule=change.id,
                source=declared.source,
                version=declared.version,
                reason=change.reason,
            )
    if counts:
        events.on("schedules", source=declared.source, version=declared.version, **counts)
