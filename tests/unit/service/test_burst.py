"""`--burst`: when there is nothing left to do."""

from __future__ import annotations

from dataclasses import dataclass

from unit.shop import Shop, steps

from pipeline.service.burst import SETTLE_S, Burst


@dataclass
class FakeWorker:
    idle: bool = True
    parked: int = 0


class House:
    def __init__(self) -> None:
        self.now = 100.0
        self.burst = Burst(lambda: self.now)

    def over(self, *workers: FakeWorker, ready: bool = True, after: float = 0.0) -> bool:
        self.now += after
        return self.burst.over(workers, ready=ready, finished=7)


def test_it_is_over_once_all_have_been_idle_for_a_while() -> None:
    house = House()
    assert not house.over(FakeWorker(), FakeWorker())
    assert not house.over(FakeWorker(), FakeWorker(), after=SETTLE_S - 0.1)
    assert house.over(FakeWorker(), FakeWorker(parked=2), after=0.2)
    assert (house.burst.finished, house.burst.left) == (7, 2)


def test_one_that_works_begins_the_wait_anew() -> None:
    house = House()
    house.over(FakeWorker())
    assert not house.over(FakeWorker(idle=False), after=SETTLE_S)
    assert not house.over(FakeWorker(), after=1.0)
    assert house.over(FakeWorker(), after=SETTLE_S)


def test_a_process_that_has_not_joined_its_groups_knows_nothing_of_them() -> None:
    house = House()
    house.over(FakeWorker(), ready=False)
    assert not house.over(FakeWorker(), ready=False, after=2 * SETTLE_S)
    assert not house.over(FakeWorker(), after=1.0), "the wait begins when it has"


def test_a_worker_is_idle_when_nothing_waits_runs_or_is_unread() -> None:
    shop = Shop()
    worker = shop.worker()
    steps(worker)
    assert worker.idle
    shop.fire()
    assert not worker.idle, "unread"
    shop.executors["w"].hold = True
    steps(worker)
    assert worker.in_flight == 1
    assert not worker.idle, "in flight"
    shop.executors["w"].hold = False
    steps(worker)
    assert (worker.idle, worker.in_flight) == (True, 0)


def test_a_run_whose_handler_nobody_knows_is_not_waited_for() -> None:
    shop = Shop()
    worker = shop.worker()
    shop.fire(handler="unheard")
    steps(worker)
    assert (worker.idle, worker.parked) == (True, 1)


def test_a_worker_that_restores_its_partitions_is_not_idle() -> None:
    shop = Shop()
    worker = shop.worker()
    worker.assigned([0])
    assert not worker.idle
