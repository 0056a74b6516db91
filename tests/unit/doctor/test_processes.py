"""Clocks, versions, sessions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.doctor.healthy import (
    BROKERS,
    FLEET,
    HEALTHY,
    JOBS,
    LAYOUT,
    NOW,
    SETTINGS,
    beat,
    found,
    only,
    owned,
    spoilt,
)

from pipeline.core.clock import Reading
from pipeline.doctor import Danger, Facts, Severity

HOUR = 3_600_000


def clock(ahead_ms: int, error_ms: int = 2, *, outside: bool = False) -> Facts:
    return spoilt(clocks={**HEALTHY.clocks, 2: Reading(ahead_ms, error_ms, outside)})


def test_a_clock_that_the_majority_does_not_share_is_an_error() -> None:
    told = only("clocks", clock(3_600_000, outside=True))
    assert (told.severity, told.danger, told.subject) == (Severity.ERROR, Danger.CLOCK, "broker 2")
    assert told.problem == "its clock is 60 min ahead of the store's, so it is excluded"


@pytest.mark.parametrize(("ahead_ms", "told"), [(700, "700 ms ahead of"), (-700, "700 ms behind")])
def test_one_that_drifts_is_told_before(ahead_ms: int, told: str) -> None:
    found_ = only("clocks", clock(ahead_ms))
    assert (found_.severity, found_.problem) == (Severity.WARNING, f"its clock is {told} the store's")


@pytest.mark.parametrize(("ahead_ms", "error_ms"), [(501, 2), (3_000, 2_600)])
def test_what_the_probes_cannot_tell_is_no_drift(ahead_ms: int, error_ms: int) -> None:
    assert found("clocks", clock(ahead_ms, error_ms)) == []


# -- versions ------------------------------------------------------------------------------------------------


def test_an_announced_schema_that_is_unknown_here_stops_partitions() -> None:
    known = frozenset(sorted(HEALTHY.known)[1:])
    told = only("versions", spoilt(known=known))
    assert (told.severity, told.subject) == (Severity.ERROR, "version 1")
    assert sorted(HEALTHY.known)[0] in told.problem
    assert told.remedy.startswith("deploy version 1 ")
    assert only("versions", spoilt(known=known, version="0")).severity is Severity.WARNING


def test_what_is_written_and_not_announced_is_buried_by_the_others() -> None:
    layout = replace(LAYOUT, fingerprints=LAYOUT.fingerprints[1:])
    told = only("versions", spoilt(layout=layout))
    assert (told.severity, told.danger) == (Severity.WARNING, Danger.LOST)
    assert told.problem.startswith(
        "writes 1 schemas that are not announced: processes of version before it bury"
    )
    assert told.remedy.startswith("dueline topics upgrade")
    older = (*FLEET, beat("o", "dispatcher", version="0.9"))
    both = [f for f in found("versions", spoilt(layout=layout, fleet=older)) if f.danger is Danger.LOST]
    assert [found_.severity for found_ in both] == [Severity.ERROR]
    assert "processes of version 0.9 bury" in both[0].problem


@pytest.mark.parametrize(("age", "severity"), [(HOUR, Severity.NOTE), (HOUR + 1, Severity.WARNING)])
def test_versions_side_by_side_are_a_deploy_for_an_hour(age: int, severity: Severity) -> None:
    old = beat("x", "dispatcher", *owned(JOBS), version="0.9", started_at=1)
    new = [beat(s.heartbeat.process, "worker", started_at=NOW - age) for s in FLEET[1:]]
    told = only("versions", spoilt(fleet=(old, *new)))
    assert (told.severity, told.subject) == (severity, "fleet")
    assert told.problem.startswith("versions 0.9, 1 run side by side")


def test_versions_of_those_who_went_silent_do_not_count() -> None:
    assert found("versions", spoilt(fleet=(*FLEET, beat("o", "worker", version="0", at=NOW - HOUR)))) == []


# -- sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "protocol", "refused"),
    [
        (None, "classic", False),
        (3_000, "classic", False),
        (2_999, "classic", True),
        (1_800_001, "classic", True),
        (44_999, "consumer", True),
        (60_001, "consumer", True),
        (50_000, "consumer", False),
    ],
)
def test_a_session_that_the_brokers_refuse(wanted: int | None, protocol: str, refused: bool) -> None:
    told = found("sessions", spoilt(session_timeout_ms=wanted, group_protocol=protocol))
    assert [(f.severity, f.subject) for f in told] == [
        (Severity.ERROR, "DUELINE_SESSION_TIMEOUT_MS")
    ] * refused


def test_the_strictest_broker_counts_and_a_silent_one_not() -> None:
    strict = {**SETTINGS, "group.min.session.timeout.ms": "6000"}
    facts = spoilt(
        session_timeout_ms=5_000, broker_settings=dict.fromkeys(BROKERS, SETTINGS) | {2: strict, 3: {}}
    )
    assert "the brokers take 6000 to 1800000 ms" in only("sessions", facts).problem
    assert found("sessions", spoilt(session_timeout_ms=5_000, broker_settings={})) == []
