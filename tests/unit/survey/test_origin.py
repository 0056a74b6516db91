"""Since when a store has been there."""

from __future__ import annotations

import pytest

from pipeline import codec
from pipeline.core.job import Event
from pipeline.core.keys import restored_key
from pipeline.ports import Put
from pipeline.survey import Origin, Window, origin
from tests.unit.survey.conftest import DUE, HOUR, T0, Yard

BEFORE = Window(from_ms=T0 - 3_600_000, to_ms=DUE)


def restored(yard: Yard, era: int, at: int) -> None:
    event = Event(id="backup", kind="restore", at=at, detail={"era": str(era), "created_at": str(at - 9)})
    yard.meta(restored_key(era), codec.EVENT.encode(event))


def test_a_store_began_with_its_first_record_if_none_is_from_before_the_window(yard: Yard) -> None:
    yard.fire(yard.run())
    assert origin(yard.ground, BEFORE) == Origin(T0, None)
    assert origin(yard.ground, HOUR) == Origin(None, None)


@pytest.mark.parametrize("topic", ["jobs", "events", "work"])
def test_what_was_deleted_or_compacted_away_was_there_once(yard: Yard, topic: str) -> None:
    yard.fire(yard.run())
    yard.skip(first="1", last="1", count="1")
    names = yard.store.names
    name = {"jobs": names.jobs, "events": names.events, "work": names.work("default")}[topic]
    logs = [yard.store.cluster.partition(name, number) for number in range(3 if topic == "work" else 24)]
    log = next(log for log in logs if log.end)
    if topic == "jobs":
        yard.store.cluster.append(Put(name, logs.index(log), b"j/other", None))
        log.entries[0] = None  # compaction takes records and leaves where the log starts
    else:
        log.start = log.end
    assert origin(yard.ground, BEFORE) == Origin(None, None)


def test_the_last_restore_counts_and_one_that_nobody_can_read_began_when_it_was_told(yard: Yard) -> None:
    restored(yard, 2, DUE - 5)
    restored(yard, 3, DUE + 7)
    yard.meta(b"restored/4", None)
    yard.meta(b"other", b"junk")
    assert origin(yard.ground, HOUR).restored_at == DUE + 7
    yard.store.clock.advance(60_000)
    yard.meta(restored_key(5), b"junk")
    assert origin(yard.ground, HOUR).restored_at == DUE + 60_000
