"""The history checker finds every anomaly that is planted, names it, and finds nothing where nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from history import Ended, Fired, Kind, anomalies, worst_lateness
from hypothesis import given
from hypothesis import strategies as st

DUE = 1_000
CREATED = {"a": DUE, "b": DUE + 5, "c": DUE}
WORK = [
    Fired(occurrence=job, run=1, due_at=due, appended_at=due + 3, place="default/1")
    for job, due in CREATED.items()
]
ENDS = [Ended(occurrence=job, end="fired", place="default/1") for job in CREATED]


def kinds(work: list[Fired], ends: list[Ended]) -> set[tuple[str, str]]:
    return {(anomaly.kind.value, anomaly.occurrence) for anomaly in anomalies(CREATED, work, ends)}


def test_a_good_history_has_no_anomaly() -> None:
    assert kinds(WORK, ENDS) == set()


def test_appended_at_the_due_instant_is_not_early() -> None:
    assert kinds([replace(run, appended_at=run.due_at) for run in WORK], ENDS) == set()


def test_a_job_without_any_record_is_lost() -> None:
    assert kinds(WORK[1:], ENDS[1:]) == {("lost", "a")}


def test_a_tombstone_without_its_run_is_lost_and_torn() -> None:
    assert kinds(WORK[1:], ENDS) == {("lost", "a"), ("torn", "a")}


def test_a_run_without_its_tombstone_is_torn() -> None:
    assert kinds(WORK, ENDS[1:]) == {("torn", "a")}


def test_a_tombstone_that_does_not_say_fired_is_not_that_of_a_run() -> None:
    assert kinds(WORK, [replace(ENDS[0], end="moved"), *ENDS[1:]]) == {("torn", "a")}


def test_two_runs_with_two_tombstones_are_doubled() -> None:
    assert kinds([*WORK, WORK[2]], [*ENDS, ENDS[2]]) == {("doubled", "c")}


def test_two_runs_on_different_partitions_are_doubled() -> None:
    moved = replace(WORK[2], place="default/2")
    tomb = replace(ENDS[2], place="default/2")
    assert kinds([*WORK, moved], [*ENDS, tomb]) == {("doubled", "c")}


def test_a_torn_double_is_both() -> None:
    assert kinds([*WORK, WORK[0]], ENDS) == {("doubled", "a"), ("torn", "a")}


def test_one_millisecond_early_is_early() -> None:
    assert kinds([replace(WORK[0], appended_at=DUE - 1), *WORK[1:]], ENDS) == {("early", "a")}


def test_early_is_measured_against_the_creation_not_against_what_the_record_claims() -> None:
    claimed = replace(WORK[0], due_at=DUE - 50, appended_at=DUE - 40)
    assert kinds([claimed, *WORK[1:]], ENDS) == {("early", "a"), ("altered", "a")}


def test_a_run_of_a_job_that_nobody_created_is_foreign() -> None:
    alien = replace(WORK[0], occurrence="z")
    assert kinds([*WORK, alien], [*ENDS, replace(ENDS[0], occurrence="z")]) == {("foreign", "z")}


def test_a_tombstone_that_names_another_partition_is_misplaced() -> None:
    assert kinds(WORK, [replace(ENDS[0], place="default/7"), *ENDS[1:]]) == {("misplaced", "a")}


def test_later_runs_are_no_doubles_and_do_not_stand_in_for_run_one() -> None:
    retry = replace(WORK[0], run=2)
    assert kinds([*WORK, retry], ENDS) == set()
    assert kinds([retry, *WORK[1:]], ENDS) == {("lost", "a"), ("torn", "a")}


@given(st.lists(st.sampled_from(range(3)), max_size=9))
def test_exactly_once_and_nothing_else_passes(drawn: list[int]) -> None:
    found = anomalies(CREATED, [WORK[n] for n in drawn], [ENDS[n] for n in drawn])
    wrong = {(Kind.LOST if drawn.count(n) == 0 else Kind.DOUBLED) for n in range(3) if drawn.count(n) != 1}
    assert {anomaly.kind for anomaly in found} == wrong


@pytest.mark.parametrize(("seen", "worst"), [({}, 0), ({"a": 1_900, "b": 1_010, "z": 9_000}, 900)])
def test_the_worst_lateness_is_that_of_created_jobs(seen: dict[str, int], worst: int) -> None:
    assert worst_lateness(CREATED, seen) == worst


def test_an_anomaly_says_what_and_whose() -> None:
    (lost,) = anomalies({"a": 1}, [], [])
    assert str(lost) == "lost a"
