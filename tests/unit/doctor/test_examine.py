"""The doctor as a whole: a healthy store, what could not be asked, and what counts once it is found twice."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from unit.doctor.healthy import HEALTHY, NAMES, spoilt

from pipeline.doctor import CHECKS, Danger, Facts, Finding, Severity, confirmed, examine
from pipeline.doctor.findings import listed, span


def test_of_a_healthy_store_it_is_said_only_what_nobody_can_look_at() -> None:
    told = examine(HEALTHY)
    assert [(name, found.severity, found.problem[:11]) for name, found in told] == [
        ("disk", Severity.NOTE, "not checked")
    ]
    assert examine(spoilt(development=True)) == []


NEEDED = sorted({fact for check in CHECKS.values() for fact in check.needs})


@pytest.mark.parametrize("fact", NEEDED)
def test_a_fact_that_could_not_be_had_is_told_by_every_check_that_needs_it(fact: str) -> None:
    told = examine(spoilt(missing={fact: "the broker timed out"}))
    unable = {name for name, found in told if found.problem == "not checked: the broker timed out"}
    assert unable == {name for name, check in CHECKS.items() if fact in check.needs}
    assert {found.severity for name, found in told if name in unable} == {Severity.WARNING}
    assert {found.subject for name, found in told if name in unable} == {fact}
    assert all(found.danger is CHECKS[name].danger for name, found in told if name in unable)


def test_every_fact_that_a_check_needs_is_one() -> None:
    assert set(NEEDED) <= {field.name for field in fields(Facts)}


@pytest.mark.parametrize(
    ("spoils", "problem"),
    [
        ({"layout": None}, "holds no layout: no process can start"),
        ({"era": None}, "holds no era: no process can start"),
        (
            {"layout": None, "missing": {"layout": "meta has no leader"}},
            "meta has no leader: no process can start",
        ),
    ],
)
def test_of_what_is_no_installation_only_that_is_said(spoils: dict[str, object], problem: str) -> None:
    ((name, found),) = examine(spoilt(**spoils))
    assert (name, found.severity, found.subject, found.problem) == (
        "installation",
        Severity.ERROR,
        NAMES.meta,
        problem,
    )
    assert found.remedy == "dueline topics create"


def test_the_worst_comes_first() -> None:
    told = examine(replace(HEALTHY, brokers=frozenset((1, 2)), era=1, members={}, fleet=()))
    severities = [found.severity for _, found in told]
    assert severities == sorted(severities, key=list(Severity).index)
    assert {Severity.ERROR, Severity.WARNING, Severity.NOTE} == set(severities)


def of(subject: str, problem: str = "") -> Finding:
    return Finding(
        severity=Severity.ERROR, subject=subject, problem=problem, danger=Danger.ON_TIME, remedy="nothing"
    )


def test_what_may_pass_counts_once_it_is_found_twice() -> None:
    first = [("owners", of("jobs", "one")), ("members", of("gone"))]
    second = [("owners", of("jobs", "two")), ("owners", of("work")), ("clocks", of("broker 1"))]
    assert confirmed(first, second) == [("owners", of("jobs", "two")), ("clocks", of("broker 1"))]


def test_a_danger_is_a_promise_by_its_number_or_none() -> None:
    assert [danger.promise for danger in Danger] == [1, 2, 3, 4, 6, None, None]
    assert Danger.ON_TIME.words.startswith("jobs fire")


def test_partitions_in_words() -> None:
    assert listed([3, 0, 1, 2, 7]) == "0-3, 7"
    assert listed(range(0, 60, 2), most=3) == "0, 2, 4 …"
    assert listed([]) == ""


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (999, "999 ms"),
        (1_999, "1999 ms"),
        (2_000, "2 s"),
        (119_000, "119 s"),
        (7_200_000, "2 h"),
        (172_800_000, "2 d"),
    ],
)
def test_lengths_of_time_in_words(ms: int, words: str) -> None:
    assert span(ms) == words
