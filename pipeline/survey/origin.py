"""Since when a store has been there: what happened before stands on no topic of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.keys import restored_key
from pipeline.ports import Record
from pipeline.survey.ground import Ground
from pipeline.survey.reading import parts
from pipeline.survey.window import Filter, Window

_RESTORED = restored_key(0)[:-1]
"""How the keys of the records on `meta` begin that tell of a restore (pipeline.backup.restore)."""


class Origin(NamedTuple):
    """Instants in epoch ms, by the store's clock."""

    began_at: int | None
    """When its first record was appended; None: some were before the window begins."""
    restored_at: int | None
    """When it was last restored from a backup; None: never. What fired before that is on no topic of it."""


def origin(ground: Ground, window: Window) -> Origin:
    """Where the store comes from, as far as it matters to this window. StoreUnreachable, NotFound."""
    scan, meta = ground.scan, ground.names.meta
    span = scan.span(meta, 0)
    restores = (
        at
        for batch in scan.batches(meta, 0, span.start, span.end)
        for record in batch
        if (record.key() or b"").startswith(_RESTORED) and (at := _restored_at(record)) is not None
    )
    return Origin(_began_at(ground, window), max(restores, default=None))


def _restored_at(record: Record) -> int | None:
    value = record.value()
    if value is None:
        return None
    try:
        return codec.EVENT.decode(value).at
    except Undecodable:
        return record.timestamp()[1]


def _began_at(ground: Ground, window: Window) -> int | None:
    """Compaction and retention take the oldest records: only where nothing was taken, the first one is the first."""
    if any(_earlier(ground, topic, number, window) for topic, number in _logs(ground)):
        return None
    firsts = (_first(ground, topic, number) for topic, number in _logs(ground))
    return min((at for at in firsts if at is not None), default=None)


def _logs(ground: Ground) -> Iterator[tuple[str, int]]:
    names = ground.names
    yield names.meta, 0
    for home in range(ground.layout.partitions):
        yield names.jobs, home
        yield names.events, home
    for queue, number in parts(ground, Filter()):
        yield names.work(queue), number


def _earlier(ground: Ground, topic: str, number: int, window: Window) -> bool:
    """Whether there is, or was, a record from before the window."""
    span = ground.scan.span(topic, number, window.from_ms)
    return span.low > 0 or span.start > 0


def _first(ground: Ground, topic: str, number: int) -> int | None:
    span = ground.scan.span(topic, number)
    for batch in ground.scan.batches(topic, number, span.start, span.end):
        return batch[0].timestamp()[1]
    return None
