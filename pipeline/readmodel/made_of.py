"""What jobs are made of, read where it stands: many at a time, each record by its offset, however long the log is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from pipeline.core.errors import NotFound
from pipeline.core.job import Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.follower.values import readable_key_state, readable_run
from pipeline.ports import Reader, Record
from pipeline.readmodel.questions import Made, Position
from pipeline.readmodel.tale import Tale

AT_ONCE = 50
"""Runs, whose payloads are held until they are taken."""
NEAR = 1_000
"""Offsets that are read over to the next one that is wanted, rather than to begin anew there."""


class Wanted(NamedTuple):
    """A job as it was asked for, its occurrence, its highest run, and where its run stands: one place after the other,
    since a record may be gone from either."""

    id: str
    occurrence: str
    highest: int
    places: tuple[Position, ...]


def wanted(job_id: str, tale: Tale, names: Names, layout: Layout) -> Wanted:
    return Wanted(job_id, tale.id, tale.story().highest_run, tuple(_places(tale, names, layout)))


def _places(tale: Tale, names: Names, layout: Layout) -> Iterator[Position]:
    if tale.home_offset >= 0:
        yield Position(names.jobs, layout.home(tale.id), tale.home_offset)
    if tale.sent:
        yield Position(names.work(tale.queue), tale.partition, tale.sent[max(tale.sent)].offset)


def read_runs(
    each: Iterable[Wanted], reading: Callable[[], AbstractContextManager[Reader]]
) -> Iterator[Made]:
    """Not in their order. `reading` is free for others between one stretch and the next. StoreUnreachable."""
    elsewhere: list[Wanted] = []
    for stretch in stretches(each):
        with reading() as reader:
            found = _read(reader, stretch)
        for one in stretch:
            run, others = found.get(one.occurrence), one.places[1:]
            if run is None and others:
                elsewhere.append(one._replace(places=others))
            else:
                yield Made(one.id, run, one.highest)
    if elsewhere:
        yield from read_runs(elsewhere, reading)


def stretches(each: Iterable[Wanted]) -> Iterator[Sequence[Wanted]]:
    """By the first place of each, of which it has one: those of one partition that stand near each other."""
    stretch: list[Wanted] = []
    for one in sorted(each, key=lambda one: one.places[0]):
        place = one.places[0]
        if stretch:
            last = stretch[-1].places[0]
            if len(stretch) == AT_ONCE or place[:2] != last[:2] or place.offset - last.offset > NEAR:
                yield stretch
                stretch = []
        stretch.append(one)
    if stretch:
        yield stretch


def _read(reader: Reader, stretch: Sequence[Wanted]) -> dict[str, Run]:
    """By occurrence, of those whose record is still there."""
    at = {one.places[0].offset: one.occurrence for one in stretch}
    topic, partition, first = stretch[0].places[0]
    found: dict[str, Run] = {}
    try:
        for record in _records(reader, topic, partition, first, max(at)):
            occurrence = at.get(record.offset() or 0)
            run = None if occurrence is None else run_in(record)
            if run is not None and run.occurrence_id == occurrence:
                found[run.occurrence_id] = run
    except NotFound:  # a queue that is no more
        return {}
    reader.leave(topic, partition)
    return found


def _records(reader: Reader, topic: str, partition: int, start: int, last: int) -> Iterator[Record]:
    while start <= last and (records := reader.tail(topic, partition, start, NEAR)):
        yield from records
        start = (records[-1].offset() or 0) + 1


def run_in(record: Record) -> Run | None:
    """The run that a record holds, if only within the state of a key."""
    run = readable_run(record.value())
    if run is None and (state := readable_key_state(record.value())) is not None:
        return state.run
    return run
