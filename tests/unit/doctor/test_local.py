"""This machine: indexes and disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.doctor.healthy import FLEET, HEALTHY, JOBS, LOCAL, NOW, POSITION, beat, found, only, owned, spoilt

from pipeline.doctor import Danger, Facts, Severity
from pipeline.doctor.facts import Ends, LocalIndex, Place
from pipeline.doctor.local import FULL_BYTES, LOW_BYTES, STALE_MS

OTHERS = FLEET[1:]


def aged(ms: int, *partitions: int, **more: object) -> Facts:
    """With those partitions of the index not in step for so long."""
    old = POSITION._replace(synced_at=NOW - ms)
    positions = dict.fromkeys(range(4), POSITION) | dict.fromkeys(partitions, old)
    return spoilt(local=replace(LOCAL, indexes=(LocalIndex(slot=0, positions=positions),)), **more)


def test_an_index_that_does_not_follow_its_log_is_told_before_it_is_wiped() -> None:
    assert found("index", aged(STALE_MS // 2, 1)) == []
    told = only("index", aged(STALE_MS // 2 + 1, 1, 2))
    assert (told.severity, told.subject) == (Severity.WARNING, "/state/dispatcher/0/index")
    assert told.problem.startswith("was last in step with the log of partitions 1-2 42 h ago; after 4 d")


def test_partitions_that_have_gone_elsewhere_may_be_old() -> None:
    fleet = (beat("aa.0.x", "dispatcher", *owned(JOBS)[:1]), *OTHERS)
    assert found("index", aged(10 * STALE_MS, 1, 2, 3, fleet=fleet)) == []


@pytest.mark.parametrize("process", ["aa.1.x", "bb.0.x"])
def test_an_index_that_nobody_uses_is_read_anew_when_it_is_old(process: str) -> None:
    fleet = (beat(process, "dispatcher", *owned(JOBS)), *OTHERS)
    told = [
        f
        for f in found("index", aged(STALE_MS + 1, *range(4), fleet=fleet))
        if "not checked" not in f.problem
    ]
    assert [(f.severity, f.subject) for f in told] == [(Severity.NOTE, "/state/dispatcher/0/index")]
    assert "the next dispatcher in this slot reads its partitions from their beginning" in told[0].problem
    assert not [
        f for f in found("index", aged(STALE_MS + 1, 1, fleet=fleet)) if "not checked" not in f.problem
    ]


def test_a_log_that_ends_before_an_index_was_cut() -> None:
    ends = {**HEALTHY.ends, Place(JOBS, 2): Ends(first=0, stable=89, last=89)}
    told = only("index", spoilt(ends=ends))
    assert (told.severity, told.danger) == (Severity.ERROR, Danger.LOST)
    assert told.problem.startswith(f"stands behind the end of partitions 2 of {JOBS}")
    assert found("index", spoilt(ends=ends, topic_ids={JOBS: "made anew"})) == []
    assert found("index", spoilt(ends={})) == []


def test_of_dispatchers_elsewhere_nothing_is_known_here() -> None:
    fleet = (*FLEET, beat("bb.0.y", "dispatcher", host="h2"), beat("cc.0.y", "dispatcher", host="h3"))
    told = only("index", spoilt(fleet=fleet))
    assert (told.severity, told.danger) == (Severity.NOTE, Danger.SIGHT)
    assert told.problem == "not checked of 2 dispatchers with another state directory (hosts h2, h3)"
    here = only("index", spoilt(local=replace(LOCAL, instance="", indexes=())))
    assert "not checked of 1 dispatchers" in here.problem


def test_zone_data_that_were_replaced_under_a_running_dispatcher_are_told() -> None:
    filed = LocalIndex(slot=0, positions={}, zone_data={0: "2026c", 1: "2025b", 3: "2025b"})
    facts = spoilt(local=replace(LOCAL, indexes=(filed,)), zone_data="2026c")
    told = only("index", facts)
    assert (told.severity, told.subject) == (Severity.WARNING, "/state/dispatcher/0/index")
    assert told.problem.startswith(
        "schedules of partitions 1, 3 are filed by zone data 2025b, this machine has 2026c"
    )
    nobody = (beat("bb.0.x", "dispatcher", *owned(JOBS)), *OTHERS)
    assert not [f for f in found("index", replace(facts, fleet=nobody)) if "zone data" in f.problem]


# -- disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "severity", "problem"),
    [
        ({"writable": False}, Severity.ERROR, "cannot be written by this user: no process can start"),
        ({"private": False}, Severity.WARNING, "can be read by others: payloads stand in it"),
        ({"free_bytes": FULL_BYTES - 1}, Severity.ERROR, "has 255 MiB free"),
        ({"free_bytes": LOW_BYTES - 1}, Severity.WARNING, "has 1023 MiB free"),
    ],
)
def test_the_state_directory(changes: dict[str, object], severity: Severity, problem: str) -> None:
    told = only("disk", spoilt(local=replace(LOCAL, **changes)))
    assert (told.severity, told.subject, told.problem) == (severity, "/state", problem)


def test_the_disks_of_brokers_are_beyond_the_client_library() -> None:
    told = only("disk", spoilt(bootstrap="other:9092"))
    assert (told.severity, told.danger) == (Severity.NOTE, Danger.SIGHT)
    assert told.remedy.startswith("kafka-log-dirs.sh --bootstrap-server other:9092 --describe")
