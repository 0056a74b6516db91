"""Pausing, resuming and purging queues; no role is checked here. Everything blocks."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import closing
from typing import Any, Protocol

from pipeline.client.connection import Connection
from pipeline.core.errors import NotFound, Refused, StoreUnreachable
from pipeline.core.names import check_name
from pipeline.core.queues import Pause, Purge, QueueState
from pipeline.core.times import format_instant, parse_instant
from pipeline.queues import ends_of, waiting
from pipeline.server.allowed import Allowed

View = dict[str, Any]


class QueueVerbs(Protocol):
    """What writes of queues on `meta` (`adapters.kafka_queues`)."""

    def pause(self, queue: str, pause: Pause) -> QueueState: ...
    def resume(self, queue: str, by: str, at: int) -> QueueState | None: ...
    def purge(self, queue: str, purge: Purge) -> Purge: ...
    def topic_id(self, queue: str) -> str: ...


class QueueChanges:
    """Each call has clients of its own: they are rare, and what they write is fenced by its writer."""

    def __init__(self, open_verbs: Callable[[], QueueVerbs]) -> None:
        self._open = open_verbs

    def pause(self, connection: Connection, queue: str, by: str, note: str) -> View:
        """Who had paused it before stays who did."""
        known(connection, queue)
        wanted = Pause(by=by, at=connection.parts.clock.now(), reason=note)
        there = self._open().pause(queue, wanted).pause or wanted
        return {
            "queue": queue,
            "outcome": "paused",
            "by": there.by,
            "at": format_instant(there.at),
            "reason": there.reason,
        }

    def resume(self, connection: Connection, queue: str, by: str) -> View:
        known(connection, queue)
        state = self._open().resume(queue, by, connection.parts.clock.now())
        return {
            "queue": queue,
            "outcome": "running",
            "by": None if state is None else state.by,
            "at": None if state is None else format_instant(state.at),
        }

    def purge(
        self,
        connection: Connection,
        queue: str,
        by: str,
        *,
        before: str | None,
        dry_run: bool,
        allowed: Allowed,
        counted: View | None = None,
    ) -> View:
        """What waits now ends as cancelled, by its workers, which go on with it whatever becomes of us; with what a dry
        run has `counted`, that and nothing that was emitted since. Refused if that has become more."""
        known(connection, queue)
        until = None if before is None else parse_instant("before", before)
        names, partitions = connection.parts.names, connection.layout.queues[queue]
        with closing(connection.parts.open_scan()) as scan:
            ends = tuple(counted["ends"]) if counted else ends_of(scan, names.work(queue), partitions, until)
            found = waiting(scan, names, queue, partitions, ends)
        if dry_run or not found.count:
            view = _purged(queue, "counted" if dry_run else "nothing", None, found.count, until)
            return {**view, "ends": list(ends)} if dry_run else view
        if counted is not None and found.count > counted["waiting"]:
            raise Refused(f"{found.count} of these wait in {queue} by now: count again")
        verbs = self._open()
        if allowed.over:
            raise StoreUnreachable("nobody waits for it any more")
        wanted = Purge(
            id=secrets.token_hex(6),
            by=by,
            at=connection.parts.clock.now(),
            before=until,
            topic_id=verbs.topic_id(queue),
            ends=ends,
            waiting=found.count,
        )
        return _purged(queue, "purging", verbs.purge(queue, wanted).id, found.count, until)


def _purged(queue: str, outcome: str, id_: str | None, count: int, until: int | None) -> View:
    before = None if until is None else format_instant(until)
    return {"queue": queue, "outcome": outcome, "id": id_, "before": before, "waiting": count}


def known(connection: Connection, queue: str) -> None:
    """InvalidInput for what is no name; NotFound."""
    if check_name("queue", queue) not in connection.layout.queues:
        connection.layout = connection.parts.load_layout()  # it may be new
    if queue not in connection.layout.queues:
        raise NotFound(f"there is no queue {queue}: there are {', '.join(sorted(connection.layout.queues))}")
