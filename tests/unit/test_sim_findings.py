"""What the simulation found, each as small as it gets."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from pipeline import codec
from pipeline.choice import Choice
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Command
from pipeline.core.states import PartitionState
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner, run_of

HOUR = 3_600_000
JOB = anonymous_id(NOW, 42)


def put(owner: Owner, verb: str, **fields: object) -> Command:
    command = Command(command_id=str(uuid.uuid4()), verb=verb, **fields)  # type: ignore[arg-type]
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    return command


@pytest.mark.parametrize(("verb", "outcome"), [("cancel", "cancelled"), ("update", "updated")])
def test_a_command_and_the_job_it_is_about_are_chosen_as_one_list(verb: str, outcome: str) -> None:
    """A small batch full of commands gets the lane of jobs on time beside it: both of the same partition."""
    owner = Owner(LAYOUT.home(JOB))
    owner.read(keys.job_key(JOB), codec.RUN.encode(replace(run_of(JOB), due_at=NOW)))
    put(owner, verb, job_id=JOB, payload=b"[2]")
    owner.partition.state = PartitionState.RUNNING
    choice = Choice()
    choice.refused(2)
    chosen = choice.next([owner.partition], NOW, 1.0)
    assert [partition.number for partition, _ in chosen] == [owner.number]
    emission = owner.partition.emit(chosen[0][1], NOW)
    assert [event.outcome for event in owner.answers(emission)] == [outcome]
    assert emission.fired == 0


@pytest.mark.parametrize("waited", [0, HOUR, 48 * HOUR])
def test_a_late_copy_of_a_command_is_answered_again_however_long_it_waited_for_its_owner(waited: int) -> None:
    """The memory is of the log's time, as for jobs: the owner may have been down."""
    owner = Owner(0)
    command = put(owner, "create", handler="bill", delay_ms=1_000)
    first = owner.answers(owner.commit(NOW))
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command), at=NOW + 60_000)
    again = owner.partition.emit(owner.index.due(0, NOW, 10), NOW + waited)
    assert owner.answers(again) == first
    assert [put.topic for put in again.puts] == [NAMES.events, NAMES.jobs], "answered and tombstoned, no more"


def test_a_requeued_run_holds_the_key_of_its_job_whether_the_sender_named_it_or_not() -> None:
    """Else its end would free no key."""
    owner = Owner(LAYOUT.home(keyed_id("invoice")))
    owner.command("create", key="invoice", handler="bill", due_at=NOW)
    owner.commit(NOW)
    command = put(owner, "requeue", job_id=keyed_id("invoice"), handler="bill", seen_run=1)
    emission = owner.commit(NOW)
    runs = [
        codec.RUN.decode(put.value or b"") for put in emission.puts if put.topic.startswith(NAMES.work(""))
    ]
    assert [(run.run, run.key) for run in runs] == [(2, "invoice")], command


def test_of_an_incarnation_that_is_forgotten_nothing_is_said_of_another_one() -> None:
    """`cancelled` of one that fired would be a lie; the sender looks in the log where the owner does not know."""
    owner = Owner(LAYOUT.home(keyed_id("invoice")))
    fired = owner.command("create", key="invoice", handler="bill", due_at=NOW, unique="started")
    owner.commit(NOW)
    owner.command("create", at=NOW + HOUR, key="invoice", handler="bill", due_at=NOW + 2 * HOUR)
    assert owner.command("cancel", at=NOW + HOUR, job_id=keyed_id("invoice")).outcome == "cancelled"
    for verb, more in (("cancel", {}), ("reschedule", {"due_at": NOW})):
        answer = owner.command(verb, at=NOW + HOUR, job_id=fired.occurrence_id, **more)
        assert (answer.outcome, answer.occurrence_id) == ("not_found", fired.occurrence_id)


def test_a_late_copy_of_a_command_that_was_moved_home_is_dropped() -> None:
    """It would come home with a time at which home may have forgotten the first one."""
    away = Owner((LAYOUT.home(keyed_id("invoice")) + 1) % LAYOUT.partitions)
    command = put(away, "create", key="invoice", handler="bill")
    moved = away.commit(NOW)
    assert [put.partition for put in moved.puts] == [LAYOUT.home(keyed_id("invoice")), away.number]
    away.read(keys.command_key(command.command_id), codec.COMMAND.encode(command), at=NOW + 60_000)
    again = away.partition.emit(away.index.due(away.number, NOW, 10), NOW + HOUR)
    assert [(put.topic, put.partition, put.value is None) for put in again.puts][1:] == [
        (NAMES.jobs, away.number, True)
    ], "an event that says so, and the tombstone"


def test_how_a_job_ended_is_what_came_last_though_a_later_owner_s_clock_is_behind() -> None:
    """An owner's now is a lower bound only; what an earlier owner wrote may bear a later time."""
    owner = Owner(LAYOUT.home(JOB))
    owner.read(keys.job_key(JOB), codec.RUN.encode(replace(run_of(JOB), due_at=NOW + HOUR)))
    owner.command("update", at=NOW, job_id=JOB, payload=b"[2]")
    later = Owner(owner.number, index=owner.index)
    later.partition.next_offset = later.offset = owner.offset
    cancel = Command(command_id=str(uuid.uuid4()), verb="cancel", job_id=JOB)
    later.read(keys.command_key(cancel.command_id), codec.COMMAND.encode(cancel), at=NOW + 1)
    emission = later.partition.emit(later.index.due(later.number, NOW, 10), NOW - 400)
    assert [event.outcome for event in later.answers(emission)] == ["cancelled"]
    later.partition.applied(emission)
    later.echo(emission)
    assert later.command("reschedule", at=NOW + 2, job_id=JOB, due_at=NOW).outcome == "cancelled"


@pytest.mark.parametrize("named", [JOB, keyed_id("invoice")], ids=["anonymous", "keyed"])
def test_a_stopped_job_that_was_requeued_is_not_said_to_be_stopped(named: str) -> None:
    """Nothing stops what follows the new run."""
    owner = Owner(LAYOUT.home(named))
    if named == JOB:
        owner.read(keys.job_key(JOB), codec.RUN.encode(replace(run_of(JOB), due_at=NOW)))
        occurrence = JOB
    else:
        occurrence = owner.command("create", key="invoice", handler="bill").occurrence_id or ""
    owner.commit(NOW)
    again = replace(run_of(named), occurrence_id=occurrence, run=2, due_at=NOW + HOUR)
    owner.read(keys.retry_key(occurrence, 1), codec.RUN.encode(again))
    assert [owner.command("cancel", job_id=named).outcome for _ in range(2)] == ["stopped", "stopped"]
    more = {"job_id": occurrence, "handler": "bill", "seen_run": 1}
    assert owner.command("requeue", **more).outcome == "requeued"
    assert [owner.command("cancel", job_id=each).outcome for each in (named, occurrence)] == [
        "fired",
        "fired",
    ]


def test_a_late_copy_of_a_changed_job_does_not_hide_how_that_has_ended_since() -> None:
    owner = Owner(LAYOUT.home(JOB))
    first = codec.RUN.encode(replace(run_of(JOB), due_at=NOW + HOUR))
    owner.read(keys.job_key(JOB), first)
    owner.command("update", job_id=JOB, payload=b"[2]")
    put(owner, "cancel", job_id=JOB)
    owner.read(keys.job_key(JOB), first)
    assert [event.outcome for event in owner.answers(owner.commit(NOW))] == ["cancelled"]
    assert owner.command("reschedule", job_id=JOB, due_at=NOW).outcome == "cancelled"


def test_a_late_copy_that_outlives_the_memory_of_its_job_makes_nobody_say_that_it_fired() -> None:
    """It only says that the job was changed; how that ended the sender has to look up in the log."""
    owner = Owner(LAYOUT.home(JOB))
    first = codec.RUN.encode(replace(run_of(JOB), due_at=NOW + 2 * HOUR))
    owner.read(keys.job_key(JOB), first)
    assert owner.command("update", job_id=JOB, payload=b"[2]").outcome == "updated"
    owner.read(keys.job_key(JOB), first)
    late = owner.entry(keys.job_key(JOB))
    cancel = put(owner, "cancel", job_id=JOB)
    # The owner dies between the two, and nobody is there for an hour.
    emission = owner.partition.emit([owner.entry(keys.command_key(cancel.command_id))], NOW)
    assert [event.outcome for event in owner.answers(emission)] == ["cancelled"]
    owner.partition.applied(emission)
    owner.echo(emission)
    assert owner.entry(keys.job_key(JOB)) == late
    owner.commit(NOW + HOUR)
    answer = owner.command("reschedule", at=NOW + HOUR, job_id=JOB, due_at=NOW + 2 * HOUR)
    assert (answer.outcome, answer.reason) == ("not_found", None)
