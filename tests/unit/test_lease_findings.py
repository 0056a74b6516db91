"""What the simulation of the leases found, each as small as it gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.shop import Shop, steps, wait_out
from unit.test_leases import ACKS, holding, moved, together

from pipeline import codec
from pipeline.adapters.memory import CommitFault
from pipeline.core import keys
from pipeline.core.acks import AckTracker
from pipeline.core.errors import RebuildClients
from pipeline.core.handler import Dead
from pipeline.lane import Lane
from pipeline.ports import Put
from pipeline.worker import Worker


@pytest.fixture
def shop() -> Shop:
    return Shop()


def lane_of(worker: Worker) -> Lane:
    return worker._lanes[0]


def offer_of(shop: Shop, worker: Worker) -> list[Put]:
    """The outcome of what `worker` runs, as it would offer it."""
    (flight,) = worker._airborne.values()
    puts = worker._desk.settle(flight, shop.success({"from": "a"}), shop.clock.now())
    return worker._desk.offer(flight, puts)


def test_after_an_unknown_outcome_a_result_is_sent_again_though_a_later_run_ended_before_it(
    shop: Shop,
) -> None:
    """Results wait in the order in which they came; what an offset covers is told in the order of the log."""
    first, second = shop.fire(), shop.fire()
    worker = holding(shop, "w")
    flights = {flight.run.occurrence_id: flight for flight in worker._airborne.values()}
    for run in (second, first):
        flight = flights[run.occurrence_id]
        puts = worker._desk.settle(flight, shop.success(None), shop.clock.now())
        worker._ledger.add(flight, puts)
    shop.logs["w"].faults.append(CommitFault.UNKNOWN_ABORTED)
    worker._ledger.commit()
    worker._ledger.reconcile(lane_of(worker), AckTracker.from_committed(0, ""))
    assert len(worker._ledger) == 2
    worker._ledger.commit()
    assert {ack.occurrence_id for ack in shop.terminal()} == {first.occurrence_id, second.occurrence_id}


def test_a_run_of_a_dead_holder_that_ends_without_a_new_start_leaves_nothing_behind(shop: Shop) -> None:
    """Else its lane is never at rest: the loop spins, `--burst` never ends, and its offer is waited for for ever."""
    shop.registry.add("brief", lambda ctx, **payload: None, max_age="1s")
    shop.fire(handler="brief")
    old = holding(shop)
    heir = moved(shop, old)
    wait_out(shop, heir)
    assert [letter.reason for letter in shop.dead()] == ["max_age"]
    assert lane_of(heir).reclaimed == {}
    assert heir.idle


def test_an_offer_counts_before_what_else_would_end_its_run(shop: Shop) -> None:
    """Its holder was judged dead, the run waits for a place, and the outcome comes after all."""
    shop.registry.add("brief", lambda ctx, **payload: None, max_age="1s")
    shop.fire(handler="brief")
    old = holding(shop)
    shop.logs["a"].expire()
    heir = shop.worker("b", concurrency=1)
    shop.executors["b"].hold_begun = True
    shop.fire()
    wait_out(shop, heir)
    assert len(lane_of(heir).reclaimed) == 1
    for chunk in offer_of(shop, old):
        shop.client.append(chunk)
    wait_out(shop, heir, 500)
    shop.executors["b"].hold_begun = False
    wait_out(shop, heir, 500)
    assert sorted((ack.worker, str(ack.state)) for ack in shop.terminal()) == [
        ("a", "succeeded"),
        ("b", "succeeded"),
    ]


def test_of_a_run_that_died_where_its_partition_was_lost_the_application_is_told(shop: Shop) -> None:
    told: list[Any] = []
    shop.registry.on_dead(told.append)
    shop.answers.append(Dead("hopeless"))
    run = shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    assert [letter.reason for letter in shop.dead()] == ["dead_by_handler"]
    assert [job.job_id for job in told] == [run.job_id]


def test_what_was_offered_or_given_back_is_not_remembered_for_ever(shop: Shop) -> None:
    old = shop.worker("a")
    shop.executors["a"].hold = True
    steps(old)
    for _ in range(3):
        shop.fire()
        steps(old)
        shop.logs["a"].expire()
        together(shop, old, ms=1_000)
    shop.executors["a"].hold = False
    together(shop, old, ms=1_000)
    assert len(shop.terminal()) == 3
    assert old._leases._outbox._parted == {}
    assert (lane_of(old).released, lane_of(old).offers) == ({}, {})


def test_a_takeover_record_that_was_long_on_its_way_stops_no_later_owner(shop: Shop) -> None:
    """Its writer was cut off, and lost the partition before the record came through."""
    late = shop.worker("a")
    steps(late, 1)
    record = replace(late._takeover._takeover_record(), nonce="late")
    shop.logs["a"].expire()
    worker = shop.worker("b")
    steps(worker)
    assert lane_of(worker)._generation > record.generation
    shop.client.append(Put(ACKS, 0, keys.takeover_key(0), codec.TAKEOVER.encode(record)))
    wait_out(shop, worker, 500)
    shop.fire()
    wait_out(shop, worker, 500)
    assert len(shop.terminal()) == 1


def test_an_offer_holds_the_place_from_which_the_next_owner_reads_until_it_is_committed(shop: Shop) -> None:
    """Taken in is not committed: between the two other acks may be."""
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    chunks = offer_of(shop, old)
    place = shop.cluster.partition(ACKS, 0).end
    for chunk in chunks:
        shop.client.append(chunk)
    shop.logs["b"].faults.extend([CommitFault.REFUSED] * 3)
    together(shop, heir, ms=500)
    assert len(heir._ledger) == 1
    assert lane_of(heir).acks_floor == place
    together(shop, heir, ms=1_000)
    assert lane_of(heir).acks_floor > place


def test_the_owner_after_one_that_died_over_a_restart_still_finds_the_offer_before_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second owner wrote its start after the offer, and died before it had read that back."""
    shop.fire()
    old = holding(shop)
    second = moved(shop, old)
    monkeypatch.setattr(second._leases, "_read_back", lambda taken: [])
    chunks, append = offer_of(shop, old), second._appender.append

    def racing(put: Put, done: Any = None) -> None:
        while put.key.startswith(b"s/") and chunks:
            shop.client.append(chunks.pop(0))
        append(put, done)

    monkeypatch.setattr(second._appender, "append", racing)
    wait_out(shop, second)
    assert [ack.attempt for ack in shop.started()] == [1, 2]
    for log in shop.logs.values():
        log.expire()
    wait_out(shop, shop.worker("c"), 8_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.started()) == 2


def test_a_restart_of_which_nobody_knows_where_it_stands_does_not_begin(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told as a duplicate. An offer of the attempt that it replaces may stand before it or behind."""
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    append = heir._appender.append

    def duplicated(put: Put, done: Any = None) -> None:
        if put.key.startswith(b"s/"):
            append(put, lambda error, offset, at: done(error, -1, at))
        else:
            append(put, done)

    monkeypatch.setattr(heir._appender, "append", duplicated)
    with pytest.raises(RebuildClients, match="not known"):
        wait_out(shop, heir)
    assert shop.seen == []


def test_until_a_restart_is_read_back_the_metadata_names_the_attempt_that_it_replaces(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next owner reads from before the new start, which may have gone through or not."""
    shop.fire()
    old = holding(shop)
    second = moved(shop, old)
    monkeypatch.setattr(second._leases, "_read_back", lambda taken: [])
    wait_out(shop, second)
    place = next(
        r.offset() for r in shop.cluster.partition(ACKS, 0).entries
        if r is not None and r.key().startswith(b"s/") and codec.ACK.decode(r.value() or b"").attempt == 2
    )  # fmt: skip
    lane = lane_of(second)
    last = lane.tracker.last_start(0)
    assert last is not None
    assert last.worker == "a"
    assert lane.acks_floor <= place < lane.acks_next


def test_what_becomes_of_attempts_that_no_run_here_waits_for_is_not_kept(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    (flight,) = old._airborne.values()
    stranger = replace(flight, token=flight.token + 1, opening=b"")
    shop.client.append(old._desk.released(stranger, shop.clock.now()))
    together(shop, old, heir, ms=500)
    assert len(lane_of(heir).held) == 1
    assert lane_of(heir).released == {}
