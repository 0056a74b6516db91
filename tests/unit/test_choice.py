"""Lanes, rates and the size of a batch."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import choice as module
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.choice import BATCH_LIMIT, FIRST_LIMIT, LEAST_LIMIT, SHARED_MS, Choice
from pipeline.core.rates import Rates
from pipeline.core.states import PartitionState
from pipeline.partition import Partition
from pipeline.ports import Action, Delta, Entry
from tests.unit.owner import NOW, SITE


class Backlog:
    """Running partitions over one index, filled by a test."""

    def __init__(self, partitions: int = 2) -> None:
        self.index = MemoryIndex()
        self.running = [Partition(n, site=SITE, index=self.index) for n in range(partitions)]
        for partition in self.running:
            partition.state = PartitionState.RUNNING
        self.count = 0

    def add(
        self, partition: int, due: int, jobs: int = 1, queue: str = "default", action: int = Action.FIRE
    ) -> None:
        delta = Delta()
        for _ in range(jobs):
            self.count += 1
            delta.put(Entry(b"j/%08d" % self.count, due, self.count, action, b"v", f"{queue}/0"), None)
        self.index.apply(partition, delta)

    def settle(self, chosen: Any) -> list[Entry]:
        """As a transaction that commits would."""
        settled = []
        for partition, entries in chosen:
            delta = Delta()
            for entry in entries:
                delta.remove(entry)
                settled.append(entry)
            self.index.apply(partition.number, delta)
        return settled


@pytest.fixture
def backlog() -> Backlog:
    return Backlog()


def test_each_partition_gets_its_share_and_another_is_first_each_time(backlog: Backlog) -> None:
    for number in (0, 1):
        backlog.add(number, NOW, FIRST_LIMIT)
    choice = Choice()
    first, second = (choice.next(backlog.running, NOW, 1.0) for _ in range(2))
    assert [(p.number, len(e)) for p, e in first] == [(0, FIRST_LIMIT // 2), (1, FIRST_LIMIT // 2)]
    assert [p.number for p, _ in second] == [1, 0]


def test_nothing_runs_here(backlog: Backlog) -> None:
    assert Choice().next([], NOW, 0.0) == []


def test_jobs_on_time_pass_a_backlog_that_fills_the_batch(backlog: Backlog) -> None:
    backlog.add(0, NOW - 60_000, 3 * FIRST_LIMIT)
    backlog.add(0, NOW, 7)
    chosen = Choice().next(backlog.running, NOW, 1.0)
    fired = backlog.settle(chosen)
    assert [entry.fire_at for entry in fired].count(NOW) == 7
    assert len(fired) == FIRST_LIMIT + 7


def test_a_small_backlog_needs_no_lane_and_each_job_is_chosen_once(backlog: Backlog) -> None:
    backlog.add(0, NOW - 60_000, 10)
    backlog.add(0, NOW, 10)
    fired = backlog.settle(Choice().next(backlog.running, NOW, 1.0))
    assert len(fired) == len({entry.record_key for entry in fired}) == 20


def test_a_batch_is_bounded_in_bytes(backlog: Backlog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 5)
    backlog.add(0, NOW, 100)
    backlog.add(1, NOW, 100)
    assert sum(len(entries) for _, entries in Choice().next(backlog.running, NOW, 1.0)) == 5


def test_the_batch_follows_what_a_transaction_takes(backlog: Backlog) -> None:
    choice = Choice()
    backlog.add(0, NOW, 3 * BATCH_LIMIT)

    def size() -> int:
        return sum(len(entries) for _, entries in choice.next(backlog.running, NOW, 1.0))

    choice.took(FIRST_LIMIT, 1, NOW)
    assert size() == 2 * FIRST_LIMIT
    choice.took(2 * FIRST_LIMIT, 2 * module.ALONE_MS, NOW)
    assert size() == FIRST_LIMIT
    choice.took(10, 1, NOW)
    assert size() == FIRST_LIMIT, "a small batch that was quick says nothing about a large one"
    choice.took(FIRST_LIMIT, 10**6, NOW)
    assert size() == LEAST_LIMIT
    choice.refused(LEAST_LIMIT)
    assert size() == LEAST_LIMIT // 2


def test_transactions_of_a_backlog_are_short_while_jobs_on_time_wait_behind_them(backlog: Backlog) -> None:
    choice = Choice()
    backlog.add(0, NOW - 60_000, 3 * FIRST_LIMIT)
    choice.took(FIRST_LIMIT, module.ALONE_MS + 1, NOW)
    assert len(choice.next(backlog.running, NOW, 1.0)[0][1]) == FIRST_LIMIT * module.ALONE_MS // (
        module.ALONE_MS + 1
    ), "alone it may take longer"
    backlog.add(0, NOW)
    choice.next(backlog.running, NOW, 1.0)
    choice.took(FIRST_LIMIT, 2 * SHARED_MS, NOW)
    assert len(choice.next(backlog.running, NOW, 1.0)[0][1]) == FIRST_LIMIT // 2 + 1


def test_jobs_on_time_are_seen_wherever_they_stand(backlog: Backlog) -> None:
    """A minute of due times has partitions of its own: what is due now stands elsewhere than a backlog of earlier."""
    choice = Choice()
    backlog.add(0, NOW - 60_000, 3 * FIRST_LIMIT)
    backlog.add(1, NOW)
    choice.next(backlog.running, NOW, 1.0)
    choice.took(FIRST_LIMIT, 2 * SHARED_MS, NOW)
    assert sum(len(entries) for _, entries in choice.next(backlog.running, NOW, 1.0)) == FIRST_LIMIT // 2


def test_a_batch_grows_to_what_fits_and_no_further(backlog: Backlog) -> None:
    choice = Choice()
    backlog.add(0, NOW, 3 * BATCH_LIMIT)
    choice.took(FIRST_LIMIT, module.ALONE_MS * 4 // 5, NOW)
    assert len(choice.next(backlog.running, NOW, 1.0)[0][1]) == FIRST_LIMIT * 5 // 4


def test_the_catch_up_rate_holds_back_overdue_jobs_only(backlog: Backlog) -> None:
    choice = Choice(Rates(catchup=100))
    backlog.add(0, NOW - 60_000, 1_000)
    backlog.add(0, 5, 3, action=Action.COMMAND)
    backlog.add(0, NOW + 10_000, 5)
    fired = []
    for ms in range(0, 10_000, 10):
        fired += backlog.settle(choice.next(backlog.running, NOW + ms, 0.5))
        if ms == 0:
            assert [entry.action for entry in fired].count(Action.COMMAND) == 3
            assert choice.throttled
    overdue = [entry for entry in fired if entry.fire_at == NOW - 60_000]
    assert 490 <= len(overdue) <= 552, "half of 100 a second for 10 s, and what a pause saved up"
    on_time = backlog.settle(choice.next(backlog.running, NOW + 10_000, 0.5))
    assert len([entry for entry in on_time if entry.fire_at == NOW + 10_000]) == 5


def test_the_catch_up_rate_holds_where_a_batch_reaches_past_the_backlog(backlog: Backlog) -> None:
    choice = Choice(Rates(catchup=10))
    backlog.add(0, NOW - 60_000, 100)
    backlog.add(0, NOW, 5)
    choice.next(backlog.running, NOW - 1_000, 1.0)
    fired = backlog.settle(choice.next(backlog.running, NOW, 1.0))
    assert [entry.fire_at for entry in fired].count(NOW) == 5
    assert len(fired) <= 5 + 20


def test_a_queue_has_its_rate_and_holds_up_no_other(backlog: Backlog) -> None:
    choice = Choice(Rates(queues={"email": 100}))
    backlog.add(0, NOW, 1_000, queue="email")
    backlog.add(0, NOW, 50, queue="billing")
    fired = []
    for ms in range(0, 2_000, 5):
        fired += backlog.settle(choice.next(backlog.running, NOW + ms, 0.5))
    email = [entry for entry in fired if entry.detail == "email/0"]
    assert len(fired) - len(email) == 50
    assert 98 <= len(email) <= 101, "half of 100 a second for 2 s"
    assert backlog.index.size(0) == 1_000 - len(email), "the others wait"
