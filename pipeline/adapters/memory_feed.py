"""The in-memory twin of `KafkaFeed`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.ports import Record

LIMIT = 1_000
WAIT_S = 0.001


class MemoryFeed:
    """News of one topic in memory. While the cluster is not reachable nothing comes, and nothing is lost."""

    def __init__(self, cluster: MemoryCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._next: dict[int, int] = {}

    @property
    def following(self) -> frozenset[int]:
        return frozenset(self._next)

    def follow(self, partitions: frozenset[int]) -> None:
        if self._cluster.reachable:
            for number in partitions - self._next.keys():
                self._next[number] = self._cluster.partition(self._topic, number).last_stable

    def poll(self, timeout_ms: int) -> Sequence[Record]:
        deadline = time.monotonic() + timeout_ms / 1000
        while not (records := self._take()) and time.monotonic() < deadline:
            time.sleep(WAIT_S)
        return records

    def _take(self) -> list[Record]:
        records: list[Record] = []
        for number, offset in self._next.items() if self._cluster.reachable else ():
            found, self._next[number] = self._cluster.partition(self._topic, number).read(offset, LIMIT)
            records += found
        return records

    def close(self) -> None:
        return
