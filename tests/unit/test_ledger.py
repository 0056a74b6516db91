"""Ack transactions while the worker goes on: one at a time, and none under way when what is owned changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.shop import Shop, steps, wait_out

from pipeline.adapters.memory import CommitFault
from pipeline.core.errors import RebuildClients
from pipeline.core.job import AckState
from pipeline.ledger import PATIENCE_MS
from pipeline.worker import Worker


class Commit:
    """A commit that is made when the test says so, or when somebody waits for it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.made = False
        self.waited = False
        self._raised: Exception | None = None

    def make(self) -> None:
        if not self.made:
            self.made = True
            try:
                self._call()
            except Exception as error:  # noqa: BLE001 - told by `result`
                self._raised = error

    def done(self) -> bool:
        return self.made

    def result(self) -> None:
        self.waited = self.waited or not self.made
        self.make()
        if self._raised is not None:
            raise self._raised


class Slow:
    """An `Aside` with a log of its calls."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []

    def __call__(self, call: Callable[[], None]) -> Commit:
        self.commits.append(Commit(call))
        return self.commits[-1]


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def shop(slow: Slow) -> Shop:
    shop = Shop()
    shop.aside = slow
    return shop


@pytest.fixture
def worker(shop: Shop) -> Worker:
    """It runs its partitions, and the outcome of one run is on its way into the log."""
    worker = shop.worker()
    steps(worker)
    shop.fire()
    steps(worker)
    return worker


def test_the_worker_goes_on_and_the_next_transaction_waits_for_the_one_under_way(
    shop: Shop, slow: Slow, worker: Worker
) -> None:
    shop.fire()
    shop.fire()
    steps(worker)
    assert (len(shop.seen), len(shop.terminal()), len(slow.commits), worker.busy) == (3, 0, 1, True)
    slow.commits[0].make()
    steps(worker)
    assert (len(shop.terminal()), len(slow.commits)) == (1, 2)
    slow.commits[1].make()
    steps(worker)
    assert (len(shop.terminal()), len(slow.commits), worker.busy) == (3, 2, False)
    committed = shop.logs["w"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 3
    assert not any(commit.waited for commit in slow.commits)


def test_what_is_refused_goes_first_into_the_next_transaction(shop: Shop, slow: Slow, worker: Worker) -> None:
    shop.logs["w"].faults.append(CommitFault.REFUSED)
    other = shop.fire()
    steps(worker)
    slow.commits[0].make()
    steps(worker)
    slow.commits[1].make()
    steps(worker)
    assert [ack.work_offset for ack in shop.terminal()] == [0, 1]
    assert shop.terminal()[1].occurrence_id == other.occurrence_id
    assert len(shop.seen) == 2


def test_a_partition_is_not_parted_with_while_its_acks_are_under_way(
    shop: Shop, slow: Slow, worker: Worker
) -> None:
    """What was acked is neither offered nor given back, although the partition goes in the same step."""
    heir = shop.worker("b")
    shop.logs[
        "w"
    ]._group.generation -= 1  # the coordinator has heard of the acks before it heard of the other
    worker.step(0)
    shop.logs["w"]._group.generation += 1
    assert slow.commits[0].waited
    steps(worker)
    steps(heir)
    assert [ack.state for ack in shop.terminal()] == [AckState.SUCCEEDED]
    assert [ack.state for ack in shop.started()] == [AckState.STARTED]
    assert not {"offered", "ack_refused"} & set(shop.told.lines)


def test_what_is_refused_because_the_partition_is_lost_is_offered(
    shop: Shop, slow: Slow, worker: Worker
) -> None:
    shop.logs["w"].expire()
    steps(worker)
    assert slow.commits[0].waited
    assert {"ack_refused", "offered"} <= set(shop.told.lines)
    slow.commits[-1].make()
    wait_out(shop, worker)
    slow.commits[-1].make()
    steps(worker)
    assert len(shop.seen) == 1
    assert [(ack.state, ack.attempt) for ack in shop.terminal()] == [(AckState.SUCCEEDED, 1)]


def test_a_client_that_died_in_a_transaction_is_told_of_by_the_step_and_not_inside_the_poll(
    shop: Shop, slow: Slow, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise RebuildClients("fenced")

    monkeypatch.setattr(slow.commits[0], "_call", die)
    shop.logs["w"].expire()
    with pytest.raises(RebuildClients, match="fenced"):
        worker.step(0)
    worker.close()
    assert "offered" in shop.told.lines


def test_one_that_does_not_come_back_is_waited_for(shop: Shop, slow: Slow, worker: Worker) -> None:
    """Else the loop would go on and commit nothing, and no watchdog would notice."""
    shop.clock.advance(PATIENCE_MS)
    worker.step(0)
    assert not slow.commits[0].waited
    shop.clock.advance(1)
    worker.step(0)
    assert slow.commits[0].waited


def test_a_worker_that_leaves_waits_for_what_is_under_way_and_for_the_rest(
    shop: Shop, slow: Slow, worker: Worker
) -> None:
    shop.fire()
    steps(worker)
    worker.drain()
    worker.leave(0)
    worker.close()
    assert [ack.state for ack in shop.terminal()] == [AckState.SUCCEEDED] * 2
    assert "offered" not in shop.told.lines
