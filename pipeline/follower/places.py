"""Reading where a record must be, so that "not found" is never said of what could not be read.

A broker that has just come back may not know its topics for a moment, and a transaction that is left open hides all
that was appended after it. Neither says anything about a job.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.errors import NotFound, StoreUnreachable
from pipeline.core.layout import Layout
from pipeline.ports import Reader, Record

DECIDED_MS = 12_000
"""How long a job that cannot be found is waited for while a transaction hides what was appended last: one that its
owner left behind, killed or cut off by a restart of the store, is ended after 10 s."""


def known_to_be(
    reader: Reader, topic: str, partition: int, start: int | None = None, since_ms: int | None = None
) -> Iterator[Record]:
    """`Reader.read` of a partition that the layout names; StoreUnreachable if a broker says that there is none."""
    try:
        yield from reader.read(topic, partition, start, since_ms)
    except NotFound as error:
        raise gone(error) from error


def gone(error: NotFound) -> StoreUnreachable:
    """What it means that the store does not have what the layout names."""
    return StoreUnreachable(f"{error}, though the layout names it: the store may be coming back, ask again")


def is_place(layout: Layout, queue: str, partition: int) -> bool:
    """Whether the layout names this partition of the queue's topics."""
    return 0 <= partition < layout.queues.get(queue, 0)
