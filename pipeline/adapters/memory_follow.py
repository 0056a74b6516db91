"""The in-memory twin of `KafkaFollow`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.core.errors import RebuildPartition, StoreUnreachable
from pipeline.ports import Record

Place = tuple[str, int]
WAIT_S = 0.001


class MemoryFollow:
    """`readmodel.source.Follow` in memory."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._next: dict[Place, int] = {}

    def since(self, topic: str, partition: int, at_ms: int) -> int:
        log = self._cluster.partition(topic, partition)
        young = (e.offset() for e in log.entries if e is not None and e.timestamp()[1] >= at_ms)
        return next(young, log.last_stable)

    def partitions(self, topic: str) -> int:
        return self._cluster.partitions(topic)

    def follow(self, starts: Mapping[Place, tuple[int, int | None]]) -> None:
        for place, (offset, _) in starts.items():
            self._next[place] = self._cluster.partition(*place).start if offset < 0 else offset

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        deadline = time.monotonic() + timeout_ms / 1000
        while not (records := self._take(limit)) and time.monotonic() < deadline:
            time.sleep(WAIT_S)
        return records

    def _take(self, limit: int) -> list[Record]:
        if not self._cluster.reachable:
            raise StoreUnreachable("no broker can be reached")
        records: list[Record] = []
        for (topic, partition), offset in self._next.items():
            log = self._cluster.partition(topic, partition)
            if not log.start <= offset <= log.end:
                raise RebuildPartition(
                    partition, f"of {topic}: {offset} is not within {log.start} to {log.end}"
                )
            if len(records) < limit:
                found, self._next[topic, partition] = log.read(offset, limit - len(records))
                records += found
        return records

    def positions(self) -> Mapping[Place, int]:
        return self._next

    def left(self) -> Mapping[Place, int]:
        ends = {place: self._cluster.partition(*place).last_stable for place in self._next}
        return {place: ends[place] - offset for place, offset in self._next.items() if offset < ends[place]}

    def close(self) -> None:
        return
