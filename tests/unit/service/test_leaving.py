"""A worker that is told to end while its clients are dead: what it had started is finished or given back."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from unit.shop import NAMES, Shop, steps

from pipeline.core.errors import RebuildClients, StoreUnreachable
from pipeline.service import crew, loop
from pipeline.service.crew import Crew
from pipeline.service.loop import Stop, rebuilding

PATIENCE_S = 5.0


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))

    def actions(self) -> list[str]:
        return [action for action, _ in self.lines]


class Time:
    """Goes by where somebody sleeps, and with each step of a worker."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def asked(stop: Stop) -> None:
    stop.requested, stop.since = True, loop.time.monotonic()


# -- the loop -----------------------------------------------------------------------------------------------


def test_a_signal_ends_the_pause_before_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be ten seconds long, and whoever sent the signal has set a deadline."""
    monkeypatch.setattr(loop, "backoff", lambda policy, failures, random: 60_000)
    stop, told, before = Stop(), Told(), signal.getsignal(signal.SIGTERM)
    stop.listen()

    def run_once() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        raise RebuildClients("dead")

    alarm = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        rebuilding(run_once, stop, told)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGALRM, alarm)
    assert stop.requested
    assert told.actions() == ["rebuild"]


def test_what_is_owed_is_settled_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    stop, owed, outcomes = Stop(), [1], iter([RebuildClients("dead"), StoreUnreachable("gone"), None])

    def run_once() -> None:
        asked(stop)
        if (outcome := next(outcomes)) is not None:
            raise outcome
        owed.clear()

    rebuilding(run_once, stop, Told(), owes=lambda: bool(owed), patience_s=PATIENCE_S)
    assert owed == []


@pytest.mark.parametrize(("owing", "patience_s"), [(False, PATIENCE_S), (True, 0.0)])
def test_nothing_is_tried_for_nothing_or_for_ever(owing: bool, patience_s: float) -> None:
    stop, runs = Stop(), itertools.count()

    def run_once() -> None:
        next(runs)
        asked(stop)
        raise RebuildClients("dead")

    rebuilding(run_once, stop, Told(), owes=lambda: owing, patience_s=patience_s)
    assert next(runs) == 1


# -- a worker -----------------------------------------------------------------------------------------------


class House:
    """A crew over a queue in memory, and what `crew._work` builds around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shop, self.told, self.stop = Shop(), Told(), Stop()
        self.last = self.shop.worker("a")
        self.shop.executors["a"].hold_begun = True
        steps(self.last)
        self.shop.fire()
        steps(self.last)
        self.crew = Crew(
            "default", self.shop.executors["a"], 4, self.last._tickets, self.last._airborne,
            self.last._leases._outbox, SimpleNamespace(leave=lambda: None),  # type: ignore[arg-type]
        )  # fmt: skip
        self.built = 0
        self.step: Callable[[], None] = lambda: None
        nothing = SimpleNamespace(close=lambda: None)
        for name, fake in {
            "KafkaReader": lambda *_: nothing,
            "load_era": lambda _: 1,
            "_guards": lambda *_: None,
            "_worker": lambda *_: self._worker(),
        }.items():
            monkeypatch.setattr(crew, name, fake)

    def _worker(self) -> Any:
        self.built += 1
        self.last.close()
        self.last = self.shop.worker("a", after=self.last)
        return self.last

    def work(self, drain_timeout_ms: int) -> None:
        plant: Any = SimpleNamespace(
            settings=SimpleNamespace(
                require_bootstrap=lambda: "", kafka={}, drain_timeout_ms=drain_timeout_ms, names=NAMES
            ),
            identity=SimpleNamespace(process="a"),
            slot=SimpleNamespace(number=0),
            appender=self.last._appender,
            clock=self.shop.clock,
            events=self.told,
            observer=SimpleNamespace(
                metrics=SimpleNamespace(era=lambda _: None), around=self._around, over=lambda *_: False
            ),
        )
        rebuilding(
            lambda: crew._work(plant, self.stop, self.shop.registry, [self.crew], None),
            self.stop, self.told, owes=lambda: crew._owed([self.crew]) > 0, patience_s=drain_timeout_ms / 1000,
        )  # fmt: skip

    def outcome(self) -> list[tuple[str, int, str]]:
        """Of the run, as its next owner has it."""
        steps(self.shop.worker("b"), 20)
        return [(ack.worker, ack.attempt, ack.state) for ack in self.shop.terminal()]

    def _around(self, step: Callable[[int], int]) -> Callable[[int], int]:
        def stepped(patience: int) -> int:
            loop.time.sleep(0.01)
            self.step()
            return step(0)

        return stepped


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setattr(loop, "backoff", lambda policy, failures, random: 1)
    passing = Time()
    for module in (loop, crew):
        monkeypatch.setattr(module, "time", passing)
    return House(monkeypatch)


def die(house: House) -> None:
    """The clients die, and SIGTERM comes before they are built anew."""
    asked(house.stop)
    house.step = lambda: None
    raise RebuildClients("dead")


def test_told_to_end_while_its_clients_are_dead_a_worker_still_finishes_what_it_runs(house: House) -> None:
    def collect() -> None:
        house.shop.executors["a"].hold_begun = house.built < 2

    def first() -> None:
        house.step = collect
        asked(house.stop)
        raise RebuildClients("dead")

    house.step = first
    house.work(10_000)
    assert house.built == 2
    assert house.outcome() == [("a", 1, "succeeded")]
    assert crew._owed([house.crew]) == 0


def test_what_does_not_end_in_time_is_given_back_by_the_clients_built_anew(house: House) -> None:
    house.step = lambda: die(house)
    house.work(300)
    assert [ack.state for ack in house.shop.started()] == ["started", "released"]
    assert crew._owed([house.crew]) == 0


def test_clients_that_die_in_a_drain_do_not_end_it(house: House) -> None:
    """What runs would start elsewhere although there was time for it."""
    deaths = iter([None, RebuildClients("dead")])

    def step() -> None:
        if (death := next(deaths, None)) is not None:
            raise death
        asked(house.stop)
        house.shop.executors["a"].hold_begun = house.built < 2

    house.step = step
    house.work(10_000)
    assert house.outcome() == [("a", 1, "succeeded")]
    assert [ack.state for ack in house.shop.started()] == ["started"]


def test_what_the_store_never_took_is_owed_to_the_end(house: House) -> None:
    house.step = lambda: die(house)
    house.shop.cluster.reachable = False
    house.work(200)
    assert crew._owed([house.crew]) == 1
