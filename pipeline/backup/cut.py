"""Where a backup is cut: positions at which no transaction is open, in the order that lets nothing be missing (see the
package)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import CommittedOffset


class Positions(Protocol):
    """Asks a store where its logs and groups stand."""

    def committed(self, group: str, topic: str, partitions: int) -> Sequence[CommittedOffset | None]:
        """What the group has committed of each partition, None: nothing. StoreUnreachable."""
        ...

    def ends(self, topic: str, partitions: int) -> Sequence[int]:
        """The end of each partition as of now, once no transaction is open below it. Refused, naming the partition, if
        one stays open; StoreUnreachable."""
        ...


class Span(NamedTuple):
    """Of a partition of `jobs`: removals count below `settled`, additions below `end`."""

    settled: int
    end: int


class Reach(NamedTuple):
    """Of a partition of `work`: what its workers have committed, and up to where its acks count if they have forgotten
    that; up to where all was emitted before the first edge; and the end."""

    committed: CommittedOffset | None
    acked: int
    sure: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Positions by partition; of `work` by queue."""

    jobs: Sequence[Span]
    work: Mapping[str, Sequence[Reach]]

    def as_json(self) -> dict[str, object]:
        """For the manifest: `[settled, end]`, and `[committed or null, acked, sure, end]`."""
        work = {
            queue: [[reach.committed and reach.committed.offset, *reach[1:]] for reach in reaches]
            for queue, reaches in self.work.items()
        }
        return {"jobs": [list(span) for span in self.jobs], "work": work}


def take_cut(positions: Positions, names: Names, layout: Layout) -> Cut:
    """Refused, StoreUnreachable."""
    queues = sorted(layout.queues.items())
    committed = {
        queue: positions.committed(names.worker_group(queue), names.work(queue), count)
        for queue, count in queues
    }
    acked = {queue: positions.ends(names.acks(queue), count) for queue, count in queues}
    sure = {queue: positions.ends(names.work(queue), count) for queue, count in queues}
    settled = positions.ends(names.jobs, layout.partitions)
    ends = positions.ends(names.jobs, layout.partitions)
    work = {queue: positions.ends(names.work(queue), count) for queue, count in queues}
    places = {
        queue: zip(*(of[queue] for of in (committed, acked, sure, work)), strict=True) for queue in work
    }
    return Cut(
        jobs=[Span(*edges) for edges in zip(settled, ends, strict=True)],
        work={queue: [Reach(*place) for place in found] for queue, found in places.items()},
    )
