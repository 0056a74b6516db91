"""A replay among other work: it takes its portions from the lane of a backlog and from the rates, and delays nothing
that is due on time."""

from __future__ import annotations

import pytest

from pipeline.choice import BATCH_LIMIT, FIRST_LIMIT, Choice
from pipeline.core.rates import Rates
from pipeline.portion import Portion, replaying, weight
from pipeline.ports import Action, Delta, Entry
from tests.unit.owner import NOW
from tests.unit.test_choice import Backlog

RUNS = 200


class Replaying(Backlog):
    """With replays whose portions are settled as a transaction that commits would."""

    def ask(self, partition: int, runs: int = RUNS, queue: str = "default", at: int = NOW) -> None:
        self.count += 1
        delta = Delta()
        delta.put(replaying(b"c/%08d" % self.count, self.count, b"v", queue, runs, at), None)
        self.index.apply(partition, delta)

    def replayed(self, choice: Choice, now: int, share: float = 1.0) -> tuple[int, list[Entry]]:
        """Runs of replays that the next transaction emits, and what else it settles."""
        chosen = choice.next(self.running, now, share)
        runs = 0
        for partition, entries in chosen:
            for entry in entries:
                if entry.action == Action.REPLAY:
                    taken = Portion.of(entry.detail)
                    runs += taken.take
                    left = taken.left - taken.take
                    self.rest(partition.number, entry, left)
        others = [(p, [e for e in entries if e.action != Action.REPLAY]) for p, entries in chosen]
        return runs, self.settle(others)

    def rest(self, partition: int, entry: Entry, left: int) -> None:
        delta = Delta()
        if left:
            portion = Portion.of(entry.detail)._replace(left=left, take=left)
            delta.put(entry._replace(detail=portion.detail), entry)
        else:
            delta.remove(entry)
        self.index.apply(partition, delta)


@pytest.fixture
def backlog() -> Replaying:
    return Replaying()


def test_a_portion_is_no_larger_than_a_batch(backlog: Replaying) -> None:
    for _ in range(30):
        backlog.ask(0)
    choice = Choice()
    sizes = []
    while (found := backlog.replayed(choice, NOW)[0]) > 0:
        sizes.append(found)
    assert max(sizes) == FIRST_LIMIT
    assert sum(sizes) == 30 * RUNS


def test_jobs_on_time_pass_a_replay_that_fills_the_batch(backlog: Replaying) -> None:
    for _ in range(50):
        backlog.ask(0, at=NOW - 300)
    backlog.add(0, NOW - 200, 7)
    runs, others = backlog.replayed(Choice(), NOW)
    assert runs == FIRST_LIMIT
    assert len(others) == 7


def test_on_another_partition_they_are_taken_beside_it_too(backlog: Replaying) -> None:
    for _ in range(50):
        backlog.ask(0)
    backlog.add(1, NOW, 5)
    assert len(backlog.replayed(Choice(), NOW)[1]) == 5


def test_a_backlog_that_never_fired_goes_before_a_replay_asked_for_later(backlog: Replaying) -> None:
    backlog.add(0, NOW - 60_000, 3 * FIRST_LIMIT)
    backlog.ask(0)
    runs, others = backlog.replayed(Choice(), NOW)
    assert (runs, len(others)) == (0, FIRST_LIMIT)


def test_commands_pass_a_replay(backlog: Replaying) -> None:
    for _ in range(50):
        backlog.ask(0)
    backlog.add(0, 10_000, 3, action=Action.COMMAND)
    assert len(backlog.replayed(Choice(), NOW)[1]) == 3


def test_the_catch_up_rate_holds_a_replay_back(backlog: Replaying) -> None:
    choice = Choice(Rates(catchup=100))
    for _ in range(10):
        backlog.ask(0)
    backlog.add(0, NOW, 5)
    emitted, on_time = 0, 0
    for ms in range(0, 10_000, 10):
        runs, others = backlog.replayed(choice, NOW + ms, 0.5)
        emitted += runs
        on_time += len(others)
        assert ms or choice.throttled
    assert 490 <= emitted <= 552, "half of 100 a second for 10 s, and what a pause saved up"
    assert on_time == 5


def test_the_rate_of_a_queue_holds_a_replay_back_and_no_other_queue(backlog: Replaying) -> None:
    choice = Choice(Rates(queues={"email": 100}))
    for _ in range(10):
        backlog.ask(0, queue="email")
    backlog.ask(1, queue="billing")
    emitted = 0
    for ms in range(0, 10_000, 10):
        emitted += backlog.replayed(choice, NOW + ms, 0.5)[0]
    assert 495 + RUNS <= emitted <= 505 + RUNS, "half of 100 a second for 10 s, and the other queue's"


def test_what_is_due_on_time_goes_first_in_the_rate_of_a_queue(backlog: Replaying) -> None:
    choice = Choice(Rates(queues={"email": 100}))
    backlog.add(0, NOW, 500, queue="email")
    backlog.ask(0, queue="email", at=NOW - 1)
    replayed, fired = 0, 0
    for ms in range(0, 5_000, 10):
        runs, others = backlog.replayed(choice, NOW + ms)
        replayed += runs
        fired += len(others)
    assert fired >= 490
    assert replayed <= 20


def test_its_runs_count_in_the_size_of_a_batch(backlog: Replaying) -> None:
    choice = Choice()
    for _ in range(100):
        backlog.ask(0)
    choice.took(FIRST_LIMIT, 1, NOW)
    assert backlog.replayed(choice, NOW)[0] == 2 * FIRST_LIMIT <= BATCH_LIMIT
    assert weight([Entry(b"j/1", NOW, 1, Action.FIRE, b"v", "default/0")]) == 1
