"""A worker that meets more, or worse, than it can take: foreign records, unknown handlers, killers, deep groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from unit.shop import NAMES, Shop, steps, wait_out

from pipeline import codec, worker
from pipeline.adapters.executors import InlineExecutor
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState
from pipeline.ports import Call, Put


@pytest.fixture
def shop() -> Shop:
    return Shop()


# -- foreign records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 0},
        {"run": -1},
        {"job_id": "x"},
        {"occurrence_id": "x"},
        {"occurrence_id": anonymous_id(7, 7)},  # legal, but not the record's key
        {"queue": "mail"},
        {"handler": "No Name"},
        {"handler": ""},
    ],
)
def test_a_run_that_no_dispatcher_wrote_is_dead_lettered_and_harms_no_other(
    shop: Shop, changes: dict[str, Any]
) -> None:
    foreign = shop.fire(**changes)
    own = shop.fire()
    steps(shop.worker())
    (letter,) = shop.dead()
    assert (letter.reason, letter.source_offset) == ("undecodable", 0)
    assert letter.value == codec.RUN.encode(foreign)
    assert [ack.occurrence_id for ack in shop.terminal()] == [own.occurrence_id]
    committed = shop.logs["w"].committed([0], 0)[0]
    assert committed is not None
    assert committed.offset == 2


def test_many_foreign_records_between_runs_keep_the_offset_metadata_short(shop: Shop) -> None:
    for _ in range(450):
        shop.fire(run=0)
        shop.fire()
    steps(shop.worker(), 240)
    assert len(shop.dead()) == len(shop.terminal()) == 450


# -- unknown handlers ---------------------------------------------------------------------------------------


def test_runs_of_unknown_handlers_beyond_the_limit_go_home_and_stop_no_known_run(shop: Shop) -> None:
    known = []
    for _ in range(600):
        shop.fire(handler="later", failures=1)
        known.append(shop.fire().occurrence_id)
    steps(shop.worker(), 240)
    ended = [ack.occurrence_id for ack in shop.terminal() if ack.state is AckState.SUCCEEDED]
    assert sorted(ended) == sorted(known)
    again = shop.retries()
    assert len(again) == 500
    assert {(run.run, run.failures, run.due_at) for run in again} == {(2, 1, shop.clock.now() + 60_000)}


def test_parked_payloads_are_limited_in_bytes(shop: Shop) -> None:
    size = 900_000
    for _ in range(12):
        shop.fire(handler="later", payload=b"1" * size)
    steps(shop.worker())
    assert len(shop.retries()) == 12 - 8 * 1024 * 1024 // size


def test_a_run_of_an_unknown_handler_that_went_round_long_enough_is_dead_at_arrival(shop: Shop) -> None:
    for rounds in (5, 4):
        shop.fire(handler="later", run=1 + 2 + rounds, failures=2)
    steps(shop.worker(unknown_handler_ms=5 * 60_000))
    assert [(letter.reason, letter.source_offset) for letter in shop.dead()] == [("unknown_handler", 0)]


def test_a_late_run_of_an_unknown_handler_waits_all_the_same(shop: Shop) -> None:
    shop.fire(handler="later", nominal_at=shop.clock.now() - 86_400_000)
    steps(shop.worker())
    assert shop.dead() == []


def test_an_unknown_handler_is_told_of_once_a_minute(shop: Shop) -> None:
    one = shop.worker()
    for handler in ("later", "later", "other"):
        shop.fire(handler=handler)
    steps(one)
    assert shop.told.lines.count("unknown_handler") == 2
    shop.clock.advance(60_000)
    shop.fire(handler="later")
    steps(one)
    assert shop.told.lines.count("unknown_handler") == 3


# -- a job that kills its worker ----------------------------------------------------------------------------


def killed(shop: Shop, name: str, **limits: int) -> None:
    """A worker starts what it may, and dies with everything that it runs."""
    one = shop.worker(name, **limits)
    shop.executors[name].hold = True
    wait_out(shop, one)
    shop.logs[name].expire()


def test_the_last_attempt_before_the_limit_gets_a_process_of_its_own(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a job that kills its worker takes no neighbour with it, and nobody has to wait for it."""
    calls: list[Call] = []
    submit = InlineExecutor.submit
    monkeypatch.setattr(InlineExecutor, "submit", lambda self, call: (calls.append(call), submit(self, call)))
    culprit = shop.fire()
    killed(shop, "a")
    killed(shop, "b")
    late = shop.fire()
    wait_out(shop, shop.worker("c"))
    apart = [(call.task.run.occurrence_id, call.task.attempt) for call in calls if call.task is not None]
    assert apart == [(culprit.occurrence_id, 3)]
    assert {ack.occurrence_id for ack in shop.terminal()} == {culprit.occurrence_id, late.occurrence_id}


def test_a_run_that_killed_too_many_workers_is_dead_and_no_other(shop: Shop) -> None:
    culprit = shop.fire()
    killed(shop, "a", max_worker_deaths=2)
    killed(shop, "b", max_worker_deaths=2)
    innocent = shop.fire()
    wait_out(shop, shop.worker("c", max_worker_deaths=2))
    (letter,) = shop.dead()
    assert letter.run is not None
    assert (letter.reason, letter.run.occurrence_id) == ("max_worker_deaths", culprit.occurrence_id)
    assert [a.occurrence_id for a in shop.terminal() if a.state is AckState.SUCCEEDED] == [
        innocent.occurrence_id
    ]


# -- back-pressure ------------------------------------------------------------------------------------------


def fetching(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the worker `w` pauses and resumes from now on."""
    told: list[tuple[str, int]] = []
    log = shop.logs["w"]
    pause, resume = log.pause, log.resume

    def pausing(partitions: Iterable[int]) -> None:
        told.extend(("pause", number) for number in partitions)
        pause(partitions)

    def resuming(partitions: Iterable[int], positions: Any) -> None:
        told.extend(("resume", number) for number in partitions)
        resume(partitions, positions)

    monkeypatch.setattr(log, "pause", pausing)
    monkeypatch.setattr(log, "resume", resuming)
    return told


def test_a_deep_serial_group_pauses_its_own_lane_only(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop.worker(concurrency=2)
    told = fetching(shop, monkeypatch)
    depth = worker.LANE_LIMIT + 300
    for _ in range(depth):
        shop.fire(serial="s")
    shop.executors["w"].hold = True
    steps(one, 4)
    assert told == [("pause", 0)]
    other = shop.fire()
    shop.client.append(Put(NAMES.work("default"), 1, other.job_id.encode(), codec.RUN.encode(other)))
    steps(one, 4)
    assert other.occurrence_id in {flight.occurrence_id for flight in one.heartbeat().in_flight}
    shop.executors["w"].hold = False
    steps(one, 2 * depth)
    assert told == [("pause", 0), ("resume", 0)]
    assert len({ctx.occurrence_id for ctx in shop.seen}) == depth + 1


def test_payload_in_bytes_pauses_a_lane_too(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PAYLOAD_LIMIT", 2_000)
    one = shop.worker(concurrency=1)
    told = fetching(shop, monkeypatch)
    shop.executors["w"].hold = True
    for _ in range(4):
        shop.fire(payload=b"1" * 400)
    steps(one)
    assert told == [("pause", 0)]
    shop.executors["w"].hold = False
    steps(one, 20)
    assert told == [("pause", 0), ("resume", 0)]
    assert len(shop.terminal()) == 4


def test_a_lane_assigned_again_starts_unpaused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop.worker(concurrency=1)
    told = fetching(shop, monkeypatch)
    shop.executors["w"].hold = True
    for _ in range(worker.LANE_LIMIT + 2):
        shop.fire()
    steps(one, 4)
    assert told == [("pause", 0)]
    shop.logs["w"].expire()
    steps(one, 6)
    assert told == [("pause", 0), ("pause", 0)]
