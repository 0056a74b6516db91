"""A store in memory as a source: for tests, which need no broker to ask questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_follow import MemoryFollow
from pipeline.core.errors import StoreUnreachable
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Clock, GroupProgress
from pipeline.readmodel.forgetting import Retention
from pipeline.readmodel.model import ReadModel
from pipeline.readmodel.source import Connect, Source


def memory_connector(
    cluster: MemoryCluster, names: Names, layout: Callable[[], Layout], clock: Clock
) -> Connect:
    """Reaches it while it is reachable."""

    def connect() -> Source:
        if not cluster.reachable:
            raise StoreUnreachable("no broker can be reached")

        def identities(topics: Sequence[str]) -> Mapping[str, str]:
            return {
                topic: str(id(cluster.partition(topic, 0))) for topic in topics if cluster.partitions(topic)
            }

        def progress(group: str, topic: str, partitions: int) -> list[GroupProgress]:
            committed = cluster.group(group, topic).committed
            logs = [cluster.partition(topic, number) for number in range(partitions)]
            offsets = (committed.get(number) for number in range(partitions))
            return [
                GroupProgress(None, log.start, log.end)
                if at is None
                else GroupProgress(at.offset, log.start, log.end, at.metadata)
                for at, log in zip(offsets, logs, strict=True)
            ]

        return Source(
            names=names,
            clock=clock,
            layout=layout(),
            reader=MemoryReader(cluster),
            lag_reader=MemoryReader(cluster),
            follow=MemoryFollow(cluster),
            identities=identities,
            group_progress=progress,
            close=lambda: None,
        )

    return connect


def memory_readmodel(
    cluster: MemoryCluster,
    names: Names,
    layout: Layout,
    clock: Clock,
    path: Path,
    retention: Retention | None = None,
) -> ReadModel:
    """A read model of a cluster in memory, in the directory `path`."""
    return ReadModel(path, memory_connector(cluster, names, lambda: layout, clock), retention)
