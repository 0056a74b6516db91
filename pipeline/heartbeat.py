"""Heartbeats: what each process says of itself on `fleet` (DESIGN §7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.hashing import text_hash
from pipeline.core.job import Heartbeat
from pipeline.ports import Appender, Put, Reader, Record

INTERVAL_MS = 1000


LATE_MS = 500


class Pulse:
    """Sends a heartbeat a second from its owner's loop. A dispatcher's loop that hangs goes stale so; a worker's last
    heartbeat is repeated from another thread meanwhile, for its handlers go on (`repeat`)."""

    def __init__(self, *, appender: Appender, fleet: str, partitions: int, process: str) -> None:
        self._appender = appender
        self._fleet = fleet
        self._partition = text_hash(process) % partitions
        self._key = process.encode()
        self._next = 0
        self._last: bytes | None = None

    def due(self, monotonic: int) -> bool:
        return monotonic >= self._next

    def beat(self, heartbeat: Heartbeat, monotonic: int) -> None:
        self._next = monotonic + INTERVAL_MS
        self._last = codec.HEARTBEAT.encode(heartbeat)
        self._put(self._last)

    def repeat(self, monotonic: int) -> None:
        """Send the last heartbeat again if the owner's loop is late with the next. Any thread may call it."""
        last = self._last
        if last is not None and monotonic >= self._next + LATE_MS:
            self._next = monotonic + INTERVAL_MS
            self._put(last)

    def leave(self) -> None:
        """Say that this process is gone, so nobody waits for its heartbeat to go stale."""
        self._last = None
        self._put(None)

    def _put(self, value: bytes | None) -> None:
        self._appender.append(Put(self._fleet, self._partition, self._key, value), self._done)

    def take_report(self) -> None:
        """Take the report of the last heartbeat if it has come; does not wait."""
        self._appender.poll(0)

    def _done(self, _error: Exception | None, _offset: int, _log_append_time: int) -> None:
        """A lost heartbeat is followed by the next; staleness is the readers' judgement."""


class Seen(NamedTuple):
    """A heartbeat and its LogAppendTime."""

    heartbeat: Heartbeat
    at: int


def read_fleet(reader: Reader, fleet: str, since: int) -> list[Seen]:
    """The latest heartbeat of every process that beat since then (the store's clock, ms) and has not left."""
    return fold_fleet(
        record
        for partition in range(reader.partitions(fleet))
        for record in reader.read(fleet, partition, since_ms=since)
        if record.timestamp()[1] >= since
    )


def fold_fleet(records: Iterable[Record]) -> list[Seen]:
    """The latest heartbeat of each process and queue. A worker on several queues beats for each under one key,
    and its one tombstone says that all of it left."""
    seen: dict[bytes, dict[tuple[str, ...], Seen]] = {}
    for record in records:
        key, value = record.key() or b"", record.value()
        if value is None:
            seen.pop(key, None)
        elif (heartbeat := _readable(value)) is not None:
            seen.setdefault(key, {})[heartbeat.queues] = Seen(heartbeat, record.timestamp()[1])
    return [one for of_process in seen.values() for one in of_process.values()]


def in_words(processes: Iterable[Seen]) -> str:
    """How many processes of each role; empty if there is none."""
    role_of = {
        seen.heartbeat.process: seen.heartbeat.role for seen in processes
    }  # a worker beats once a queue
    roles = sorted(Counter(role_of.values()).items())
    return " and ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in roles)


def _readable(value: bytes) -> Heartbeat | None:
    """None for versions to come."""
    try:
        return codec.HEARTBEAT.decode(value)
    except Undecodable:
        return None
