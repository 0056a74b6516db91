"""How far a purge of a queue is, by what the group of its workers has committed (docs/queues.md)."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core import offset_metadata
from pipeline.core.errors import StopPartition
from pipeline.core.offset_metadata import OffsetMetadata
from pipeline.ports import GroupProgress, Reader


def left_of(reader: Reader, topic: str, progress: Sequence[GroupProgress], ends: Sequence[int]) -> int:
    """Runs below `ends` that had neither ended nor been started when each partition was last committed.

    Markers of transactions between them count too, so it may be a little too high; where nothing else is left they do
    not, so it comes to 0. StoreUnreachable.
    """
    places = enumerate(zip(progress, ends, strict=False))
    return sum(_left(reader, topic, partition, at, end) for partition, (at, end) in places)


def _left(reader: Reader, topic: str, partition: int, at: GroupProgress, end: int) -> int:
    begin, known = max(at.low, at.committed or 0), _known(at)
    started = {offset for offset, _ in known.started if begin <= offset < end}
    finished = [(max(first, begin), min(last + 1, end)) for first, last in known.finished]
    beyond = max([begin, *(stop for _, stop in finished), *(offset + 1 for offset in started)])
    if beyond < end:
        following = reader.tail(topic, partition, beyond, 1)
        if following and (following[0].offset() or 0) < end:
            beyond = end
    gone = len(started) + sum(max(0, stop - start) for start, stop in finished)
    return max(0, beyond - begin - gone)


def _known(at: GroupProgress) -> OffsetMetadata:
    try:
        return offset_metadata.decode(at.committed or 0, at.metadata)
    except StopPartition:  # of a later version: it shows a few too many
        return OffsetMetadata()
