"""The pure half of the bench's shape for schedules: what is meant to fire, and what came instead."""

from __future__ import annotations

import os

import pytest

from pipeline.core.errors import DuelineError
from pipeline.core.ids import schedule_occurrence
from pipeline.core.schedule import ScheduleSpec
from pipeline.dev.bench.observer import Seen
from pipeline.dev.bench.schedules import Occurrences, meant, processor_s

START = 1_800_000_000_000
MINUTE = 60_000
SPECS = [
    ScheduleSpec(id="a", handler="h", cron="5 * * * * *", tz="Europe/Berlin"),
    ScheduleSpec(id="b", handler="h", every_ms=MINUTE, phase_ms=30_000),
]
MEANT = {
    "a": [START + 5_000, START + 5_000 + MINUTE],
    "b": [START + 30_000, START + 30_000 + MINUTE],
}


def key(schedule: str, at: int) -> bytes:
    return schedule_occurrence(schedule, 7, "g", "", at).encode()


@pytest.fixture
def occurrences() -> Occurrences:
    return Occurrences(MEANT, START, START + 2 * MINUTE)


def all_come(occurrences: Occurrences) -> None:
    for schedule, instants in MEANT.items():
        for at in instants:
            assert occurrences.due_in(key(schedule, at)) == at


def test_what_is_meant_is_what_the_preview_tells_of_the_range() -> None:
    assert meant(SPECS, START, START + 2 * MINUTE) == MEANT


def test_the_start_is_of_the_range_and_the_end_is_not() -> None:
    (spec,) = SPECS[1:]
    assert meant([spec], START + 30_000, START + 30_000 + MINUTE) == {"b": [START + 30_000]}


def test_all_of_them_once_is_right_whatever_comes_before_and_after(occurrences: Occurrences) -> None:
    all_come(occurrences)
    for at in (START - MINUTE, START + 2 * MINUTE):
        occurrences.due_in(key("a", at))
    assert (occurrences.count, occurrences.wanted) == (4, 4)
    occurrences.check()


def test_one_that_is_missing_ends_the_bench(occurrences: Occurrences) -> None:
    occurrences.due_in(key("a", MEANT["a"][0]))
    with pytest.raises(DuelineError, match="of 4 occurrences 3 are missing and 0 doubled, 0 others"):
        occurrences.check()


def test_one_that_came_twice_ends_the_bench(occurrences: Occurrences) -> None:
    all_come(occurrences)
    occurrences.due_in(key("b", MEANT["b"][1]))
    with pytest.raises(DuelineError, match="0 are missing and 1 doubled, 0 others"):
        occurrences.check()


def test_one_that_nobody_meant_ends_the_bench(occurrences: Occurrences) -> None:
    all_come(occurrences)
    occurrences.due_in(key("b", START + 1))
    with pytest.raises(DuelineError, match="0 are missing and 0 doubled, 1 others"):
        occurrences.check()


def test_only_records_of_the_range_are_measured(occurrences: Occurrences) -> None:
    seen = [Seen(due=at, at=at + 9, appended=at + 5) for at in (START - 1, START, START + 2 * MINUTE)]
    assert [record.due for record in occurrences.of(seen)] == [START]


def test_waiting_ends_when_all_have_come_or_somebody_has_ended(occurrences: Occurrences) -> None:
    def ended() -> None:
        raise DuelineError("a dispatcher ended")

    with pytest.raises(DuelineError, match="a dispatcher ended"):
        occurrences.wait(5.0, ended)
    all_come(occurrences)
    occurrences.wait(5.0, ended)


def test_processor_time_grows_and_is_nothing_for_a_process_that_is_gone() -> None:
    before = processor_s(os.getpid())
    while processor_s(os.getpid()) == before:
        pass
    assert processor_s(2**22 + 1) == 0.0
