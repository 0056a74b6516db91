"""Commands as the owner executes them: every status of a keyed create, every outcome of cancel, reschedule, update,
requeue and release; and that what is answered is what happens."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, command_job_id, keyed_id
from pipeline.core.job import Command, Event, Run
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.ports import Action
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner, run_of

KEY = "invoice-55"
KEYED = keyed_id(KEY)
JOB = anonymous_id(NOW + 5_000, 42)
HOUR = 3_600_000


@pytest.fixture
def owner() -> Owner:
    """Of the anonymous job's home, where the job waits."""
    found = Owner(LAYOUT.home(JOB))
    found.read(keys.job_key(JOB), codec.RUN.encode(run_of(JOB)))
    return found


@pytest.fixture
def keyed() -> Owner:
    """Of the key's home."""
    return Owner(LAYOUT.home(KEYED))


def create(owner: Owner, at: int = NOW, **fields: Any) -> Event:
    wanted = {"key": KEY, "handler": "bill", "due_at": NOW + 5_000, **fields}
    return owner.command("create", at, **wanted)


def fired(owner: Owner, at: int) -> list[Run]:
    emission = owner.commit(at)
    return [
        codec.RUN.decode(put.value or b"") for put in emission.puts if put.topic.startswith(NAMES.work(""))
    ]


def done(owner: Owner, run: Run, outcome: str = "succeeded") -> None:
    fact = Event(id=run.occurrence_id, kind="done", at=NOW, run=run.run, outcome=outcome)
    owner.read(keys.done_key(run.occurrence_id, run.run), codec.EVENT.encode(fact))
    owner.commit(NOW)


def retry(owner: Owner, run: Run, due_at: int) -> Run:
    again = replace(run, run=run.run + 1, due_at=due_at, failures=1)
    owner.read(keys.retry_key(run.occurrence_id, run.run), codec.RUN.encode(again))
    return again


# -- cancel ---------------------------------------------------------------------------------------------------


def test_a_pending_job_is_cancelled_and_never_fires(owner: Owner) -> None:
    assert owner.command("cancel", job_id=JOB).outcome == "cancelled"
    assert fired(owner, NOW + 10_000) == []


def test_h7_cancel_and_due_in_one_batch_cancelled_means_it_did_not_fire(owner: Owner) -> None:
    command = Command(command_id=str(uuid.uuid4()), verb="cancel", job_id=JOB)
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    emission = owner.commit(NOW + 10_000)
    assert [event.outcome for event in owner.answers(emission)] == ["cancelled"]
    assert emission.fired == 0


def test_a_repeated_cancel_answers_the_same_and_a_late_one_that_it_fired(owner: Owner) -> None:
    assert [owner.command("cancel", job_id=JOB).outcome for _ in range(2)] == ["cancelled", "cancelled"]
    other = anonymous_id(NOW + 5_000, 43)
    late = Owner(LAYOUT.home(other))
    late.read(keys.job_key(other), codec.RUN.encode(run_of(other)))
    assert len(fired(late, NOW + 5_000)) == 1
    assert late.command("cancel", job_id=other).outcome == "fired"


def test_an_unknown_job_is_not_found(owner: Owner) -> None:
    stranger = next(id_ for n in range(10_000) if LAYOUT.home(id_ := anonymous_id(NOW, n)) == owner.number)
    for verb, more in (("cancel", {}), ("reschedule", {"due_at": NOW}), ("update", {"payload": b"{}"})):
        assert owner.command(verb, job_id=stranger, **more).outcome == "not_found"


def test_cancelling_between_two_runs_stops_the_retry_and_later_ones(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    second = retry(owner, run, NOW + 60_000)
    assert owner.command("cancel", job_id=JOB, at=NOW + 6_000).outcome == "stopped"
    assert owner.command("cancel", job_id=JOB, at=NOW + 6_000).outcome == "stopped"
    assert fired(owner, NOW + 60_000) == []
    retry(owner, second, NOW + 61_000)
    assert fired(owner, NOW + 61_000) == []


# -- reschedule and update ------------------------------------------------------------------------------------


@pytest.mark.parametrize("due", [NOW + 1_000, NOW + 48 * HOUR], ids=["forward", "back, across buckets"])
def test_h10_a_rescheduled_job_fires_at_its_new_time_only(owner: Owner, due: int) -> None:
    answer = owner.command("reschedule", job_id=JOB, due_at=due)
    assert (answer.outcome, answer.detail["due_at"]) == ("rescheduled", str(due))
    assert fired(owner, due - 1) == []
    (run,) = fired(owner, due)
    assert (run.job_id, run.due_at, run.nominal_at, run.run) == (JOB, due, due, 1)
    assert fired(owner, due + HOUR) == []


def test_a_changed_job_stands_under_a_key_of_the_owner_and_its_creators_record_is_gone(owner: Owner) -> None:
    owner.command("reschedule", job_id=JOB, due_at=NOW + HOUR)
    assert owner.index.entry(owner.number, keys.job_key(JOB)) is None
    assert owner.entry(keys.changed_key(JOB)).fire_at == NOW + HOUR
    owner.read(keys.job_key(JOB), codec.RUN.encode(run_of(JOB)))  # a late copy from its creator
    assert owner.entry(keys.job_key(JOB)).action == Action.DROP
    owner.commit(NOW)
    assert len(fired(owner, NOW + 2 * HOUR)) == 1


def test_changes_add_up_and_a_changed_job_can_be_cancelled(owner: Owner) -> None:
    owner.command("update", job_id=JOB, payload=b'{"n":2}')
    owner.command("reschedule", job_id=JOB, delay_ms=60_000)
    entry = owner.entry(keys.changed_key(JOB))
    assert (entry.fire_at, codec.RUN.decode(entry.value).payload) == (NOW + 60_000, b'{"n":2}')
    assert owner.command("cancel", job_id=JOB).outcome == "cancelled"
    assert owner.command("reschedule", job_id=JOB, due_at=NOW).outcome == "cancelled"
    assert fired(owner, NOW + HOUR) == []


def test_two_changes_in_one_batch_are_both_made(owner: Owner) -> None:
    for fields in ({"verb": "update", "payload": b"[1]"}, {"verb": "reschedule", "due_at": NOW + 9_000}):
        command = Command(command_id=str(uuid.uuid4()), job_id=JOB, **fields)
        owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    assert [e.outcome for e in owner.answers(owner.commit(NOW))] == ["updated", "rescheduled"]
    (run,) = fired(owner, NOW + 9_000)
    assert run.payload == b"[1]"


def test_h8_a_change_that_fired_before_it_was_read_back_fires_once(owner: Owner) -> None:
    """The owner's own `a/` record comes back after the owner has fired it: it must not come alive again."""
    command = Command(command_id=str(uuid.uuid4()), verb="reschedule", job_id=JOB, due_at=NOW)
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    first = owner.partition.emit(owner.index.due(owner.number, NOW, 10), NOW)
    owner.partition.applied(first)
    second = owner.partition.emit(owner.index.due(owner.number, NOW, 10), NOW)
    owner.partition.applied(second)
    assert second.fired == 1
    owner.echo(first)
    assert owner.index.due(owner.number, NOW, 10) == []
    owner.echo(second)
    assert owner.index.entries(owner.number, None, 10) == []


def test_a_retry_can_be_brought_forward_and_pushed_back(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + HOUR)
    assert owner.command("reschedule", job_id=JOB, due_at=NOW + 2 * HOUR).outcome == "rescheduled"
    assert fired(owner, NOW + HOUR) == []
    assert owner.command("reschedule", job_id=JOB, due_at=NOW + 6_000).outcome == "rescheduled"
    (again,) = fired(owner, NOW + 6_000)
    assert (again.run, again.failures, again.due_at) == (2, 1, NOW + 6_000)


# -- creating -------------------------------------------------------------------------------------------------


def test_a_keyed_job_is_created_fires_and_frees_its_key_when_done(keyed: Owner) -> None:
    answer = create(keyed, payload=b'{"n":1}')
    assert (answer.outcome, answer.job_id) == ("created", KEYED)
    (run,) = fired(keyed, NOW + 5_000)
    assert (run.occurrence_id, run.key, run.idempotency_key) == (
        answer.occurrence_id,
        KEY,
        answer.occurrence_id,
    )
    assert create(keyed).outcome == "existing"
    done(keyed, run)
    again = create(keyed)
    assert again.outcome == "created"
    assert again.occurrence_id != answer.occurrence_id


@pytest.mark.parametrize(
    ("on_conflict", "outcome", "due", "payload"),
    [
        ("existing", "existing", NOW + 5_000, b"{}"),
        ("reject", "rejected", NOW + 5_000, b"{}"),
        ("replace", "replaced", NOW + 9_000, b"[2]"),
        ("debounce", "debounced", NOW + 9_000, b"{}"),
    ],
)
def test_a_taken_key_of_a_pending_job(
    keyed: Owner, on_conflict: str, outcome: str, due: int, payload: bytes
) -> None:
    first = create(keyed)
    answer = create(keyed, on_conflict=on_conflict, due_at=NOW + 9_000, payload=b"[2]")
    assert (answer.outcome, answer.occurrence_id) == (outcome, first.occurrence_id)
    assert answer.detail["due_at"] == str(due)
    (run,) = fired(keyed, NOW + HOUR)
    assert (run.due_at, run.payload, run.occurrence_id) == (due, payload, first.occurrence_id)


def test_replace_and_debounce_leave_a_fired_job_alone(keyed: Owner) -> None:
    create(keyed)
    fired(keyed, NOW + 5_000)
    assert [create(keyed, on_conflict=each).outcome for each in ("replace", "debounce")] == ["existing"] * 2
    assert fired(keyed, NOW + HOUR) == []


def test_unique_started_frees_the_key_at_the_first_run(keyed: Owner) -> None:
    create(keyed, unique="started")
    assert create(keyed).outcome == "existing"
    fired(keyed, NOW + 5_000)
    assert create(keyed).outcome == "created"


def test_unique_for_a_duration_counts_from_the_create_command(keyed: Owner) -> None:
    create(keyed, unique="1m")
    (run,) = fired(keyed, NOW + 5_000)
    done(keyed, run)
    assert create(keyed, at=NOW + 59_000).outcome == "existing"
    assert create(keyed, at=NOW + 60_000, due_at=NOW + HOUR).outcome == "created"
    assert create(keyed, at=NOW + 61_000, unique="1s").outcome == "existing", "a pending job keeps its key"


def test_the_tombstone_of_a_key_says_where_its_last_run_stands(keyed: Owner) -> None:
    create(keyed)
    (first,) = fired(keyed, NOW + 5_000)
    retry(keyed, first, NOW + 6_000)
    (second,) = fired(keyed, NOW + 6_000)
    fact = Event(id=second.occurrence_id, kind="done", at=NOW, run=2, outcome="succeeded")
    keyed.read(keys.done_key(second.occurrence_id, 2), codec.EVENT.encode(fact))
    (gone,) = (put for put in keyed.commit(NOW).puts if put.key == keys.keyed_key(KEY))
    work = f"default/{LAYOUT.work_partition('default', KEYED)}".encode()
    wanted = [("occurrence", second.occurrence_id.encode()), ("run", b"2"), ("work", work)]
    assert (gone.value, (gone.headers or [])[2:]) == (None, wanted)


def test_a_done_fact_of_an_earlier_run_or_incarnation_does_not_free_the_key(keyed: Owner) -> None:
    create(keyed)
    (first,) = fired(keyed, NOW + 5_000)
    retry(keyed, first, NOW + 6_000)
    (second,) = fired(keyed, NOW + 6_000)
    done(keyed, first)
    assert create(keyed).outcome == "existing"
    done(keyed, replace(second, occurrence_id=f"{KEYED}.999"))
    assert create(keyed).outcome == "existing"
    done(keyed, second)
    assert create(keyed).outcome == "created"


def test_a_retry_that_can_never_be_emitted_frees_the_key(keyed: Owner) -> None:
    create(keyed)
    (first,) = fired(keyed, NOW + 5_000)
    again = replace(first, run=2, queue="nowhere")
    keyed.read(keys.retry_key(first.occurrence_id, 1), codec.RUN.encode(again))
    assert keyed.commit(NOW).dead == 1
    assert create(keyed).outcome == "created"


def test_a_key_is_given_up_long_after_the_last_emission(keyed: Owner) -> None:
    create(keyed)
    fired(keyed, NOW + 5_000)
    keyed.commit(NOW + 5_000 + WORK_RETENTION_MS)
    assert (
        create(keyed, at=NOW + WORK_RETENTION_MS + HOUR, due_at=NOW + 2 * WORK_RETENTION_MS).outcome
        == "created"
    )


def test_cancelling_a_keyed_job_frees_the_key_and_the_old_incarnation_stays_cancelled(keyed: Owner) -> None:
    first = create(keyed)
    assert keyed.command("cancel", job_id=KEYED).outcome == "cancelled"
    assert keyed.command("cancel", job_id=KEYED).outcome == "cancelled"
    assert create(keyed).outcome == "created"
    assert keyed.command("cancel", job_id=first.occurrence_id).outcome == "cancelled"
    (run,) = fired(keyed, NOW + HOUR)
    assert run.occurrence_id != first.occurrence_id


def test_a_keyed_job_is_rescheduled_and_updated_under_its_key(keyed: Owner) -> None:
    create(keyed)
    assert keyed.command("reschedule", job_id=KEYED, due_at=NOW + HOUR).outcome == "rescheduled"
    assert keyed.command("update", job_id=KEYED, payload=b"[3]").outcome == "updated"
    (run,) = fired(keyed, NOW + HOUR)
    assert (run.due_at, run.payload) == (NOW + HOUR, b"[3]")


def test_release_frees_the_key_of_a_job_that_fired_only(keyed: Owner) -> None:
    assert keyed.command("release", job_id=KEYED).outcome == "not_found"
    create(keyed)
    assert keyed.command("release", job_id=KEYED).outcome == "pending"
    fired(keyed, NOW + 5_000)
    assert keyed.command("release", job_id=KEYED).outcome == "released"
    assert create(keyed).outcome == "created"


def test_a_create_without_a_key_may_stand_anywhere_and_makes_one_job_however_often_it_comes() -> None:
    command = Command(command_id=str(uuid.uuid4()), verb="create", handler="bill", delay_ms=60_000)
    id_ = command_job_id(NOW + 60_000, command.command_id)
    home = LAYOUT.home(id_)
    away = Owner((home + 1) % LAYOUT.partitions)
    at_home = Owner(home)
    for owner in (away, at_home):
        for _ in range(2):
            owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
            emission = owner.commit(NOW)
            assert [event.job_id for event in owner.answers(emission)] == [id_]
            for put in emission.puts:
                if owner is away and put.key == keys.job_key(id_):
                    at_home.read(put.key, put.value, headers=put.headers)
    assert len(fired(at_home, NOW + 60_000)) == 1


def test_a_command_as_json_needs_nothing_but_a_producer(keyed: Owner) -> None:
    id_ = str(uuid.uuid4())
    text = {"command_id": id_, "verb": "create", "handler": "bill", "key": KEY, "payload": {"n": 1}}
    headers = [("content-type", b"application/json")]
    keyed.read(keys.command_key(id_), json.dumps(text).encode(), headers=headers)
    (answer,) = keyed.answers(keyed.commit(NOW))
    assert (answer.outcome, answer.command_id) == ("created", id_)
    (run,) = fired(keyed, NOW)
    assert run.payload == b'{"n":1}'


def test_a_command_at_the_wrong_partition_goes_home_with_its_times(keyed: Owner) -> None:
    stray = Owner((keyed.number + 1) % LAYOUT.partitions)
    command = Command(command_id=str(uuid.uuid4()), verb="create", handler="bill", key=KEY, delay_ms=60_000)
    stray.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    moved = next(put for put in stray.commit(NOW).puts if put.value is not None)
    assert (moved.partition, moved.key) == (keyed.number, keys.command_key(command.command_id))
    keyed.read(moved.key, moved.value, at=NOW + HOUR, headers=moved.headers)
    assert keyed.answers(keyed.commit(NOW + HOUR))[0].detail["due_at"] == str(NOW + 60_000)


# -- requeue --------------------------------------------------------------------------------------------------


def test_h29_requeue_emits_the_next_run_with_failures_forgotten(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    answer = owner.command("requeue", job_id=JOB, handler="email.send", payload=b"{}", seen_run=3)
    assert (answer.outcome, answer.run) == ("requeued", 4)
    highest = owner.entry(keys.highest_key(JOB))
    assert codec.HIGHEST.decode(highest.value).run == 4
    retry(owner, run, NOW)
    assert fired(owner, NOW + HOUR) == [], "superseded"


def test_requeue_brings_a_waiting_retry_forward_and_leaves_a_pending_job_alone(owner: Owner) -> None:
    assert owner.command("requeue", job_id=JOB, handler="email.send").outcome == "pending"
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + HOUR)
    answer = owner.command("requeue", at=NOW + 6_000, job_id=JOB, handler="email.send", seen_run=1)
    assert answer.outcome == "brought_forward"
    assert [each.run for each in fired(owner, NOW + 6_000)] == [2]


def test_a_requeued_job_is_no_longer_stopped(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + HOUR)
    assert owner.command("cancel", job_id=JOB, at=NOW + 6_000).outcome == "stopped"
    owner.command("requeue", at=NOW + 7_000, job_id=JOB, handler="email.send", seen_run=1)
    assert owner.command("cancel", job_id=JOB, at=NOW + 8_000).outcome == "fired"


def test_what_an_owner_with_a_slower_clock_ends_is_remembered_as_the_last(owner: Owner) -> None:
    owner.command("reschedule", job_id=JOB, due_at=NOW + HOUR, at=NOW + 500)
    heir = Owner(owner.number, index=owner.index)
    heir.offset = owner.offset
    heir.partition.open(NOW)
    heir.read(keys.takeover_key(owner.number), b"seen", at=NOW + 500)
    assert heir.command("cancel", job_id=JOB, at=NOW + 100).outcome == "cancelled"
    assert heir.command("cancel", job_id=JOB, at=NOW + 100).outcome == "cancelled"


def test_requeue_lets_a_stopped_job_run_again(owner: Owner) -> None:
    (run,) = fired(owner, NOW + 5_000)
    retry(owner, run, NOW + HOUR)
    owner.command("cancel", job_id=JOB, at=NOW + 6_000)
    answer = owner.command("requeue", at=NOW + 7_000, job_id=JOB, handler="email.send", seen_run=1)
    assert answer.outcome == "requeued"
    third = retry(owner, replace(run, run=answer.run or 0), NOW + 9_000)
    assert [each.run for each in fired(owner, NOW + 9_000)] == [third.run]


# -- bad input and repetition ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "fields", "field"),
    [
        ("explode", {"job_id": JOB}, "verb"),
        ("cancel", {}, "job_id"),
        ("cancel", {"job_id": "x"}, "job"),
        ("reschedule", {"job_id": JOB}, "due_at"),
        ("reschedule", {"job_id": JOB, "due_at": 12}, "due_at"),
        ("update", {"job_id": JOB}, "payload"),
        ("create", {"due_at": NOW}, "handler"),
        ("create", {"handler": "rm -rf", "due_at": NOW}, "handler"),
        ("create", {"handler": "h", "queue": "nowhere", "due_at": NOW}, "unknown_queue"),
        ("create", {"handler": "h", "due_at": 99}, "due_at"),
        ("create", {"handler": "h", "due_at": NOW, "attempt_limit": 0}, "attempt_limit"),
        ("create", {"handler": "h", "delay_ms": (1 << 63) - 1}, "due_at"),
    ],
)
def test_a_command_that_asks_for_nonsense_is_refused_by_name_and_changes_nothing(
    owner: Owner, verb: str, fields: dict[str, Any], field: str
) -> None:
    answer = owner.command(verb, **fields)
    assert (answer.outcome, field in (answer.reason or "")) == ("refused", True), answer
    assert [entry.record_key for entry in owner.index.entries(owner.number, None, 10)] == [keys.job_key(JOB)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"unique": "soon"}, "unique"),
        ({"on_conflict": "maybe"}, "on_conflict"),
        ({"handler": None}, "handler"),
    ],
)
def test_a_keyed_create_that_asks_for_nonsense_is_refused(
    keyed: Owner, fields: dict[str, Any], field: str
) -> None:
    answer = create(keyed, **fields)
    assert (answer.outcome, field in (answer.reason or "")) == ("refused", True), answer


def test_a_command_that_comes_again_is_answered_again_and_executed_once(keyed: Owner) -> None:
    command = Command(
        command_id=str(uuid.uuid4()), verb="create", handler="bill", key=KEY, due_at=NOW + 5_000
    )
    told = []
    for _ in range(2):
        keyed.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
        told += keyed.answers(keyed.commit(NOW))
    assert told[0] == told[1]
    assert told[0].outcome == "created"


def test_an_index_rebuilt_from_the_log_remembers_answers_and_owes_the_same(keyed: Owner) -> None:
    log: list[tuple[bytes, bytes | None, Any]] = []
    original = keyed.read

    def recorded(key: bytes, value: bytes | None, *, at: int = NOW, headers: Any = None) -> int:
        log.append((key, value, headers))
        return original(key, value, at=at, headers=headers)

    keyed.read = recorded  # type: ignore[method-assign]
    command = Command(
        command_id=str(uuid.uuid4()), verb="create", handler="bill", key=KEY, due_at=NOW + 5_000
    )
    keyed.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    keyed.commit(NOW)
    keyed.command("reschedule", job_id=KEYED, due_at=NOW + HOUR)
    rebuilt = Owner(keyed.number)
    for key, value, headers in log:
        rebuilt.read(key, value, headers=headers)
    assert rebuilt.index.entries(keyed.number, None, 10) == keyed.index.entries(keyed.number, None, 10)
    rebuilt.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    assert rebuilt.answers(rebuilt.commit(NOW))[0].outcome == "created"
    assert rebuilt.command("cancel", job_id=KEYED).outcome == "cancelled"


# -- what a sender without our client meets ---------------------------------------------------------------------


def sent_as_json(owner: Owner, text: bytes) -> list[Event]:
    key = keys.command_key(str(uuid.uuid4()))
    owner.read(key, text.replace(b"ID", key[2:]), headers=[("content-type", b"application/json")])
    return owner.answers(owner.commit(NOW))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (
            b'{"command_id":"ID","verb":"create","handler":"h","due_at":1790000000000,"delay_ms":5}',
            "delay_ms",
        ),
        (b'{"command_id":"ID","verb":"create","handler":"h","delay_ms":-5}', "delay_ms"),
        (b'{"command_id":"ID","verb":"create","handler":7}', "handler"),
        (b'{"command_id":"ID","verb":"create","handler":"h","due_at":"2026-12-01T00:00:00"}', "due_at"),
        (b'{"command_id":"ID","verb":"create","colour":"red"}', "colour"),
        (b"not json", "command"),
    ],
)
def test_a_sender_is_told_what_is_wrong_even_with_what_nobody_can_read(text: bytes, field: str) -> None:
    owner = Owner(0)
    (answer,) = sent_as_json(owner, text)
    assert (answer.outcome, field in (answer.reason or "")) == ("refused", True), answer
    assert owner.index.entries(0, None, 10) == []


def test_existing_says_when_the_job_that_holds_the_key_is_due_or_fired(keyed: Owner) -> None:
    create(keyed)
    (run,) = fired(keyed, NOW + 5_000)
    assert create(keyed, due_at=NOW + HOUR).detail["due_at"] == str(NOW + 5_000)
    retry(keyed, run, NOW + 60_000)
    assert create(keyed, due_at=NOW + HOUR).detail["due_at"] == str(NOW + 60_000)
