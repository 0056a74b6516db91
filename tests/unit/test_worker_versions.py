"""A run of a newer version: a worker that cannot read it leaves it to one that can, if it was announced; else it is
buried. What stands on acks in a newer version may tell of an attempt: its partition is left too (docs/versions.md)."""

from __future__ import annotations

from typing import Any

from unit.shop import NAMES, Shop, Told, steps, wait_out

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender
from pipeline.core import keys
from pipeline.core.job import AckState, Run
from pipeline.core.states import PartitionState
from pipeline.ports import Put
from pipeline.worker import Worker

LATER = b"\xc3\x01" + bytes.fromhex("00000000000000ff")[::-1] + b"what comes next"
ANNOUNCED = "00000000000000ff"


class Left(Told):
    """Remembers which offsets were left."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[int, int]] = []

    def on(self, action: str, **fields: Any) -> None:
        super().on(action, **fields)
        if action == "schema_unknown":
            assert "upgrade this process" in fields["reason"]
            self.left.append((fields["partition"], fields["offset"]))


def open_shop() -> tuple[Shop, Left]:
    shop, left = Shop(), Left()
    shop.told = left
    return shop, left


def fire_newer(shop: Shop) -> None:
    MemoryAppender(shop.cluster).append(Put(NAMES.work("default"), 0, b"newer", LATER))


def knowing(worker: Worker, *fingerprints: str) -> Worker:
    worker._announced = worker._intake._announced = fingerprints.__contains__
    return worker


def committed(shop: Shop) -> int:
    return shop.cluster.group(NAMES.worker_group("default"), NAMES.work("default")).committed[0].offset


def test_an_announced_version_is_left_to_a_newer_worker_and_all_else_goes_on() -> None:
    shop, told = open_shop()
    worker = knowing(shop.worker(), ANNOUNCED)
    shop.fire()
    fire_newer(shop)
    shop.fire()
    steps(worker, 12)
    assert len(shop.terminal()) == 2
    assert shop.dead() == []
    assert committed(shop) == 1, "not past the run that nobody here can read"
    assert told.left == [(0, 1)]


def test_the_next_owner_gets_it_and_nothing_that_finished() -> None:
    shop, told = open_shop()
    worker = knowing(shop.worker(), ANNOUNCED)
    fire_newer(shop)
    shop.fire()
    steps(worker, 12)
    worker.leave(0)
    worker.close()
    after = knowing(shop.worker("newer"), ANNOUNCED)
    steps(after, 12)
    assert told.left == [(0, 0), (0, 0)]
    assert len(shop.terminal()) == len(shop.started()) == 1


def test_a_version_that_nobody_announced_is_buried() -> None:
    shop, told = open_shop()
    worker = knowing(shop.worker())
    fire_newer(shop)
    steps(worker, 12)
    (letter,) = shop.dead()
    assert letter.reason == "undecodable"
    assert (told.left, committed(shop)) == ([], 1)
    assert not codec.known(ANNOUNCED)


# -- acks ---------------------------------------------------------------------------------------------------


def newer_ack(shop: Shop, run: Run, key: bytes | None = None) -> None:
    """The start of the run by a worker of the newer version, or another record of its."""
    key = key or keys.started_key(run.occurrence_id, run.run, 7)
    MemoryAppender(shop.cluster).append(Put(NAMES.acks("default"), 0, key, LATER))


def test_a_run_that_a_newer_worker_may_be_executing_is_not_started() -> None:
    shop, told = open_shop()
    newer_ack(shop, shop.fire())
    worker = knowing(shop.worker(), ANNOUNCED)
    steps(worker, 12)
    assert started(shop) == 0
    assert told.lines.count("partition_stopped") == 1
    assert worker.states == {0: PartitionState.CLOSED, 1: PartitionState.RUNNING}
    shop.fire()
    wait_out(shop, worker)
    assert (started(shop), told.lines.count("partition_stopped")) == (0, 1)


def started(shop: Shop) -> int:
    """Starts by workers of this version."""
    return sum(value != LATER for value in shop._values(NAMES.acks("default"), b"s/"))


def test_its_next_owner_that_can_read_it_takes_the_partition() -> None:
    """Here one to which it was never announced, for which it is garbage."""
    shop, _ = open_shop()
    newer_ack(shop, shop.fire())
    old = knowing(shop.worker(), ANNOUNCED)
    steps(old, 12)
    old.leave(0)
    old.close()
    steps(knowing(shop.worker("newer")), 12)
    assert [ack.state for ack in shop.terminal()] == [AckState.SUCCEEDED]


def test_what_runs_when_such_a_record_comes_is_finished_and_offered() -> None:
    """An offer of the newer version: who passed it over would run again what has an outcome."""
    shop, told = open_shop()
    worker = knowing(shop.worker(), ANNOUNCED)
    shop.executors["w"].hold_begun = True
    run = shop.fire()
    steps(worker, 12)
    assert len(shop.started()) == 1
    newer_ack(shop, run, keys.offered_key(run.occurrence_id, 1, 7, 0))
    wait_out(shop, worker, 1_000)
    assert told.lines.count("partition_stopped") == 1
    shop.executors["w"].hold_begun = False
    steps(worker, 12)
    assert (told.lines.count("offered"), shop.terminal()) == (1, [])
    worker.leave(0)
    worker.close()
    after = knowing(shop.worker("newer"))
    wait_out(shop, after)
    assert [(ack.state, ack.worker) for ack in shop.terminal()] == [(AckState.SUCCEEDED, "w")]
    assert len(shop.started()) == 1


def test_an_ack_of_a_version_that_nobody_announced_is_passed_over() -> None:
    shop, told = open_shop()
    newer_ack(shop, shop.fire())
    steps(knowing(shop.worker()), 12)
    assert [ack.state for ack in shop.terminal()] == [AckState.SUCCEEDED]
    assert "partition_stopped" not in told.lines
