"""Where a read model reads from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Clock, GroupProgress, Reader, Record

Place = tuple[str, int]
"""A topic and the number of a partition."""
Start = tuple[int, int | None]
"""The next offset of a partition, negative: from its beginning; and the leader epoch of the record before it."""


class Follow(Protocol):
    """Partitions followed from given offsets, read_committed, outside any group. One thread."""

    def since(self, topic: str, partition: int, at_ms: int) -> int:
        """The first offset at or after that LogAppendTime; the end if there is none. StoreUnreachable, NotFound."""
        ...

    def partitions(self, topic: str) -> int:
        """0 if there is no such topic. StoreUnreachable."""
        ...

    def follow(self, starts: Mapping[Place, Start]) -> None:
        """These too, each from its offset."""
        ...

    def poll(self, limit: int, timeout_ms: int) -> Sequence[Record]:
        """What has come, each record once, waiting at most `timeout_ms` for the first. Raises RebuildPartition if the
        log does not hold a position; StoreUnreachable while no broker answers."""
        ...

    def positions(self) -> Mapping[Place, int]:
        """The next offset of each, behind the markers that were passed."""
        ...

    def left(self) -> Mapping[Place, int | None]:
        """How many offsets are left of those that are not at their end; None: nobody knows yet."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A store that was reached. Everything raises StoreUnreachable.

    Each of the readers is for one thread at a time. `identities` tells which incarnation of each of these topics there
    is: another one after it was made anew; a topic that is not there is left out. `group_progress(group, topic,
    partitions)` is by partition.
    """

    names: Names
    clock: Clock
    layout: Layout
    reader: Reader
    lag_reader: Reader
    follow: Follow
    identities: Callable[[Sequence[str]], Mapping[str, str]]
    group_progress: Callable[[str, str, int], list[GroupProgress]]
    close: Callable[[], None]
    """Of the readers and the clock."""
    reading: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever uses `reader`, and while this is closed."""
    lagging: threading.Lock = field(default_factory=threading.Lock)
    """The same of `lag_reader`."""


Connect = Callable[[], Source]
"""Reaches the store. Raises StoreUnreachable; Refused if it has no topics of ours."""
