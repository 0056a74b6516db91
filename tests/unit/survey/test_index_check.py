"""An index beside its log."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryClock
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.core import keys
from pipeline.core.ids import anonymous_id
from pipeline.core.job import LATEST, Command, ReplayBatch, Run
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.emission import Emission
from pipeline.partition import Partition
from pipeline.portion import Portion
from pipeline.ports import Action, Delta, Entry, Put
from pipeline.survey import index_check
from pipeline.survey.index_check import AT_ONCE, Comparison, compare, trusted
from tests.unit.owner import LAYOUT, NAMES, NOW, SITE, run_of

HOME = 0
ROUND = 6 * 60_000
"""After so long the buckets come round to the same partition of a ring."""
FIRST = (NOW // ROUND + 1) * ROUND


class Desk:
    """An owner whose log stands in a cluster."""

    def __init__(self) -> None:
        self.clock = MemoryClock(NOW)
        self.cluster = MemoryCluster(self.clock.now)
        self.cluster.create_topic(NAMES.jobs, LAYOUT.partitions)
        self.index = MemoryIndex()
        self.partition = Partition(HOME, site=SITE, index=self.index)
        self.log = self.cluster.partition(NAMES.jobs, HOME)

    def put(self, key: bytes, value: bytes | None) -> None:
        self.cluster.append(Put(NAMES.jobs, HOME, key, value))

    def jobs(self, count: int) -> list[Run]:
        """So many, all at home here."""
        found: list[Run] = []
        n = 0
        while len(found) < count:
            n += 1
            due_at = FIRST + ROUND * (n % 5)
            id_ = anonymous_id(due_at, n)
            if LAYOUT.home(id_) == HOME:
                found.append(run_of(id_, due_at=due_at))
                self.put(keys.job_key(id_), codec.RUN.encode(found[-1]))
        return found

    def read(self) -> None:
        records, position = self.log.read(self.partition.next_offset, 100_000)
        self.partition.ingest(records, position, NOW)

    def commit(self, entries: Iterable[Entry]) -> Emission:
        """Not read back."""
        emission = self.partition.emit(entries, self.clock.now())
        for put in emission.puts:
            if put.topic == NAMES.jobs:
                self.cluster.append(put)
        self.partition.applied(emission)
        return emission

    def due(self, until: int = FIRST) -> list[Entry]:
        return self.index.due(HOME, until, 1_000)

    def change(self, *pairs: tuple[Entry, Entry | None]) -> None:
        """Behind the log's back."""
        delta = Delta()
        for old, new in pairs:
            delta.remove(old)
            if new is not None:
                delta.put(new, old)
        self.index.apply(HOME, delta)

    def compare(self) -> Comparison:
        position = self.index.position(HOME)
        assert position is not None
        return compare(HOME, self.index, MemoryIndex(), position, SITE, MemoryScan(self.cluster), NOW)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_an_index_at_rest_is_its_log(desk: Desk) -> None:
    desk.jobs(20)
    desk.read()
    found = desk.compare()
    assert (found.differing, found.in_motion, found.unequal) == (0, 0, [])
    assert found.index == found.log
    assert sum(each.count for each in found.index.values()) == 20
    assert len(found.index) == 5


def test_records_behind_its_position_are_in_motion(desk: Desk) -> None:
    desk.jobs(10)
    desk.read()
    desk.jobs(15)  # the first ten of them again
    found = desk.compare()
    assert (found.differing, found.in_motion) == (0, 15)
    assert sum(each.count for each in found.index.values()) == 0


def test_own_writes_that_have_not_come_back_are_in_motion(desk: Desk) -> None:
    runs = desk.jobs(30)
    desk.read()
    fired = desk.commit(desk.due()).fired
    assert fired
    found = desk.compare()
    assert (found.differing, found.in_motion) == (0, fired)
    assert sum(each.count for each in found.index.values()) == len(runs) - fired
    desk.read()
    assert (desk.compare().differing, desk.compare().in_motion) == (0, 0)


def test_what_commands_change_is_in_motion_too(desk: Desk) -> None:
    run, *_ = desk.jobs(5)
    for n, (verb, fields) in enumerate([("reschedule", {"due_at": NOW + 999_000}), ("cancel", {})]):
        command = Command(
            command_id=f"{n:08x}-0000-4000-8000-000000000000", verb=verb, job_id=run.job_id, **fields
        )
        desk.put(keys.command_key(command.command_id), codec.COMMAND.encode(command))
        desk.read()
        assert desk.compare().differing == 0
        desk.commit(desk.due(NOW))
        assert desk.compare().differing == 0
        desk.read()
        assert (desk.compare().differing, desk.compare().in_motion) == (0, 0)


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_compacted_meanwhile_does_not_matter(desk: Desk, compacted: bool) -> None:
    desk.jobs(30)
    desk.read()
    desk.commit(desk.due())
    if compacted:
        desk.log.compact()
    assert desk.compare().differing == 0
    desk.read()
    assert desk.compare().differing == 0


def first(desk: Desk) -> Entry:
    return desk.index.entries(HOME, None, 1)[0]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda entry: None, "the log has it, the index has not"),
        (lambda entry: entry._replace(value=entry.value + b"x"), "value differ"),
        (lambda entry: entry._replace(fire_at=entry.fire_at + 60_000), "fire_at differ"),
        (lambda entry: entry._replace(detail="default/99"), "detail differ"),
        (lambda entry: entry._replace(action=Action.DROP), "action differ"),
    ],
)
def test_a_damaged_index_is_found_out(desk: Desk, change: Any, detail: str) -> None:
    desk.jobs(20)
    desk.read()
    entry = first(desk)
    desk.change((entry, change(entry)))
    found = desk.compare()
    assert found.differing == 1
    assert found.unequal
    assert (found.differences[0].record_key, found.differences[0].detail) == (entry.record_key, detail)


def test_an_entry_that_the_log_has_not_is_found_out(desk: Desk) -> None:
    desk.jobs(20)
    desk.read()
    extra = first(desk)._replace(record_key=keys.job_key(anonymous_id(NOW + 1, 7)))
    delta = Delta()
    delta.put(extra, None)
    desk.index.apply(HOME, delta)
    found = desk.compare()
    assert [each.detail for each in found.differences] == ["the index has it, the log has not"]


def test_the_first_differences_are_told_and_all_are_counted(desk: Desk) -> None:
    desk.jobs(50)
    desk.read()
    desk.change(*((entry, None) for entry in desk.index.entries(HOME, None, 100)))
    found = desk.compare()
    assert (found.differing, len(found.differences)) == (50, 20)


def test_a_place_in_a_rate_is_the_indexs_own(desk: Desk) -> None:
    desk.jobs(20)
    desk.read()
    entry = first(desk)
    desk.change((entry, entry._replace(action=Action.GRANTED, fire_at=entry.fire_at + 700)))
    assert desk.compare().differing == 0
    granted = first(desk)
    desk.change((granted, granted._replace(value=b"other")))
    assert desk.compare().differing == 1


def test_how_far_a_replay_is_stands_in_the_index_alone(desk: Desk) -> None:
    run = desk.jobs(1)[0]
    batch = codec.REPLAY_BATCH.encode(ReplayBatch(runs=(codec.RUN.encode(run),) * 3, dead=False))
    command = Command(command_id=str(uuid.uuid4()), verb="replay", payload=batch)
    desk.put(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    desk.read()
    entry = first(desk)
    assert entry.action == Action.REPLAY
    begun = Portion.of(entry.detail)._replace(left=1, counts={"replayed": 2})
    desk.change((entry, entry._replace(detail=begun.detail, fire_at=entry.fire_at + 700)))
    assert desk.compare().differing == 0
    desk.change((first(desk), entry._replace(value=b"other")))
    assert desk.compare().differing == 1


def test_what_nobody_takes_is_put_off_in_the_index_alone(desk: Desk) -> None:
    desk.put(b"j/what", b"junk")
    desk.read()
    (entry,) = desk.due(NOW)
    assert [*desk.compare().index] == [AT_ONCE]
    desk.change((entry, entry._replace(fire_at=LATEST)))
    assert desk.compare().differing == 0


def test_when_a_schedule_is_looked_at_again_is_the_indexs_own(desk: Desk) -> None:
    name = next(f"n{n}" for n in range(1_000) if LAYOUT.home_of_name(f"n{n}") == HOME)
    spec = ScheduleSpec(id=name, handler="h", every_ms=60_000)
    state = Schedule(
        incarnation=0, revision=1, spec=spec, created_at=NOW, changed_at=NOW, last_nominal=NOW,
        next_nominal=NOW + 60_000, next_due=NOW + 60_000,
    )  # fmt: skip
    desk.put(keys.schedule_key(name), codec.SCHEDULE.encode(state))
    desk.read()
    entry = first(desk)
    desk.change((entry, entry._replace(fire_at=entry.fire_at + 1_000)))
    assert desk.compare().differing == 0
    desk.change((first(desk), None))
    assert desk.compare().differing == 1


def test_an_index_of_another_log_or_too_old_is_not_looked_at(desk: Desk) -> None:
    desk.jobs(1)
    desk.read()
    position = desk.index.position(HOME)
    assert position is not None
    assert trusted(position, SITE, NOW)
    assert not trusted(position, SITE, NOW + SITE.stale_after_ms)
    assert not trusted(position, replace(SITE, topic_id="new"), NOW)
    assert not trusted(position, replace(SITE, cluster_id="new"), NOW)


def test_what_was_put_once_and_ended_once_is_not_folded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = desk.jobs(20)
    desk.read()
    desk.clock.advance(FIRST + ROUND - desk.clock.now())
    fired = desk.commit(desk.due(FIRST + ROUND))
    desk.read()
    late = [run for run in runs if run.due_at == FIRST][:2]
    for run in late:  # copies that were refused, one of them ended again
        desk.put(keys.job_key(run.job_id), codec.RUN.encode(run))
    desk.read()
    desk.commit(desk.due(1_000)[:1])
    desk.read()
    folded: list[bytes] = []

    class Watched(Partition):
        def ingest(self, records: Any, position: int, now: int) -> None:
            folded.extend(record.key() for record in records)
            super().ingest(records, position, now)

    monkeypatch.setattr(index_check, "Partition", Watched)
    found = desk.compare()
    assert (found.differing, found.in_motion) == (0, 0)
    assert sum(each.count for each in found.index.values()) == 20 - len(fired.puts) // 2 + 1
    ended = {put.key for put in fired.puts if put.value is None}
    assert len(ended) >= 4
    assert ended.intersection(folded) == {keys.job_key(run.job_id) for run in late}


def test_a_log_that_was_cut_below_the_position_is_read_to_its_end(desk: Desk) -> None:
    desk.jobs(10)
    desk.read()
    del desk.log.entries[7:]
    assert desk.compare().differing == 3
