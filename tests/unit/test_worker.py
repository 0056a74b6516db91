"""A worker over the in-memory cluster: attempts, outcomes, and what it commits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from unit.shop import NAMES, Shop, steps, wait_out

from pipeline import Cancel, Dead, Retry, Snooze
from pipeline.adapters.memory import CommitFault
from pipeline.core.errors import PoisonRecord
from pipeline.core.job import AckState
from pipeline.core.states import PartitionState
from pipeline.core.token import split_token
from pipeline.ports import Put


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- outcomes -----------------------------------------------------------------------------------------------


def test_a_run_is_started_durably_handled_and_acked_with_its_offset(shop: Shop) -> None:
    run = shop.fire()
    shop.answers.append({"sent": True})
    steps(shop.worker())
    (started,), (ack,) = shop.started(), shop.terminal()
    assert (started.state, started.attempt, started.work_offset) == (AckState.STARTED, 1, 0)
    assert (ack.state, json.loads(ack.result or b""), ack.token) == (
        AckState.SUCCEEDED,
        {"sent": True},
        started.token,
    )
    assert shop.seen[0].payload == {"a": 1}
    assert shop.seen[0].idempotency_key == run.idempotency_key
    committed = shop.logs["w"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 1
    parts = split_token(ack.token)
    assert (parts.era, parts.run, parts.attempt) == (1, 1, 1)


@pytest.mark.parametrize(
    ("answer", "state", "failures", "wait"),
    [
        (ValueError("no"), AckState.RETRYING, 1, None),
        (Retry(after="7s"), AckState.RETRYING, 1, 7_000),
        (Snooze(for_="9s"), AckState.RETRYING, 0, 9_000),
    ],
)
def test_what_is_tried_again_goes_back_to_its_home_as_the_next_run(
    shop: Shop, answer: BaseException, state: AckState, failures: int, wait: int | None
) -> None:
    run = shop.fire()
    shop.answers.append(answer)
    steps(shop.worker())
    (ack,), (again,) = shop.terminal(), shop.retries()
    assert ack.state is state
    assert (again.run, again.failures, again.job_id) == (2, failures, run.job_id)
    assert ack.retry_at == again.due_at
    if wait is not None:
        assert again.due_at == shop.clock.now() + wait


@pytest.mark.parametrize(
    ("answer", "state", "letters"),
    [
        (Dead("no such customer"), AckState.DEAD, 1),
        (Cancel("not wanted"), AckState.CANCELLED, 0),
        (SystemExit(3), AckState.RETRYING, 0),
    ],
)
def test_what_ends_a_job_ends_it_at_once(
    shop: Shop, answer: BaseException, state: AckState, letters: int
) -> None:
    shop.fire()
    shop.answers.append(answer)
    steps(shop.worker())
    assert [ack.state for ack in shop.terminal()] == [state]
    assert len(shop.dead()) == letters


def test_the_last_attempt_that_fails_is_dead_lettered_with_everything(shop: Shop) -> None:
    run = shop.fire(run=3, failures=2)
    shop.answers.append(ValueError("still no"))
    steps(shop.worker())
    (letter,) = shop.dead()
    assert (letter.run, letter.reason) == (run, "max_attempts")
    assert letter.attempts[0].error is not None
    assert letter.attempts[0].error.message == "still no"


@pytest.mark.parametrize("payload", [b"\xff", b"{", b"[" * 100_000])
def test_a_payload_that_is_no_json_is_dead_and_harms_no_other_run(shop: Shop, payload: bytes) -> None:
    shop.fire(payload=payload)
    steps(shop.worker())
    assert [ack.state for ack in shop.terminal()] == [AckState.DEAD]
    assert shop.seen == []


def test_a_work_record_nobody_can_read_is_dead_lettered_under_its_place(shop: Shop) -> None:
    shop.client.append(Put(NAMES.work("default"), 0, b"k", b"\x00garbage"))
    shop.fire()
    steps(shop.worker())
    (letter,) = shop.dead()
    assert (letter.reason, letter.source_offset, letter.value) == ("undecodable", 0, b"\x00garbage")
    committed = shop.logs["w"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 2


def test_an_unknown_handler_waits_and_ends_as_dead_after_the_limit(shop: Shop) -> None:
    shop.fire(handler="later")
    shop.fire()
    worker = shop.worker(unknown_handler_ms=5_000)
    steps(worker)
    assert [ack.handler for ack in shop.terminal()] == ["work"]
    assert "unknown_handler" in shop.told.lines
    shop.clock.advance(5_000)
    steps(worker)
    assert [letter.reason for letter in shop.dead()] == ["unknown_handler"]


# -- attempts over crashes ----------------------------------------------------------------------------------


def test_a_run_whose_worker_died_is_attempt_two_with_a_larger_token(shop: Shop) -> None:
    shop.fire()
    first = shop.worker("a")
    shop.executors["a"].hold = True
    steps(first)
    assert len(shop.started()) == 1
    shop.logs["a"].expire()
    wait_out(shop, shop.worker("b"))
    one, two = shop.started()
    assert (one.attempt, two.attempt) == (1, 2)
    assert two.token > one.token
    assert [ack.attempt for ack in shop.terminal()] == [2]


def test_a_run_that_keeps_killing_its_workers_is_dead(shop: Shop) -> None:
    shop.fire()
    for name in "abc":
        worker = shop.worker(name)
        shop.executors[name].hold = True
        wait_out(shop, worker)
        shop.logs[name].expire()
    wait_out(shop, shop.worker("d"))
    assert [letter.reason for letter in shop.dead()] == ["max_worker_deaths"]
    assert shop.seen == []


def test_what_finished_above_a_gap_is_not_started_again_by_the_next_owner(shop: Shop) -> None:
    shop.fire(handler="later")
    finished = shop.fire()
    steps(shop.worker("a"))
    committed = shop.logs["a"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 0
    shop.logs["a"].expire()
    steps(shop.worker("b"))
    assert [ack.occurrence_id for ack in shop.started()] == [finished.occurrence_id]


def test_a_drained_worker_gives_back_unspent_what_did_not_finish(shop: Shop) -> None:
    shop.fire()
    first = shop.worker("a")
    shop.executors["a"].hold = True
    steps(first)
    first.drain()
    steps(first, 1)
    assert not first.busy  # what had not begun was given back at once
    first.leave(0)
    first.close()
    steps(shop.worker("b"))
    assert [ack.attempt for ack in shop.terminal()] == [1]


def test_a_draining_worker_takes_nothing_more(shop: Shop) -> None:
    worker = shop.worker()
    steps(worker)
    worker.drain()
    shop.fire()
    steps(worker)
    assert shop.started() == []


def dies_in_its_ack_transaction(shop: Shop, name: str, at: str) -> None:
    """A worker is killed in its transaction: after `commit` was reached its offsets stay pending too, at `offsets`
    only its records stand in the way."""

    def die(stage: str, _id: str) -> None:
        if stage == at:
            raise KeyboardInterrupt

    worker = shop.worker(name)
    steps(worker)
    shop.fire()
    shop.cluster.hook = die
    with pytest.raises(KeyboardInterrupt):
        steps(worker)
    shop.cluster.hook = lambda stage, _id: None
    shop.logs[name].expire()


@pytest.mark.parametrize("at", ["offsets", "commit"])
def test_the_open_transaction_of_a_dead_holder_is_ended_after_a_second(shop: Shop, at: str) -> None:
    dies_in_its_ack_transaction(shop, "a", at)
    shop.clock.advance(3_001)
    heir = shop.worker("b")
    steps(heir)
    assert shop.terminal() == []
    shop.clock.advance(1_000)
    steps(heir, 12)
    assert shop.told.lines.count("fencing") == 1
    wait_out(shop, heir)
    assert [ack.attempt for ack in shop.terminal()] == [2]


@pytest.mark.parametrize("at", ["offsets", "commit"])
def test_the_transaction_of_a_holder_that_still_beats_is_left_alone(shop: Shop, at: str) -> None:
    dies_in_its_ack_transaction(shop, "a", at)
    heir = shop.worker("b", heartbeat_timeout_ms=6_000)
    steps(heir)
    shop.clock.advance(1_000)
    steps(heir, 12)
    assert "fencing" not in shop.told.lines
    assert shop.terminal() == []
    shop.cluster.time_out("t.a")
    wait_out(shop, heir, 8_000)
    assert [ack.attempt for ack in shop.terminal()] == [2]


# -- commits ------------------------------------------------------------------------------------------------


def test_a_refused_generation_keeps_the_results_and_sends_them_again(shop: Shop) -> None:
    worker = shop.worker()
    steps(worker)
    shop.logs["w"].faults.append(CommitFault.REFUSED)
    shop.fire()
    steps(worker)
    assert len(shop.seen) == 1
    assert len(shop.terminal()) == 1


@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_ABORTED, CommitFault.UNKNOWN_COMMITTED])
def test_after_an_unknown_outcome_each_result_is_committed_exactly_once(
    shop: Shop, fault: CommitFault
) -> None:
    worker = shop.worker()
    steps(worker)
    shop.logs["w"].faults.append(fault)
    shop.fire()
    shop.answers.append(ValueError("retry me"))
    steps(worker)
    assert len(shop.seen) == 1
    assert len(shop.terminal()) == len(shop.retries()) == 1


def test_a_result_that_can_never_be_appended_ends_its_run_and_no_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = shop.worker()
    steps(worker)
    commit = shop.logs["w"].commit

    def refuse(puts: list[Put], offsets: Any, membership: Any) -> None:
        if any(b"poison" in (put.value or b"") for put in puts):
            raise PoisonRecord("too large")
        commit(puts, offsets, membership)

    monkeypatch.setattr(shop.logs["w"], "commit", refuse)
    shop.answers.extend([{"n": 1}, {"n": "poison"}, {"n": 3}])
    for _ in range(3):
        shop.fire()
    steps(worker, 20)
    states = sorted(ack.state for ack in shop.terminal())
    assert states == [AckState.DEAD, AckState.SUCCEEDED, AckState.SUCCEEDED]
    assert [letter.reason for letter in shop.dead()] == ["unappendable"]


# -- admission ----------------------------------------------------------------------------------------------


def test_runs_of_one_serial_group_never_overlap_and_keep_their_order(shop: Shop) -> None:
    worker = shop.worker()
    shop.executors["w"].hold = True
    first, second = shop.fire(serial="s", payload=b'{"n":1}'), shop.fire(serial="s", payload=b'{"n":2}')
    alone = shop.fire(payload=b'{"n":3}')
    steps(worker)
    assert {a.occurrence_id for a in shop.started()} == {first.occurrence_id, alone.occurrence_id}
    shop.executors["w"].hold = False
    steps(worker)
    assert [c.payload["n"] for c in shop.seen] == [1, 3, 2]
    assert len(shop.terminal()) == 3
    assert second.serial == "s"


def test_no_more_runs_start_than_the_concurrency(shop: Shop) -> None:
    worker = shop.worker(concurrency=2)
    shop.executors["w"].hold = True
    for _ in range(5):
        shop.fire()
    steps(worker)
    assert len(shop.started()) == 2
    shop.executors["w"].hold = False
    steps(worker, 20)
    assert len(shop.terminal()) == 5


def test_a_heartbeat_names_handlers_partitions_and_runs_in_flight(shop: Shop) -> None:
    worker = shop.worker()
    shop.executors["w"].hold = True
    run = shop.fire()
    steps(worker)
    beat = worker.heartbeat()
    assert beat.handlers == ("work",)
    assert {owned.state for owned in beat.owned} == {"running"}
    assert [flight.occurrence_id for flight in beat.in_flight] == [run.occurrence_id]
    assert set(worker.states.values()) == {PartitionState.RUNNING}


def test_a_heartbeat_tells_the_generation_as_it_is_also_of_what_was_kept(shop: Shop) -> None:
    """That of its takeover is lower than the guards that are written after another one has joined (doctor, H20)."""
    one = shop.worker()
    steps(one)
    before = one.heartbeat().generation
    two = shop.worker("x")
    for _ in range(6):
        steps(one, 2)
        steps(two, 2)
    assert one.states
    assert two.states
    assert one.heartbeat().generation == two.heartbeat().generation > before
    one.close()
    assert one.heartbeat().generation == 0
