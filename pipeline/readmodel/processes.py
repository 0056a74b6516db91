"""Who is alive, by the heartbeats that come: in memory only, for they are young or of no use."""

from __future__ import annotations

import threading

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.follower import FRESH_MS
from pipeline.heartbeat import Seen
from pipeline.ports import Record

LISTEN_MS = 10_000
"""So far back `fleet` is read when a store is reached."""


class Processes:
    """The latest heartbeat of each process and queue; one thread takes them in, any asks."""

    def __init__(self) -> None:
        self._seen: dict[bytes, dict[tuple[str, ...], Seen]] = {}
        self._lock = threading.Lock()

    def take(self, record: Record, key: bytes) -> None:
        value, at = record.value(), record.timestamp()[1]
        with self._lock:
            if value is None:
                self._seen.pop(key, None)
                return
            try:
                heartbeat = codec.HEARTBEAT.decode(value)
            except Undecodable:
                return
            self._seen.setdefault(key, {})[heartbeat.queues] = Seen(heartbeat, at)

    def alive(self, now: int) -> list[Seen]:
        """Those whose heartbeat is fresh at `now`, the store's clock in ms, by role and name; who is silent for long
        is forgotten."""
        with self._lock:
            for key, queues in [*self._seen.items()]:
                if all(seen.at < now - 60 * FRESH_MS for seen in queues.values()):
                    del self._seen[key]
            every = [seen for queues in self._seen.values() for seen in queues.values()]
        fresh = [seen for seen in every if seen.at >= now - FRESH_MS]
        return sorted(
            fresh, key=lambda seen: (seen.heartbeat.role, seen.heartbeat.process, seen.heartbeat.queues)
        )
