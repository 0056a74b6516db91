"""A run of a newer version: a worker that cannot read it leaves it to one that can, if it was announced; else it is
buried (docs/versions.md)."""

from __future__ import annotations

from typing import Any

from unit.shop import NAMES, Shop, Told, steps

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender
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
    worker._intake._announced = fingerprints.__contains__
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
