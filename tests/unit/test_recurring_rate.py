"""Occurrences of schedules and the rate of their queue: each takes a place of its own, however many are due at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pipeline import codec
from pipeline.choice import Choice
from pipeline.core import keys
from pipeline.core.job import Event, Run
from pipeline.core.rates import Rates
from pipeline.core.schedule import ScheduleSpec
from pipeline.core.states import PartitionState
from tests.unit.owner import LAYOUT, NAMES, NOW, SITE, Owner

ID, MINUTE, A_SECOND = "poll", 60_000, 10


class Paced(Owner):
    """An owner whose queue has a rate, and what it emits by the time at which it does."""

    def __init__(self, rates: Rates) -> None:
        super().__init__(LAYOUT.home_of_name(ID), replace(SITE, rates=rates))
        self.partition.state = PartitionState.RUNNING
        self.choice = Choice(rates)
        self.runs: list[tuple[int, Run]] = []

    def make(self, **changes: Any) -> None:
        spec = ScheduleSpec(**{"id": ID, "handler": "h", "every_ms": MINUTE, **changes})
        assert self.command("schedule.create", schedule_id=ID, spec=spec).outcome == "created"

    def live(self, begin: int, ms: int) -> None:
        """Step every ten milliseconds."""
        for now in range(begin, begin + ms, 10):
            for partition, entries in self.choice.next([self.partition], now, 1.0):
                emission = partition.emit(entries, now)
                partition.applied(emission)
                self.echo(emission)
                work = [put.value or b"" for put in emission.puts if put.topic == NAMES.work("default")]
                self.runs += [(now, codec.RUN.decode(value)) for value in work]

    def end(self, run: Run, at: int) -> None:
        fact = Event(id=run.occurrence_id, kind="done", at=at, run=1, outcome="succeeded")
        self.read(keys.done_key(run.occurrence_id, 1), codec.EVENT.encode(fact), at=at)

    def check_rate(self) -> None:
        times = [at for at, _ in self.runs]
        assert all(after - before >= 1_000 // A_SECOND - 10 for before, after in pairwise(times)), times


@pytest.fixture
def owner() -> Paced:
    return Paced(Rates(queues={"default": A_SECOND}))


def test_what_is_caught_up_takes_a_place_for_each_occurrence(owner: Paced) -> None:
    owner.make(misfire="all(30)", overlap="allow")
    noon = NOW + 1_440 * MINUTE
    owner.live(noon, 5_000)
    owner.check_rate()
    assert len(owner.runs) == 30
    assert [run.nominal_at for _, run in owner.runs] == sorted({run.nominal_at for _, run in owner.runs})


def test_a_backfill_does_too(owner: Paced) -> None:
    owner.make(overlap="allow", start_at=NOW - 30 * MINUTE)
    detail = {"from": str(NOW - 20 * MINUTE), "to": str(NOW)}
    assert owner.command("schedule.backfill", schedule_id=ID, detail=detail).outcome == "started"
    before = owner.entry(keys.schedule_key(ID))
    owner.live(NOW, 5_000)
    owner.check_rate()
    assert len(owner.runs) >= 19, before


def test_what_waited_for_the_end_of_another_waits_for_its_place(owner: Paced) -> None:
    """Runs that end at once would have the next ones follow at their own pace."""
    owner.make(misfire="all(20)", overlap="buffer_all(20)")
    now = NOW + 60 * MINUTE
    owner.live(now, 200)
    ended = 0
    while ended < 20:
        now += 200
        for _, run in owner.runs[ended:]:
            owner.end(run, now)
            ended += 1
        owner.live(now, 200)
        assert now < NOW + 61 * MINUTE
    owner.check_rate()
    assert len(owner.runs) == 20


def test_what_is_caught_up_takes_a_place_in_the_rate_of_the_backlog() -> None:
    """Which begins with those of a second."""
    owner = Paced(Rates(catchup=A_SECOND))
    owner.make(misfire="all(30)", overlap="allow")
    noon = NOW + 1_440 * MINUTE
    owner.live(noon, 5_000)
    assert len(owner.runs) == 30
    for second in range(3):
        assert sum(at < noon + second * 1_000 for at, _ in owner.runs) <= A_SECOND * (second + 1)
