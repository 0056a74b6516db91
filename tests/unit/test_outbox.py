"""What a worker has parted with reaches the log, whatever becomes of its clients meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.shop import Shop, steps, wait_out
from unit.test_lease_findings import lane_of
from unit.test_leases import ACKS, holding, moved, together

from pipeline.core.errors import StoreUnreachable
from pipeline.offers import OfferId, offer
from pipeline.outbox import Outbox
from pipeline.ports import Put
from pipeline.worker import Worker

Report = Callable[[Exception | None, int, int], None]
ATTEMPT = OfferId("occurrence", 1, 7)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def refuse_acks(worker: Worker, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next so many records for acks do not reach the log."""
    plain, left = worker._appender._append_one, [True] * times  # type: ignore[attr-defined]

    def append_one(put: Put) -> Any:
        if put.topic == ACKS and left:
            left.pop()
            return StoreUnreachable("refused"), -1, -1
        return plain(put)

    monkeypatch.setattr(worker._appender, "_append_one", append_one)


def rebuilt(shop: Shop, worker: Worker) -> Worker:
    worker.close()
    shop.logs["a"].close()
    return shop.worker("a", after=worker)


def test_an_outcome_that_was_on_its_way_at_a_rebuild_is_offered_all_the_same(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler has done its work, and its process lives: nothing may run it again."""
    shop.fire()
    worker = holding(shop)
    shop.logs["a"].expire()
    shop.executors["a"].hold_begun = False
    refuse_acks(worker, 1, monkeypatch)
    worker.step(0)  # it loses the partition and the handler comes back: offered, and not taken
    again = rebuilt(shop, worker)
    together(shop, again)
    assert [(ack.attempt, ack.state) for ack in shop.terminal()] == [(1, "succeeded")]
    assert len(shop.seen) == 1


def test_a_start_given_back_at_a_rebuild_is_given_back_once_the_log_takes_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever owns the partition next would wait for a holder that lives and holds nothing."""
    shop.fire()
    worker = shop.worker("a")
    shop.executors["a"].hold = True
    steps(worker)
    refuse_acks(worker, 1, monkeypatch)
    again = rebuilt(shop, worker)
    shop.executors["a"].hold = False
    together(shop, again)
    assert [ack.state for ack in shop.started()] == ["started", "released", "started"]
    assert [(ack.attempt, ack.state) for ack in shop.terminal()] == [(1, "succeeded")]


def test_an_unreadable_offer_of_a_dead_holder_is_no_reason_not_to_start_its_run(shop: Shop) -> None:
    """It was complete, and came while the run waited for a place."""
    shop.fire()
    old = holding(shop)
    shop.logs["a"].expire()
    heir = shop.worker("b", concurrency=1)
    shop.executors["b"].hold_begun = True
    shop.fire()
    wait_out(shop, heir)
    assert len(lane_of(heir).reclaimed) == 1
    (flight,) = old._airborne.values()
    nonsense = [Put(ACKS, 0, b"t/somebody else's", b"")]
    for chunk in offer(flight.id, "a", nonsense, ACKS, 0):
        shop.client.append(chunk)
    shop.executors["b"].hold_begun = False
    together(shop, heir)
    assert sorted((ack.attempt, ack.worker) for ack in shop.terminal()) == [(1, "b"), (2, "b")]
    assert "offer_unreadable" in shop.told.lines


def test_a_partition_of_others_is_read_no_more_once_nothing_of_it_runs_here(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.fire()
    old = holding(shop)
    left: list[int] = []
    monkeypatch.setattr(old._leases._reader, "leave", lambda topic, partition: left.append(partition))
    heir = moved(shop, old)
    together(shop, old, heir, ms=1_000)
    assert 0 not in left
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    assert left.count(0) == 1


# -- the outbox itself --------------------------------------------------------------------------------------


class Appender:
    """Keeps what it is given until the test answers."""

    def __init__(self) -> None:
        self.given: list[tuple[Put, Report]] = []
        self.flushed = 0

    def append(self, put: Put, done: Report | None = None) -> None:
        assert done is not None
        self.given.append((put, done))

    def flush(self, timeout_ms: int) -> None:
        self.flushed += 1

    def answer(self, error: Exception | None = None, offset: int = 0) -> None:
        given, self.given = self.given, []
        for at, (_, done) in enumerate(given):
            done(error, offset + at, 0)


@pytest.fixture
def appender() -> Appender:
    return Appender()


@pytest.fixture
def outbox(appender: Appender) -> Outbox:
    return Outbox(appender)  # type: ignore[arg-type]


def puts(count: int) -> list[Put]:
    return [Put(ACKS, 3, b"%d" % n, b"") for n in range(count)]


def test_it_is_on_its_way_until_the_log_has_all_of_it(outbox: Outbox, appender: Appender) -> None:
    outbox.send(ATTEMPT, 3, puts(2))
    first, second = (done for _, done in appender.given)
    first(None, 5, 0)
    assert (len(outbox), ATTEMPT in outbox) == (1, True)
    second(StoreUnreachable("gone"), -1, -1)
    assert len(outbox) == 1
    appender.given.clear()
    outbox.send_again()
    assert [put.key for put, _ in appender.given] == [b"1"]
    appender.answer(offset=9)
    assert len(outbox) == 0


def test_what_is_sent_again_while_it_is_on_its_way_counts_once_the_log_has_the_last(
    outbox: Outbox, appender: Appender
) -> None:
    outbox.send(ATTEMPT, 3, puts(1))
    outbox.send(ATTEMPT, 3, puts(1))
    (_, first), (_, second) = appender.given
    first(None, 5, 0)
    assert len(outbox) == 1
    second(None, 9, 0)
    assert len(outbox) == 0
    outbox.forget({3: 9})
    assert ATTEMPT in outbox


def test_it_is_remembered_while_nobody_knows_where_the_log_has_it(outbox: Outbox, appender: Appender) -> None:
    """Told as a duplicate. Forgotten too early, its run would be taken for one that nobody executes."""
    outbox.send(ATTEMPT, 3, puts(1))
    appender.answer(offset=-1)
    assert len(outbox) == 0
    outbox.forget({3: 100})
    assert ATTEMPT in outbox


def test_it_is_remembered_until_its_place_in_the_log_was_read(outbox: Outbox, appender: Appender) -> None:
    outbox.send(ATTEMPT, 3, puts(1))
    outbox.forget({})
    assert ATTEMPT in outbox  # the log may not have it yet
    appender.answer(offset=9)
    outbox.forget({3: 9})
    assert ATTEMPT in outbox
    outbox.forget({3: 10})
    assert ATTEMPT not in outbox


def test_a_partition_that_is_another_s_needs_no_reminder(outbox: Outbox, appender: Appender) -> None:
    outbox.send(ATTEMPT, 3, puts(1))
    appender.answer(offset=9)
    outbox.forget({4: 0})
    assert ATTEMPT not in outbox


def test_a_flush_sends_once_more_what_was_refused(outbox: Outbox, appender: Appender) -> None:
    outbox.send(ATTEMPT, 3, puts(1))
    appender.answer(StoreUnreachable("gone"))
    outbox.flush(100)
    assert (len(appender.given), appender.flushed) == (1, 2)
