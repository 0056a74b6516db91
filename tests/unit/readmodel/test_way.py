"""The fold holds back while somebody takes in many jobs, and never for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from unit.readmodel.conftest import wait_settled
from unit.readmodel.test_jobs import run_of

from pipeline.readmodel import JobsWanted, Position, ReadModel, following, way
from pipeline.readmodel.session import BATCH, Session
from pipeline.readmodel.way import GIVEN_S, LONGEST_REST_S, OLDEST_MS, SHARE, Way, rest_s


def test_way_is_given_for_a_moment_after_each_word() -> None:
    clock = [5.0]
    given = Way(lambda: clock[0])
    assert not given.given(0), "nobody has asked for it"
    given.give()
    clock[0] += GIVEN_S / 2
    assert given.given(0)
    given.give()
    clock[0] += GIVEN_S * 0.9
    assert given.given(0)
    clock[0] += GIVEN_S * 0.2
    assert not given.given(0), "who stalls holds nothing back"


def test_no_way_is_given_by_rows_that_are_old() -> None:
    given = Way()
    given.give()
    assert given.given(OLDEST_MS - 1)
    assert not given.given(OLDEST_MS)


def test_a_rest_leaves_the_fold_its_share_and_is_bounded() -> None:
    assert 0.02 / (0.02 + rest_s(0.02)) == pytest.approx(SHARE)
    assert rest_s(60.0) == LONGEST_REST_S


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each batch: how many records it might have, and how many it had."""
    taken: list[tuple[int, int]] = []
    plain = Session.step

    def step(self: Session, most: int = BATCH) -> Any:
        records = plain(self, most)
        taken.append((most, len(records)))
        return records

    monkeypatch.setattr(Session, "step", step)
    monkeypatch.setattr(way, "GIVEN_S", 600.0)
    return taken


def test_while_way_is_given_it_goes_on_in_small_steps_with_rests_and_catches_up(
    store: Any,
    settled: Callable[[], ReadModel],
    steps: list[tuple[int, int]],
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []

    def rest(spent: float) -> float:
        rests.append(spent)
        return 0.0

    monkeypatch.setattr(following, "SMALL", 3)
    monkeypatch.setattr(following, "rest_s", rest)
    model = settled()
    assert not rests
    model.give_way()
    eventually(lambda: steps[-1][0] == 3)
    for n in range(50):
        store.put(run_of(n))
    eventually(lambda: model.count(JobsWanted()).number == 50)
    assert max(number for most, number in steps if most == 3) == 3
    assert len(rests) >= 50 / 3
    assert all(spent >= 0 for spent in rests)


@pytest.fixture
def resting(steps: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once it rests, which it does for ten minutes."""
    begun = threading.Event()

    def rest(_spent: float) -> float:
        begun.set()
        return 600.0

    monkeypatch.setattr(following, "rest_s", rest)
    return begun


def test_who_waits_for_what_was_written_ends_a_rest(
    store: Any, settled: Callable[[], ReadModel], resting: threading.Event
) -> None:
    model = settled()
    model.give_way()
    assert resting.wait(10.0)
    run = run_of(1)
    store.put(run)
    home = store.layout.home(run.job_id)
    assert model.wait_for(Position(store.names.jobs, home, 0), 10_000)
    assert model._following._wakes == [], "nobody waits any more"


def test_it_ends_while_it_rests(settled: Callable[[], ReadModel], resting: threading.Event) -> None:
    model = settled()
    model.give_way()
    assert resting.wait(10.0)
    model.close()
    assert not model._following._thread.is_alive()


def test_after_a_few_records_more_are_let_come_and_after_none_or_many_it_goes_on(
    store: Any,
    settled: Callable[[], ReadModel],
    steps: list[tuple[int, int]],
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[int] = []
    monkeypatch.setattr(following, "SMALL", 3)
    monkeypatch.setattr(following.Following, "_rest", lambda *_: rests.append(steps[-1][1]))
    model = settled()
    for n in range(1, 3):
        store.put(run_of(n))
        eventually(lambda wanted=n: model.count(JobsWanted()).number == wanted)
    for n in range(10, 30):
        store.put(run_of(n))
    eventually(lambda: model.count(JobsWanted()).number == 22)
    eventually(lambda: steps[-1][1] == 0)
    assert rests == [number for _, number in steps if 0 < number < 3]
    assert len(rests) >= 2


def test_whoever_must_not_block_is_woken_by_each_batch(store: Any, settled: Callable[[], ReadModel]) -> None:
    model, woken = settled(), threading.Event()
    with model.awaited(woken.set):
        store.put(run_of(1))
        assert woken.wait(10.0)
    wait_settled(store, model)
    assert model._following._wakes == []
