"""Stops as the owner executes them: what it answers is what happens, here and for the workers."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import Command, Event, Run
from pipeline.emission import Emission
from pipeline.ports import Put
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner, run_of

KEY = "invoice-55"
KEYED = keyed_id(KEY)
JOB = anonymous_id(NOW + 5_000, 42)
SEEN = {"queue": "default", "seen_run": 1}
ACKS = NAMES.acks("default")


@pytest.fixture
def owner() -> Owner:
    """Of the home of the anonymous job, where the job waits."""
    found = Owner(LAYOUT.home(JOB))
    found.read(keys.job_key(JOB), codec.RUN.encode(run_of(JOB)))
    return found


@pytest.fixture
def keyed() -> Owner:
    """Of the key's home, where its job has fired."""
    found = Owner(LAYOUT.home(KEYED))
    found.command("create", key=KEY, handler="bill", due_at=NOW)
    fired(found, NOW)
    return found


def fired(owner: Owner, at: int) -> list[Run]:
    work = [put for put in owner.commit(at).puts if put.topic.startswith(NAMES.work(""))]
    return [codec.RUN.decode(put.value or b"") for put in work]


def ask(owner: Owner, verb: str, at: int = NOW + 6_000, **fields: Any) -> tuple[Event, Emission]:
    """Put a command, execute it; its answer, and all that was written with it."""
    command = Command(command_id=str(uuid.uuid4()), verb=verb, **{"job_id": JOB, **fields})
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command), at=at)
    emission = owner.commit(at)
    return owner.answers(emission)[-1], emission


def on_acks(emission: Emission) -> list[Put]:
    return [put for put in emission.puts if put.topic.startswith(NAMES.acks(""))]


def retry(owner: Owner, run: Run, due_at: int) -> None:
    again = replace(run, run=run.run + 1, due_at=due_at, failures=1)
    owner.read(keys.retry_key(run.occurrence_id, run.run), codec.RUN.encode(again))


def test_a_pending_job_is_cancelled_and_no_worker_is_told(owner: Owner) -> None:
    answer, emission = ask(owner, "stop")
    assert (answer.outcome, on_acks(emission)) == ("cancelled", [])
    assert fired(owner, NOW + 9_000) == []
    assert ask(owner, "stop")[0].outcome == "cancelled"


def test_a_pending_retry_is_dropped_and_a_run_beside_it_is_told(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + 60_000)
    answer, emission = ask(owner, "stop")
    assert answer.outcome == "stopped"
    (told,) = on_acks(emission)
    assert told.key == keys.stopped_key(JOB)
    assert fired(owner, NOW + 60_000) == []
    assert ask(owner, "stop")[0].outcome == "stopped"


def test_of_a_job_that_fired_the_owner_needs_to_be_told_where(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    answer, emission = ask(owner, "stop")
    assert (answer.outcome, on_acks(emission)) == ("fired", [])


def test_a_stop_stands_on_jobs_and_on_the_acks_partition_of_the_run_in_one_transaction(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    answer, emission = ask(owner, "stop", reason="by hand", **SEEN)
    assert (answer.outcome, answer.run) == ("stopping", 1)
    (told,) = on_acks(emission)
    work = LAYOUT.work_partition("default", JOB)
    assert (told.topic, told.partition, told.key) == (ACKS, work, keys.stopped_key(JOB))
    event = codec.EVENT.decode(told.value or b"")
    assert (event.kind, event.run, event.outcome, event.reason) == ("stopped", 1, "stopping", "by hand")
    assert event.command_id == answer.command_id
    assert codec.EVENT.decode(owner.entry(keys.stopped_key(JOB)).value) == event


def test_a_serial_run_is_told_at_the_partition_of_its_group(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    (told,) = on_acks(ask(owner, "stop", serial="customer-7", **SEEN)[1])
    assert told.partition == LAYOUT.work_partition("default", "customer-7")


def test_what_the_owner_remembers_outranks_what_the_sender_says(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + 6_000)
    fired(owner, NOW + 6_000)
    answer, emission = ask(owner, "stop", at=NOW + 7_000, queue="nowhere", serial="x", seen_run=9)
    assert (answer.outcome, answer.run) == ("stopping", 2)
    (told,) = on_acks(emission)
    assert told.partition == LAYOUT.work_partition("default", JOB)


def test_an_unknown_queue_is_refused_and_changes_nothing(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    answer, emission = ask(owner, "stop", queue="nowhere", seen_run=1)
    assert (answer.outcome, (answer.reason or "").split(":")[0]) == ("refused", "queue")
    assert on_acks(emission) == []
    assert owner.index.entry(owner.number, keys.stopped_key(JOB)) is None


def test_a_stop_is_asked_once_however_often_it_comes(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    ask(owner, "stop", **SEEN)
    answer, emission = ask(owner, "stop")
    assert (answer.outcome, answer.run, on_acks(emission)) == ("stopping", 1, [])


def test_a_plain_cancel_of_a_job_that_is_being_stopped_is_no_word_on_its_end(owner: Owner) -> None:
    """The stopped run may have succeeded: whoever asks looks at the acks."""
    fired(owner, NOW + 5_000)
    ask(owner, "stop", **SEEN)
    answer, _ = ask(owner, "cancel")
    assert (answer.outcome, answer.reason) == ("fired", "stopping")
    assert ask(owner, "reschedule", due_at=NOW)[0].outcome == "fired"


def test_a_retry_that_comes_after_the_stop_is_dropped_and_the_job_is_stopped(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    ask(owner, "stop", **SEEN)
    retry(owner, run, NOW + 6_000)
    assert fired(owner, NOW + 60_000) == []
    assert [ask(owner, verb, at=NOW + 61_000)[0].outcome for verb in ("stop", "cancel")] == ["stopped"] * 2


def test_a_requeue_takes_the_stop_back_in_both_places_before_the_new_run(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    ask(owner, "stop", **SEEN)
    answer, emission = ask(owner, "requeue", handler="email.send", seen_run=1)
    assert (answer.outcome, answer.run) == ("requeued", 2)
    (gone,) = on_acks(emission)
    assert (gone.key, gone.value) == (keys.stopped_key(JOB), None)
    assert gone.partition == LAYOUT.work_partition("default", JOB)
    topics = [put.topic for put in emission.puts]
    assert topics.index(ACKS) < topics.index(NAMES.work("default"))
    assert owner.index.entry(owner.number, keys.stopped_key(JOB)) is None
    retry(owner, run_of(JOB, run=2), NOW + 7_000)
    assert [run.run for run in fired(owner, NOW + 7_000)] == [3]


def test_a_key_is_held_until_the_stopped_run_has_ended(keyed: Owner) -> None:
    answer, emission = ask(keyed, "stop", job_id=KEYED)
    assert (answer.outcome, len(on_acks(emission))) == ("stopping", 1), "the state of the key says where"
    again = {"key": KEY, "handler": "bill", "due_at": NOW + 90_000}
    assert keyed.command("create", **again).outcome == "existing"
    occurrence = answer.occurrence_id or ""
    fact = Event(id=occurrence, kind="done", at=NOW, run=1, outcome="cancelled")
    keyed.read(keys.done_key(occurrence, 1), codec.EVENT.encode(fact))
    keyed.commit(NOW + 6_000)
    assert keyed.command("create", **again).outcome == "created"


def test_a_dropped_retry_frees_the_key_since_no_worker_will(keyed: Owner) -> None:
    answer, _ = ask(keyed, "stop", job_id=KEYED)
    run = run_of(KEYED, occurrence_id=answer.occurrence_id, key=KEY)
    retry(keyed, run, NOW + 6_000)
    keyed.commit(NOW + 6_000)
    assert ask(keyed, "cancel", job_id=KEYED)[0].outcome == "stopped"
    assert keyed.command("create", key=KEY, handler="bill", due_at=NOW + 90_000).outcome == "created"


def test_an_index_rebuilt_from_the_log_knows_the_stop(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    _, emission = ask(owner, "stop", **SEEN)
    rebuilt = Owner(owner.number)
    for put in emission.puts:
        if put.topic == NAMES.jobs:
            rebuilt.read(put.key, put.value, headers=put.headers)
    assert ask(rebuilt, "stop")[0].outcome == "stopping"


# -- requeue of dead letters ----------------------------------------------------------------------------------


def test_h7_a_retry_that_stands_before_the_stop_is_dropped_by_whoever_reads_the_log(owner: Owner) -> None:
    """Its worker wrote it while the stop was under way; the owner that stopped the job had not read it, and died."""
    (run,) = fired(owner, NOW + 5_000)
    _, emission = ask(owner, "stop", **SEEN)
    heir = Owner(owner.number)
    retry(heir, run, NOW + 7_000)
    for put in emission.puts:
        if put.topic == NAMES.jobs and put.value is not None:
            heir.read(put.key, put.value, at=NOW + 6_500)
    assert fired(heir, NOW + 8_000) == []


def test_a_requeue_marks_the_dead_letters_of_earlier_runs(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    _, emission = ask(owner, "requeue", handler="email.send", seen_run=1)
    (mark,) = (put for put in emission.puts if put.topic == NAMES.dead)
    assert (mark.partition, mark.key, mark.value) == (owner.number, JOB.encode(), None)
    assert dict(mark.headers or ())["run"] == b"2"


def test_a_requeue_that_may_come_twice_runs_the_job_once(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    wanted = {"handler": "email.send", "seen_run": 1, "on_conflict": "reject"}
    assert [ask(owner, "requeue", **wanted)[0].outcome for _ in range(2)] == ["requeued", "superseded"]
    assert ask(owner, "requeue", handler="email.send", seen_run=1)[0].outcome == "requeued", "if so wanted"


def test_a_requeue_that_must_not_come_twice_says_what_it_saw(owner: Owner) -> None:
    fired(owner, NOW + 5_000)
    answer, _ = ask(owner, "requeue", handler="email.send", on_conflict="reject")
    assert (answer.outcome, (answer.reason or "").split(":")[0]) == ("refused", "seen_run")
