"""What all partitions of one dispatcher share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.core.backup import Hold
from pipeline.core.ids import incarnation
from pipeline.core.job import GroupGuard
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.rates import Rates

LOOK_AGAIN_MS = 1_000


class Standing(NamedTuple):
    """What `meta` says of the installation as a whole."""

    era: int
    hold: Hold | None


@dataclass(slots=True, kw_only=True)
class Site:
    """What all partitions of one process share: names, layout, and the identity an index must have."""

    names: Names
    layout: Layout
    cluster_id: str
    topic_id: str
    stale_after_ms: int
    """Half of delete.retention: an index not synced for longer may have missed tombstones (H12)."""
    read_layout: Callable[[], Layout] | None = None
    """Reads the layout anew: queues and schemas are added while dispatchers run."""
    read_guards: Callable[[], Mapping[int, GroupGuard]] | None = None
    """Reads the guards of this group anew, by partition; StoreUnreachable after a second. None: there are none."""
    read_standing: Callable[[], Standing] | None = None
    """Reads era and hold anew; StoreUnreachable after a second. None: the first era, and no hold."""
    era: int = 1
    rates: Rates = field(default_factory=Rates)
    looked_at: int = 0

    def paced(self, queue: str) -> bool:
        """Whether runs to this queue may have to wait for a place in a rate."""
        return self.rates.catchup is not None or queue in self.rates.queues

    def look_again(self, now: int) -> bool:
        """Read the layout anew, at most once a second; whether it is worth asking it again."""
        if self.read_layout is None or now - self.looked_at < LOOK_AGAIN_MS:
            return False
        self.looked_at, self.layout = now, self.read_layout()
        return True

    def incarnation(self, offset: int) -> int:
        """That of what the command at this offset makes."""
        return incarnation(self.era, offset)
