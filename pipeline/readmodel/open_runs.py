"""Runs that have not ended, by their places on the work topics: how many wait, since when the oldest is there, and
those that nobody will end.

The fold keeps the places, so all of this is as exact as the rows are fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.body import given_up, open_run
from pipeline.readmodel.rows import head_of, open_key, read_open
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.words import QUEUE

AT_ONCE = 1_000


class Ended(NamedTuple):
    """What the group of a queue's workers says of a partition: every run below the offset `below` has ended, by the
    acks below `acks`, or stood below `low`, where the topic begins by now."""

    below: int
    low: int
    acks: int


def waiting(sheet: Sheet, queue: str) -> int:
    """Runs that were emitted and that nobody has started."""
    number = sheet.words.known(QUEUE, queue)
    return 0 if number is None else sheet.totals.waiting[number]


def oldest(sheet: Sheet, queue: str, partitions: int, below: Callable[[int], int]) -> int | None:
    """When the oldest run was emitted that has not ended, started or not (epoch ms). `below(partition)`: all in front
    of that has, so the graves there are not walked."""
    number = sheet.words.known(QUEUE, queue)
    if number is None:
        return None
    firsts = (
        next(_open(sheet.rows, number, partition, below(partition), _END), None)
        for partition in range(partitions)
    )
    return min((since for _, since, _ in filter(None, firsts)), default=None)


_END = (1 << 63) - 1


def _open(
    rows: RocksRows, queue: int, partition: int, start: int, stop: int
) -> Iterator[tuple[int, int, bytes]]:
    """Offset, since when and occurrence of each."""
    low, high = open_key(queue, partition, start), open_key(queue, partition, stop)
    return (read_open(key, value) for key, value in rows.scan(low, high))


def any_open(rows: RocksRows, queue: int, partition: int, below: int) -> bool:
    """Whether any run in front of that offset has not ended, as far as the rows tell."""
    return next(_open(rows, queue, partition, 0, below), None) is not None


def give_up(sheet: Sheet, queue: str, partition: int, ended: Ended, now: int) -> tuple[int, int]:
    """Of runs that have ended by the word of their group, though no ack is there any more, and of those that the topic
    has deleted: they wait no longer, and are forgotten like what ended at `now`. Some hundreds at a time: how many, and
    how many of them were deleted before they had ended. Only once all acks below `ended.acks` are folded."""
    number = sheet.words.known(QUEUE, queue)
    if number is None:
        return 0, 0
    given, unseen = 0, 0
    for offset, _, id_ in islice(_open(sheet.rows, number, partition, 0, ended.below), AT_ONCE):
        row = sheet.job(id_)
        stands = None if row is None else open_run(row, head_of(row))
        if (
            row is not None
            and stands is not None
            and (stands.partition, stands.offset) == (partition, offset)
        ):
            sheet.put_job(id_, given_up(row, now))
            given += 1
            unseen += offset < ended.low
    return given, unseen
