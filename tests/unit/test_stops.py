"""Stops of a work partition: whom they hit, and how long they matter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.core.errors import Undecodable
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Event, Run
from pipeline.core.keys import stopped_key
from pipeline.ports import Put
from pipeline.stops import LIMIT, MARGIN_MS, NEVER, Stops

ID = anonymous_id(0, 1)
RUN = Run(
    job_id=ID, occurrence_id=ID, due_at=0, run=2, queue="default", handler="h", created_at=0, nominal_at=0,
    idempotency_key=ID, payload=b"{}",
)  # fmt: skip


def record(
    run: int | None = 2, *, id_: str = ID, offset: int = 7, at: int = 1_000, gone: bool = False
) -> MemoryRecord:
    event = Event(id=id_, kind="stopped", at=at, occurrence_id=id_, run=run)
    value = None if gone else codec.EVENT.encode(event)
    return MemoryRecord(Put("t.acks.default", 0, stopped_key(id_), value), offset, at, None)


@pytest.mark.parametrize(("run", "hit"), [(1, False), (2, True), (3, True), (None, True)])
def test_a_stop_hits_the_runs_up_to_its_own(run: int | None, hit: bool) -> None:
    stops = Stops()
    stops.learn(record(run))
    assert stops.hits(RUN) is hit
    assert not stops.hits(replace(RUN, occurrence_id=anonymous_id(0, 2)))


def test_its_tombstone_lifts_it() -> None:
    stops = Stops()
    stops.learn(record())
    stops.learn(record(gone=True))
    assert not stops.hits(RUN)
    assert (len(stops), stops.since) == (0, NEVER)


def test_it_is_kept_for_the_next_owner_until_all_that_is_unfinished_is_younger() -> None:
    stops = Stops()
    stops.learn(record(at=1_000, offset=7))
    stops.forget(1_000 + MARGIN_MS)
    assert stops.since == 7
    stops.forget(1_001 + MARGIN_MS)
    assert stops.since == NEVER


def test_a_stop_under_another_key_is_none() -> None:
    event = Event(id="x", kind="stopped", at=0, occurrence_id=anonymous_id(0, 9))
    for value in (codec.EVENT.encode(event), b"\xff"):
        with pytest.raises(Undecodable):
            Stops().learn(MemoryRecord(Put("t", 0, stopped_key(ID), value), 0, 0, None))


def test_the_oldest_gives_way_when_there_are_too_many() -> None:
    stops = Stops()
    for number in range(LIMIT + 1):
        stops.learn(record(id_=anonymous_id(0, number), offset=number))
    assert len(stops) == LIMIT
    assert stops.since == 1
