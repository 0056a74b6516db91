"""Partitions without an owner, members that are nobody, groups that lost their memory, logs that were cut."""

from __future__ import annotations

import pytest
from unit.doctor.healthy import (
    DISPATCHERS,
    FLEET,
    HEALTHY,
    JOBS,
    MAIL,
    NAMES,
    NOW,
    WORK,
    WORKERS,
    beat,
    found,
    member,
    only,
    owned,
    spoilt,
)

from pipeline.core.job import GroupGuard
from pipeline.doctor import Danger, Severity
from pipeline.doctor.facts import FRESH_MS, Ends, Member, Place, Share

WORKER, MAILER = FLEET[1:]


def test_without_a_dispatcher_nothing_fires() -> None:
    told = only("owners", spoilt(fleet=(WORKER, MAILER)))
    assert (told.severity, told.subject, told.remedy) == (Severity.ERROR, JOBS, "dueline dispatcher")
    assert told.problem == "all 4 partitions have no owner: nothing fires there"


def test_runs_that_wait_for_a_handler_that_nobody_knows_are_told_by_queue() -> None:
    """Nothing else looks wrong: the partitions have owners, and nothing is overdue."""
    workers = [beat(f"w{n}", "worker", *owned(WORK), queues=("default",), parked=n) for n in range(3)]
    mailer = beat("m", "worker", *owned(MAIL), queues=("mail",), parked=1)
    gone = beat("g", "worker", queues=("mail",), parked=9, at=NOW - FRESH_MS - 1)
    default, mail = found("handlers", spoilt(fleet=(FLEET[0], *workers, mailer, gone)))
    assert (default.severity, default.subject, mail.subject) == (Severity.WARNING, "default", "mail")
    assert default.problem.startswith("3 runs wait for a handler that no worker of the queue knows")
    assert mail.problem.startswith("1 run waits")
    assert found("handlers", HEALTHY) == []


def test_a_process_that_went_silent_owns_nothing() -> None:
    silent = beat("aa.0.x", "dispatcher", *owned(JOBS), at=NOW - FRESH_MS - 1)
    assert only("owners", spoilt(fleet=(silent, WORKER, MAILER))).subject == JOBS


def test_the_partitions_that_lack_an_owner_are_named() -> None:
    told = only("owners", spoilt(fleet=(beat("x", "dispatcher", *owned(JOBS)[1:3]), WORKER, MAILER)))
    assert told.problem == "partitions 0, 3 have no owner: nothing fires there"


@pytest.mark.parametrize(
    ("waiting", "severity"),
    [({Place(MAIL, 0): NOW}, Severity.ERROR), ({Place(WORK, 0): NOW}, Severity.WARNING)],
)
def test_a_queue_without_workers_is_an_error_once_work_waits(
    waiting: dict[Place, int], severity: Severity
) -> None:
    told = only("owners", spoilt(fleet=FLEET[:2], unacked=waiting))
    assert (told.severity, told.subject) == (severity, MAIL)
    assert told.problem == "all 1 partitions have no owner: no run starts there"
    assert told.remedy == "dueline worker --app MODULE:APP --queue mail"


def test_a_partition_without_a_worker_beside_others_is_an_error() -> None:
    half = beat("w", "worker", Place(WORK, 1), queues=("default",))
    assert only("owners", spoilt(fleet=(FLEET[0], half, MAILER))).severity is Severity.ERROR


def test_what_two_claim_is_told() -> None:
    told = only("owners", spoilt(fleet=(*FLEET, beat("bb", "dispatcher", Place(JOBS, 2)))))
    assert (told.severity, told.subject) == (Severity.WARNING, JOBS)
    assert told.problem.startswith("partitions 2 are claimed by aa.0.x and by bb")


@pytest.mark.parametrize(
    ("state", "severity", "problem"),
    [
        (
            "closed",
            Severity.ERROR,
            "bb has stopped partitions 0-3: a record there has a schema it does not know",
        ),
        ("restoring", Severity.WARNING, "bb does not run partitions 0-3 yet"),
        ("assigned", Severity.WARNING, "bb does not run partitions 0-3 yet"),
    ],
)
def test_owned_is_not_running(state: str, severity: Severity, problem: str) -> None:
    fleet = (beat("bb", "dispatcher", *owned(JOBS), state=state), WORKER, MAILER)
    told = only("owners", spoilt(fleet=fleet))
    assert told.severity is severity
    assert told.problem.startswith(problem)


# -- members -------------------------------------------------------------------------------------------------


def members(group: str, *there: Member) -> object:
    return {**HEALTHY.members, group: there}


def test_a_member_that_no_process_is_holds_partitions_for_ever() -> None:
    fleet = (beat("x", "dispatcher", *owned(JOBS)[:2]), WORKER, MAILER)
    stranger = member(2, 3, id="kcat-1", client="kcat", host="/10.0.0.9")
    told = only("members", spoilt(fleet=fleet, members=members(DISPATCHERS, member(0, 1), stranger)))
    assert (told.severity, told.subject) == (Severity.ERROR, DISPATCHERS)
    assert told.problem.startswith(
        "member kcat-1 (client kcat, host /10.0.0.9) holds partitions 2-3 and is no process"
    )
    assert told.remedy.endswith(f"--describe --members --group {DISPATCHERS}")


def test_a_member_with_some_partition_of_a_process_is_on_its_way() -> None:
    fleet = (beat("x", "dispatcher", *owned(JOBS)[:1]), WORKER, MAILER)
    assert found("members", spoilt(fleet=fleet)) == []


def test_idle_members_are_counted_against_idle_processes() -> None:
    more = members(WORKERS, member(0, 1), member(id="m-2"))
    told = only("members", spoilt(members=more))
    assert (told.severity, told.subject) == (Severity.WARNING, WORKERS)
    assert told.problem.startswith("1 members without partitions are no process")
    idle = beat("w2", "worker", queues=("default",))
    assert found("members", spoilt(members=more, fleet=(*FLEET, idle))) == []


def test_of_dispatchers_too() -> None:
    more = members(DISPATCHERS, member(*range(4)), member(id="m-2"))
    assert only("members", spoilt(members=more)).subject == DISPATCHERS
    assert found("members", spoilt(members=more, fleet=(*FLEET, beat("x2", "dispatcher")))) == []


def test_a_static_member_is_not_fenced() -> None:
    told = only("members", spoilt(members=members(DISPATCHERS, member(*range(4), static=True))))
    assert (told.severity, told.danger) == (Severity.ERROR, Danger.ONCE)
    assert "has a group.instance.id" in told.problem


# -- what groups remember ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "danger", "partition"), [(DISPATCHERS, Danger.ONCE, 0), (WORKERS, Danger.STARTED, 1)]
)
def test_a_guard_without_an_offset_means_that_the_group_was_lost(
    group: str, danger: Danger, partition: int
) -> None:
    committed = {share: offset for share, offset in HEALTHY.committed.items() if share.group != group}
    told = only("offsets", spoilt(committed=committed))
    assert (told.severity, told.danger, told.subject) == (Severity.ERROR, danger, group)
    assert told.problem.startswith(f"has no offset for partitions {partition}, which it owned before")
    assert "dueline era bump" in told.remedy


def test_a_guard_of_a_topic_that_was_made_anew_says_nothing() -> None:
    ids = {**HEALTHY.topic_ids, JOBS: "another"}
    assert found("offsets", spoilt(committed={}, guards={Share(DISPATCHERS, 0): GroupGuard(
        generation=9, topic_id=f"id of {JOBS}")}, topic_ids=ids)) == []  # fmt: skip


def test_a_generation_below_the_guard_means_that_the_group_began_anew() -> None:
    guards = {Share(DISPATCHERS, 1): GroupGuard(generation=9, topic_id=f"id of {JOBS}")}
    told = only("offsets", spoilt(guards=guards))
    assert told.problem.startswith("is at generation 3, lower than one that owned partitions before")
    no_member = (beat("x", "dispatcher", *owned(JOBS), generation=0), WORKER, MAILER)
    assert found("offsets", spoilt(guards=guards, fleet=no_member)) == []


def test_a_log_that_ends_before_the_committed_offset_was_cut() -> None:
    ends = {**HEALTHY.ends, Place(JOBS, 3): Ends(first=0, stable=80, last=80)}
    told = only("offsets", spoilt(ends=ends))
    assert (told.severity, told.danger, told.subject) == (Severity.ERROR, Danger.LOST, JOBS)
    assert told.problem.startswith(f"partitions 3 end before the offset that {DISPATCHERS} has committed")
    assert "docs/runbook.md" in told.remedy


def test_work_that_was_deleted_before_anybody_did_it() -> None:
    ends = {
        **HEALTHY.ends,
        Place(WORK, 0): Ends(first=42, stable=100, last=100),
        Place(WORK, 1): Ends(first=41, stable=41, last=41),  # a marker, behind the last run that was acked
        Place(JOBS, 0): Ends(
            first=95, stable=100, last=100
        ),  # of no matter: the offset is only a fence there
    }
    told = only("offsets", spoilt(ends=ends))
    assert (told.danger, told.subject) == (Danger.LOST, WORK)
    assert told.problem.startswith("partitions 0 begin after the offset")
    assert "dueline outage" in told.remedy


def test_partitions_that_nobody_knows_are_passed_over() -> None:
    assert found("offsets", spoilt(ends={}, committed={**HEALTHY.committed, Share(NAMES.prefix, 7): 1})) == []
