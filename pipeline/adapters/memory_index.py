"""In-memory twin of the due index. It checks the contract of `Delta` that RocksDB cannot afford to check."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice

from pipeline.ports import Action, Delta, Entry, Position

MEMORY_MS = 30 * 60 * 1000
"""Ended ids are remembered for this much log time (DESIGN §4, fired memory)."""


class _Partition:
    def __init__(self) -> None:
        self.position: Position | None = None
        self.entries: dict[bytes, Entry] = {}
        self.order: list[tuple[int, bytes]] = []
        self.facts: dict[bytes, bytes] = {}
        self.ended: dict[bytes, tuple[int, bytes]] = {}

    def copy(self) -> _Partition:
        copied = _Partition()
        copied.position = self.position
        copied.entries, copied.order = self.entries.copy(), self.order.copy()
        copied.facts, copied.ended = self.facts.copy(), self.ended.copy()
        return copied

    def replace(self, key: bytes, replaced: int | None, entry: Entry | None) -> None:
        old = self.entries.pop(key, None)
        if (None if old is None else old.fire_at) != replaced:
            raise ValueError(f"delta replaces {key!r} at {replaced}, the index has {old}")
        if old is not None and old.action != Action.HOLD:
            del self.order[bisect_left(self.order, (old.fire_at, key))]
        if entry is not None:
            self.entries[key] = entry
            if entry.action != Action.HOLD:
                insort(self.order, (entry.fire_at, key))


class MemoryIndex:
    """`Index` in memory; nothing survives `close`, as if the state directory were lost."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def _at(self, partition: int) -> _Partition:
        found = self._partitions.get(partition)
        return found if found is not None else self._partitions.setdefault(partition, _Partition())

    def position(self, partition: int) -> Position | None:
        return self._at(partition).position

    def entry(self, partition: int, record_key: bytes) -> Entry | None:
        return self._at(partition).entries.get(record_key)

    def fact(self, partition: int, key: bytes) -> bytes | None:
        return self._at(partition).facts.get(key)

    def ended(self, partition: int, id_: bytes, log_time: int) -> bytes | None:
        at, how = self._at(partition).ended.get(id_, (0, None))
        return how if at > log_time - MEMORY_MS else None

    def size(self, partition: int) -> int:
        return sum(key[:1] in b"jark" for key in self._at(partition).entries)

    def due(
        self, partition: int, until: int, limit: int, room: int = 1 << 62, since: int | None = None
    ) -> list[Entry]:
        here = self._at(partition)
        start = 0 if since is None else bisect_left(here.order, since, key=lambda row: row[0])
        stop = bisect_right(here.order, until, key=lambda row: row[0])
        found: list[Entry] = []
        for _, key in here.order[start : min(stop, start + limit)]:
            room -= len(here.entries[key].value)
            if room < 0 and found:
                break
            found.append(here.entries[key])
        return found

    def overdue(self, partition: int, until: int, limit: int) -> int:
        return min(bisect_right(self._at(partition).order, until, key=lambda row: row[0]), limit)

    def footprint(self) -> int:
        return sum(len(e.value) for here in self._partitions.values() for e in here.entries.values())

    def next_due(self, partition: int) -> int | None:
        order = self._at(partition).order
        return order[0][0] if order else None

    def entries(self, partition: int, after: bytes | None, limit: int) -> list[Entry]:
        here = self._at(partition)
        keys = (key for key in sorted(here.entries) if after is None or key > after)
        return [here.entries[key] for key in islice(keys, limit)]

    def apply(self, partition: int, delta: Delta) -> None:
        here = self._at(partition)
        for key, (replaced, entry) in delta.entries.items():
            here.replace(key, replaced, entry)
        for key, value in delta.facts.items():
            if value is None:
                here.facts.pop(key, None)
            else:
                here.facts[key] = value
        for id_, end in delta.ended.items():
            if id_ not in here.ended or here.ended[id_][0] <= end[0]:
                here.ended[id_] = end
        if delta.position is not None:
            here.position = delta.position

    def copy(self) -> MemoryIndex:
        """As it is now, independent of what follows: a backup of the state directory."""
        copied = MemoryIndex()
        copied._partitions = {number: here.copy() for number, here in self._partitions.items()}
        return copied

    def wipe(self, partition: int) -> None:
        self._partitions.pop(partition, None)

    def close(self) -> None:
        self._partitions.clear()
