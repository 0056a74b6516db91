"""A run that a live worker executes is not started elsewhere, and its outcome is not lost (DESIGN §7, lease)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from unit.shop import NAMES, Shop, steps, wait_out

from pipeline import codec
from pipeline.adapters.memory import CommitFault
from pipeline.core import keys
from pipeline.core.errors import RebuildClients, RetryStep
from pipeline.core.job import AckState, Event
from pipeline.core.states import PartitionState
from pipeline.offers import OfferId, offer
from pipeline.ports import Put
from pipeline.worker import Worker

ACKS = NAMES.acks("default")


@pytest.fixture
def shop() -> Shop:
    return Shop()


def holding(shop: Shop, name: str = "a") -> Worker:
    """A worker whose handlers do not come back before the test wants it."""
    worker = shop.worker(name)
    shop.executors[name].hold_begun = True
    steps(worker)
    return worker


def together(shop: Shop, *workers: Worker, ms: int = 6_000) -> None:
    for _ in range(ms // 250):
        shop.clock.advance(250)
        for worker in workers:
            worker.step(0)


def moved(shop: Shop, old: Worker, name: str = "b") -> Worker:
    """The partitions go to another worker, politely; the old one is in no group any more, and lives."""
    shop.logs[old_name(shop, old)].expire()
    heir = shop.worker(name)
    together(shop, old, heir, ms=1_000)
    return heir


def old_name(shop: Shop, worker: Worker) -> str:
    return worker.heartbeat().process


def test_a_run_of_a_live_worker_is_not_started_by_the_next_owner(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    together(shop, old, heir, ms=20_000)
    assert [ack.attempt for ack in shop.started()] == [1]
    assert shop.terminal() == []


def test_other_runs_of_the_partition_go_on_beside_a_held_one(shop: Shop) -> None:
    held = shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    others = [shop.fire().occurrence_id for _ in range(3)]
    together(shop, old, heir, ms=2_000)
    assert [ack.occurrence_id for ack in shop.terminal()] == others
    committed = shop.logs["b"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 0  # the held run is the mark
    assert held.occurrence_id not in others


@pytest.mark.parametrize("answer", [{"sent": 1}, ValueError("again"), None])
def test_the_outcome_of_a_lost_partition_is_offered_and_committed_by_its_owner(
    shop: Shop, answer: Any
) -> None:
    shop.fire()
    shop.answers.append(answer)
    old = holding(shop)
    heir = moved(shop, old)
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    (ack,) = shop.terminal()
    assert (ack.worker, ack.attempt) == ("a", 1)
    assert len(shop.retries()) == isinstance(answer, ValueError)
    assert len(shop.started()) == 1
    committed = shop.logs["b"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 1


def test_a_holder_that_dies_is_replaced_by_attempt_two_with_a_larger_token(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    wait_out(shop, heir)  # the old one steps no more
    one, two = shop.started()
    assert (one.attempt, two.attempt, two.worker) == (1, 2, "b")
    assert two.token > one.token
    assert [ack.attempt for ack in shop.terminal()] == [2]


def test_what_a_thawed_holder_offers_after_the_restart_is_ignored_and_counted(shop: Shop) -> None:
    shop.fire()
    shop.answers.extend([{"from": "b"}, {"from": "a"}])
    old = holding(shop)
    heir = moved(shop, old)
    shop.executors["b"].hold_begun = True
    wait_out(shop, heir)
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    assert "offer_ignored" in shop.told.lines
    assert shop.terminal() == []
    shop.executors["b"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("b", 2)]


def test_an_offer_that_stands_before_the_restart_wins_over_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heir judged the holder dead, wrote its own start, and finds the offer before it when reading back."""
    run = shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    started = shop.started()[0]
    append, offered = heir._appender.append, []

    def racing(put: Put, done: Any = None) -> None:
        if put.key.startswith(b"s/") and not offered:
            offered.append(True)
            flight = next(iter(old._airborne.values()))
            puts = old._desk.settle(flight, shop.success({"from": "a"}), shop.clock.now())
            for chunk in old._desk.offer(flight, puts):
                shop.client.append(chunk)
        append(put, done)

    monkeypatch.setattr(heir._appender, "append", racing)
    wait_out(shop, heir)
    assert offered
    (ack,) = shop.terminal()
    assert (ack.worker, ack.attempt, ack.token) == ("a", 1, started.token)
    assert [a.state for a in shop.started()] == [AckState.STARTED, AckState.STARTED, AckState.RELEASED]
    assert shop.seen == []
    assert run.run == 1


def test_a_partition_that_comes_back_finds_its_run_still_running_and_adopts_it(shop: Shop) -> None:
    shop.fire()
    worker = holding(shop)
    shop.logs["a"].expire()
    together(shop, worker, ms=2_000)
    assert "adopted" in shop.told.lines
    shop.executors["a"].hold_begun = False
    together(shop, worker, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.started()) == 1


def test_what_has_not_begun_when_a_partition_goes_is_given_back_and_starts_at_once(shop: Shop) -> None:
    shop.fire()
    old = shop.worker("a")
    shop.executors["a"].hold = True
    steps(old)
    shop.logs["a"].expire()
    heir = shop.worker("b")
    together(shop, old, heir, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("b", 1)]
    assert len(shop.seen) == 1


def test_outcomes_not_committed_when_the_partition_goes_are_offered(shop: Shop) -> None:
    shop.fire()
    old = shop.worker("a")
    shop.logs["a"].faults.extend([CommitFault.REFUSED] * 9)
    steps(old, 4)
    assert (len(shop.seen), shop.terminal(), old.busy) == (1, [], True)
    shop.logs["a"].expire()
    heir = shop.worker("b")
    together(shop, old, heir, ms=2_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.seen) == 1


def test_a_draining_worker_that_hands_over_keeps_nobody_waiting_and_finishes_what_it_runs(shop: Shop) -> None:
    """Its partitions would be its own until its slowest handler comes back."""
    held = shop.fire()
    old = holding(shop)
    heir = shop.worker("b")
    together(shop, old, heir, ms=1_000)
    old.drain()
    waiting = shop.fire().occurrence_id
    together(shop, old, heir, ms=1_000)
    assert shop.terminal() == []
    old.hand_over()
    together(shop, old, heir, ms=1_000)
    assert [ack.occurrence_id for ack in shop.terminal()] == [waiting]
    assert old.busy
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=1_000)
    assert not old.busy
    done = shop.terminal()[-1]
    assert (done.occurrence_id, done.worker, done.attempt) == (held.occurrence_id, "a", 1)
    assert [ack.state for ack in shop.started()] == ["started", "started"]
    old.leave(0)
    old.close()


def test_what_does_not_end_after_the_hand_over_is_given_back(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    heir = shop.worker("b")
    old.drain()
    old.hand_over()
    together(shop, old, heir, ms=1_000)
    old.leave(0)
    old.close()
    together(shop, heir, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("b", 1)]
    assert [ack.state for ack in shop.started()] == ["started", "released", "started"]


def test_a_stop_reaches_what_runs_after_the_hand_over(shop: Shop) -> None:
    run = shop.fire()
    old = holding(shop)
    old.drain()
    old.hand_over()
    event = Event(id=run.occurrence_id, kind="stopped", at=1, occurrence_id=run.occurrence_id, run=1)
    shop.client.append(Put(ACKS, 0, keys.stopped_key(run.occurrence_id), codec.EVENT.encode(event)))
    together(shop, old, ms=1_000)
    assert shop.executors["a"].stopped == [1]


def test_the_heartbeat_of_a_draining_worker_names_no_handler(shop: Shop) -> None:
    """It takes nothing more: whoever drains at the same time must not count on it."""
    worker = shop.worker("a")
    steps(worker)
    assert worker.heartbeat().handlers == ("work",)
    worker.drain()
    assert worker.heartbeat().handlers == ()
    last = [r for r in shop.cluster.partition(NAMES.fleet, 0).read(0, 1_000)[0] if r.key() == b"a"][-1]
    assert codec.HEARTBEAT.decode(last.value() or b"").handlers == ()


def test_a_worker_built_anew_in_the_same_process_keeps_what_runs(shop: Shop) -> None:
    """A fatal client error ends the clients, not the handlers."""
    shop.fire()
    old = holding(shop)
    old.close()
    again = shop.worker("a", after=old)
    together(shop, again, ms=2_000)
    shop.executors["a"].hold_begun = False
    together(shop, again, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.started()) == 1


def test_leaving_gives_back_what_did_not_finish(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    old.drain()
    assert old.busy
    old.leave(0)
    old.close()
    steps(shop.worker("b"))
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("b", 1)]


def test_a_third_owner_still_waits_for_the_first_holder(shop: Shop) -> None:
    """The second one committed offsets meanwhile: who holds the run travels in their metadata."""
    shop.fire()
    old = holding(shop)
    second = moved(shop, old, "b")
    shop.fire()
    together(shop, old, second, ms=1_000)
    assert len(shop.terminal()) == 1
    second.close()
    third = shop.worker("c")
    together(shop, old, third, ms=10_000)
    assert [ack.attempt for ack in shop.started()] == [1, 1]
    shop.executors["a"].hold_begun = False
    together(shop, old, third, ms=1_000)
    assert sorted(ack.worker for ack in shop.terminal()) == ["a", "b"]


def test_an_offer_made_while_nobody_owned_the_partition_is_found_by_its_next_owner(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    shop.logs["a"].expire()
    old.revoked([0, 1])
    old._log.close()  # type: ignore[attr-defined]
    old._part()
    shop.executors["a"].hold_begun = False
    old._calls.collect(old._settle)
    heir = shop.worker("b")
    together(shop, heir, ms=1_000)
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.started()) == 1


@pytest.mark.parametrize("puts", [[], [Put(NAMES.work("default"), 0, b"x", b"y")], None])
def test_an_offer_that_is_none_changes_nothing(shop: Shop, puts: list[Put] | None) -> None:
    run = shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    started = shop.started()[0]
    id_ = OfferId(run.occurrence_id, 1, started.token)
    made = offer(id_, "a", puts or [Put(ACKS, 0, b"t/x", b"y")], ACKS, 0)
    for chunk in made or [Put(ACKS, 0, keys.offered_key(*id_, 0), b"\xff")]:
        shop.client.append(chunk)
    together(shop, old, heir, ms=1_000)
    assert shop.terminal() == []
    assert set(heir.states.values()) == {PartitionState.RUNNING}
    wait_out(shop, heir)
    assert [ack.attempt for ack in shop.terminal()] == [2]


class Moved:
    """The group has given everything to somebody else, and has not said so yet."""

    def __init__(self, log: Any) -> None:
        self._log, self.moved, self.refused = log, True, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def commit(self, *given: Any) -> None:
        if self.moved:
            self.refused += 1
            raise RetryStep("stale generation")
        self._log.commit(*given)


def of_another(shop: Shop, *, key: bytes = b"o/0", later: int = 5) -> Put:
    """The takeover record of another process that read as ours does."""
    own = codec.TAKEOVER.decode(shop._values(ACKS, b"o/0")[-1])
    record = replace(own, nonce="another", generation=own.generation + later)
    return Put(ACKS, 0, key, codec.TAKEOVER.encode(record))


def test_whoever_reads_the_takeover_record_of_another_starts_nothing_until_the_group_says_whose_it_is(
    shop: Shop,
) -> None:
    worker = shop.worker()
    steps(worker)
    worker._ledger._log = group = Moved(worker._ledger._log)
    shop.client.append(of_another(shop))
    wait_out(shop, worker, 500)
    shop.fire()
    wait_out(shop, worker, 3_000)
    assert (shop.started(), group.refused > 1) == ([], True)
    group.moved = False
    wait_out(shop, worker, 2_000)
    (done,) = shop.terminal()
    assert done.attempt == 1
    assert "takeover_forged" in shop.told.lines


@pytest.mark.parametrize("key", [b"o/1", b"o/77"])
def test_a_takeover_record_of_another_partition_concerns_nobody_here(shop: Shop, key: bytes) -> None:
    worker = shop.worker()
    steps(worker)
    shop.client.append(of_another(shop, key=key))
    wait_out(shop, worker, 500)
    assert not worker._lanes[0].usurped
    shop.fire()
    wait_out(shop, worker, 500)
    assert len(shop.terminal()) == 1
    assert "takeover_forged" not in shop.told.lines


def test_one_of_an_older_generation_was_long_on_its_way(shop: Shop) -> None:
    worker = shop.worker()
    steps(worker)
    shop.client.append(of_another(shop, later=-1))
    wait_out(shop, worker, 500)
    assert "takeover_forged" not in shop.told.lines


# -- stops --------------------------------------------------------------------------------------------------


def stop(shop: Shop, run: Any, partition: int = 0) -> None:
    id_ = run.occurrence_id
    event = Event(id=id_, kind="stopped", at=shop.clock.now(), occurrence_id=id_, run=run.run)
    shop.client.append(Put(ACKS, partition, keys.stopped_key(id_), codec.EVENT.encode(event)))


def test_a_stopped_run_that_waits_is_not_started(shop: Shop) -> None:
    worker = shop.worker(concurrency=1)
    shop.executors["w"].hold_begun = True
    shop.fire()
    second = shop.fire()
    steps(worker)
    stop(shop, second)
    wait_out(shop, worker, 500)
    shop.executors["w"].hold_begun = False
    wait_out(shop, worker, 1_000)
    ended = {ack.occurrence_id: (ack.state, ack.error and ack.error.type) for ack in shop.terminal()}
    assert ended[second.occurrence_id] == (AckState.CANCELLED, "Stopped")
    assert len(shop.seen) == 1


def test_a_running_run_is_told_and_ends_as_cancelled_if_it_fails_then(shop: Shop) -> None:
    run = shop.fire()
    shop.answers.append(ValueError("interrupted"))
    worker = holding(shop, "w")
    stop(shop, run)
    wait_out(shop, worker, 500)
    assert shop.executors["w"].stopped
    shop.executors["w"].hold_begun = False
    wait_out(shop, worker, 500)
    assert [(ack.state, ack.error and ack.error.type) for ack in shop.terminal()] == [
        (AckState.CANCELLED, "Stopped")
    ]
    assert shop.seen[0].cancelled


def test_a_stop_deep_in_the_queue_is_known_to_a_later_owner(shop: Shop) -> None:
    first = shop.worker("a", concurrency=1)
    shop.executors["a"].hold_begun = True
    shop.fire()
    later = shop.fire()
    steps(first)
    stop(shop, later)
    wait_out(shop, first, 500)
    shop.executors["a"].hold_begun = False
    steps(first, 1)
    first._draining = True
    steps(first, 4)
    first.leave(0)
    first.close()
    wait_out(shop, shop.worker("b"), 1_000)
    assert {ack.occurrence_id: ack.state for ack in shop.terminal()}[
        later.occurrence_id
    ] is AckState.CANCELLED


def test_a_stop_reaches_what_runs_without_its_partition(shop: Shop) -> None:
    run = shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    stop(shop, run)
    together(shop, old, heir, ms=1_000)
    assert shop.executors["a"].stopped


def test_a_stop_that_is_lifted_stops_nothing(shop: Shop) -> None:
    worker = shop.worker(concurrency=1)
    steps(worker)
    run = shop.fire()
    stop(shop, run)
    shop.client.append(Put(ACKS, 0, keys.stopped_key(run.occurrence_id), None))
    wait_out(shop, worker, 500)
    assert [ack.state for ack in shop.terminal()] == [AckState.SUCCEEDED]


def test_a_stop_that_comes_while_the_start_is_on_its_way_reaches_the_run(shop: Shop) -> None:
    worker = shop.worker()
    steps(worker)
    shop.executors["w"].hold_begun = True
    run = shop.fire()
    append, late = worker._appender.append, []

    def slow(put: Put, done: Any = None) -> None:
        late.append((put, done)) if put.key.startswith(b"s/") else append(put, done)

    worker._appender.append = slow  # type: ignore[method-assign]
    steps(worker, 3)
    assert len(late) == 1
    stop(shop, run)
    wait_out(shop, worker, 500)
    append(*late[0])
    steps(worker, 3)
    assert shop.executors["w"].stopped


def test_an_offer_that_the_log_refused_is_sent_again_chunk_by_chunk(shop: Shop) -> None:
    shop.fire()
    old = holding(shop)
    heir = moved(shop, old)
    append, refused = old._appender.append, []

    def refuse(put: Put, done: Any = None) -> None:
        if put.key.startswith(b"f/") and len(refused) < 3:
            refused.append(put.key)
            done(ValueError("no"), -1, -1)  # at once, as the client may
        else:
            append(put, done)

    old._appender.append = refuse  # type: ignore[method-assign]
    shop.executors["a"].hold_begun = False
    together(shop, old, heir, ms=2_000)
    assert len(refused) == 3
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert not old.busy


def test_outcomes_that_wait_when_the_worker_leaves_are_not_lost(shop: Shop) -> None:
    shop.fire()
    old = shop.worker("a")
    shop.logs["a"].faults.extend([CommitFault.REFUSED] * 9)
    steps(old, 4)
    assert (len(shop.seen), shop.terminal(), old.busy) == (1, [], True)
    old.drain()
    old.leave(0)
    old.close()
    steps(shop.worker("b"))
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
    assert len(shop.seen) == 1


def test_a_worker_whose_clients_died_offers_its_outcomes_when_it_leaves(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.fire()
    old = shop.worker("a")
    shop.logs["a"].faults.extend([CommitFault.REFUSED] * 9)
    steps(old, 4)
    assert (len(shop.seen), shop.terminal(), old.busy) == (1, [], True)

    def dead(*_: Any) -> None:
        raise RebuildClients("fenced")

    monkeypatch.setattr(shop.logs["a"], "commit", dead)
    old.drain()
    old.leave(0)
    old.close()
    steps(shop.worker("b"))
    assert [(ack.worker, ack.attempt) for ack in shop.terminal()] == [("a", 1)]
