"""The in-memory twin of `KafkaScan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.adapters.memory_cluster import MemoryCluster, MemoryPartition
from pipeline.core.errors import StoreUnreachable
from pipeline.ports import CommittedOffset, Record, Span

LIMIT = 1_000


class MemoryScan:
    """`Scan` in memory."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def _log(self, topic: str, partition: int) -> MemoryPartition:
        if not self._cluster.reachable:
            raise StoreUnreachable("no broker can be reached")
        return self._cluster.partition(topic, partition)

    def span(self, topic: str, partition: int, since_ms: int | None = None) -> Span:
        log = self._log(topic, partition)
        start, end = log.start, log.last_stable
        if since_ms is not None:
            young = (e.offset() for e in log.entries if e is not None and e.timestamp()[1] >= since_ms)
            start = max(start, next(young, end))
        return Span(log.start, min(start, end), end)

    def decided(self, topic: str, partition: int) -> None:
        """Nothing is appended here while somebody waits."""

    def batches(self, topic: str, partition: int, start: int, end: int) -> Iterator[Sequence[Record]]:
        log = self._log(topic, partition)
        while start < end:
            records, start = log.read(start, LIMIT, stop=end)
            if not records and start >= min(end, log.last_stable):
                return
            if records:
                yield records

    def committed(self, group: str, topic: str, partitions: int) -> Mapping[int, CommittedOffset]:
        committed = self._cluster.group(group, topic).committed
        return {number: committed[number] for number in range(partitions) if number in committed}

    def partitions(self, topic: str) -> int:
        return self._cluster.partitions(topic)

    def close(self) -> None:
        return
