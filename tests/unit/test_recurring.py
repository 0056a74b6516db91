"""Schedules as their owner keeps them: verbs, firing, ends, and what is written for each (DESIGN §8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core import keys
from pipeline.core.job import Command, DeadLetter, Event, Run
from pipeline.core.limited import LIMITED, QUEUES
from pipeline.core.schedule import Schedule, ScheduleSpec
from pipeline.emission import Emission
from pipeline.ports import Action, Put
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner

ID = "nightly"
MINUTE = 60_000
FIRST = (NOW // MINUTE + 1) * MINUTE
KEY = keys.schedule_key(ID)


def spec_of(**changes: Any) -> ScheduleSpec:
    return ScheduleSpec(
        **{
            "id": ID,
            "handler": "report",
            "every_ms": MINUTE,
            "overlap": "allow",
            "payload": b'{"a":1}',
            **changes,
        }
    )


@pytest.fixture
def owner() -> Owner:
    return Owner(LAYOUT.home_of_name(ID))


def ask(owner: Owner, verb: str, at: int = NOW, spec: ScheduleSpec | None = None, **fields: Any) -> Event:
    return owner.command(f"schedule.{verb}", at, schedule_id=ID, spec=spec, **fields)


def make(owner: Owner, at: int = NOW, **changes: Any) -> Event:
    return ask(owner, "create", at, spec_of(**changes))


def state(owner: Owner) -> Schedule:
    return codec.SCHEDULE.decode(owner.entry(KEY).value)


def runs(emission: Emission) -> list[Run]:
    return [codec.RUN.decode(put.value or b"") for put in work(emission)]


def work(emission: Emission) -> list[Put]:
    return [put for put in emission.puts if put.topic.startswith(NAMES.work(""))]


def nominals(emission: Emission) -> list[int]:
    return [(run.nominal_at - FIRST) // MINUTE for run in runs(emission)]


def told(emission: Emission, kind: str) -> list[Event]:
    events = [codec.EVENT.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.events]
    return [event for event in events if event.kind == kind]


def done(
    owner: Owner, occurrence: str, run: int = 1, outcome: str = "succeeded", at: int = FIRST
) -> Emission:
    fact = Event(id=occurrence, kind="done", at=at, run=run, outcome=outcome)
    owner.read(keys.done_key(occurrence, run), codec.EVENT.encode(fact), at=at)
    return owner.commit(at)


def rebuilt(owner: Owner, log: list[tuple[Any, ...]]) -> Owner:
    """Another owner that has nothing but what was written."""
    again = Owner(owner.number)
    for offset, (key, value, at, headers) in enumerate(log):
        assert again.read(key, value, at=at, headers=headers) == offset
    return again


class Recording(Owner):
    """An owner whose log is kept, so that another one can be made of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number, index=MemoryIndex())
        self.log: list[tuple[Any, ...]] = []

    def read(self, key: bytes, value: bytes | None, *, at: int = NOW, headers: Any = None) -> int:
        self.log.append((key, value, at, headers))
        return super().read(key, value, at=at, headers=headers)


# -- create, update, put, delete ------------------------------------------------------------------------------


def test_a_created_schedule_fires_at_its_next_instant(owner: Owner) -> None:
    answer = ask(owner, "create", NOW, spec_of(), requested_by="ann")
    assert answer.outcome == "created"
    assert answer.detail["next_due"] == str(FIRST)
    assert (answer.detail["requested_by"], answer.detail["schedule"]) == ("ann", ID)
    entry = owner.entry(KEY)
    assert (entry.action, entry.fire_at, entry.detail) == (Action.FIRE, FIRST, "default/")
    (run,) = runs(owner.commit(FIRST))
    incarnation = state(owner).incarnation
    assert run.job_id == run.occurrence_id == run.idempotency_key == f"s:{ID}:{incarnation}:g::{FIRST}"
    assert (run.schedule_id, run.nominal_at, run.due_at, run.run) == (ID, FIRST, FIRST, 1)
    assert (run.payload, run.last_success_at) == (b'{"a":1}', None)
    assert owner.entry(KEY).fire_at == FIRST + MINUTE


def test_the_work_record_and_the_next_state_are_of_one_transaction(owner: Owner) -> None:
    make(owner)
    emission = owner.commit(FIRST)
    assert [put.topic for put in emission.puts] == [NAMES.work("default"), NAMES.jobs]
    (put, kept) = emission.puts
    assert put.partition == LAYOUT.work_partition("default", (put.key or b"").decode())
    assert codec.SCHEDULE.decode(kept.value or b"").next_nominal == FIRST + MINUTE


def test_a_serial_group_decides_the_work_partition(owner: Owner) -> None:
    make(owner, serial="reports")
    assert work(owner.commit(FIRST))[0].partition == LAYOUT.work_partition("default", "reports")


def test_creating_it_again_changes_nothing(owner: Owner) -> None:
    make(owner)
    answer = make(owner, handler="other")
    assert (answer.outcome, answer.detail["revision"]) == ("existing", "1")
    assert state(owner).spec.handler == "report"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"queue": "nowhere"}, "unknown_queue: nowhere"),
        ({"handler": "No Name"}, "handler: "),
        ({"overlap": "sometimes"}, "overlap: "),
        ({"misfire": "all(1001)"}, "misfire: 1001 is more than 1000"),
        ({"end_at": NOW - 1}, "end: "),
        ({"every_ms": None}, "cron: give exactly one"),
        ({"cron": "* * * * *"}, "cron: give exactly one"),
        ({"start_at": NOW + 9, "end_at": NOW + 8}, "end: is not after start"),
        ({"payload": b"[]"}, "payload: must be a JSON object"),
        ({"source": "me"}, "source: "),
    ],
)
def test_what_could_never_fire_is_refused(owner: Owner, changes: Any, reason: str) -> None:
    answer = make(owner, **changes)
    assert answer.outcome == "refused"
    assert (answer.reason or "").startswith(reason)
    assert owner.index.entry(owner.number, KEY) is None


def test_commands_name_what_they_are_about(owner: Owner) -> None:
    assert owner.command("schedule.create", schedule_id=ID).reason == "spec: missing"
    assert "missing" in (owner.command("schedule.pause").reason or "")
    assert owner.command("schedule.dance", schedule_id=ID).reason == "verb: 'schedule.dance' is unknown"
    other = replace(spec_of(), id="other")
    assert ask(owner, "create", spec=other).reason == "spec: has another id than schedule_id"
    for verb in ("update", "pause", "resume", "trigger", "backfill", "delete", "cancel_backfill"):
        assert ask(owner, verb, spec=spec_of()).outcome == "not_found"


def test_a_command_that_stands_elsewhere_is_moved_home(owner: Owner) -> None:
    elsewhere = Owner((owner.number + 1) % LAYOUT.partitions)
    command = {
        "command_id": "5f1c9ac0-5f4e-4b1a-9d3c-2b7d5c1e0a11",
        "verb": "schedule.pause",
        "schedule_id": ID,
    }
    elsewhere.read(
        keys.command_key(command["command_id"]),
        json.dumps(command).encode(),
        headers=[("content-type", b"application/json")],
    )
    (put, tombstone) = elsewhere.commit(NOW).puts
    assert (put.topic, put.partition, tombstone.value) == (NAMES.jobs, owner.number, None)


def test_a_command_in_json_carries_the_one_form_of_a_spec(owner: Owner) -> None:
    command = {
        "command_id": "5f1c9ac0-5f4e-4b1a-9d3c-2b7d5c1e0a11", "verb": "schedule.create",
        "spec": {"id": ID, "handler": "report", "every": "90s", "payload": {"n": 1}, "overlap": "buffer_all(3)"},
    }  # fmt: skip
    owner.read(
        keys.command_key(command["command_id"]),
        json.dumps(command).encode(),
        headers=[("content-type", b"application/json")],
    )
    assert owner.answers(owner.commit(NOW))[0].outcome == "created"
    assert (state(owner).spec.every_ms, state(owner).spec.payload) == (90_000, b'{"n":1}')


def test_what_was_asked_while_its_owner_was_away_counts_from_then(owner: Owner) -> None:
    """Created and paused in an outage: what was due between the two fires, what was due after the pause does not."""
    make_at, pause_at, back_at = FIRST - 10, FIRST + 90_000, FIRST + 10 * MINUTE
    for verb, at, spec in (
        ("schedule.create", make_at, spec_of(misfire="all(5)")),
        ("schedule.pause", pause_at, None),
    ):
        id_ = f"00000000-0000-4000-8000-{at:012d}"[:36]
        value = codec.COMMAND.encode(Command(command_id=id_, verb=verb, schedule_id=ID, spec=spec))
        owner.read(keys.command_key(id_), value, at=at)
    emission = owner.commit(back_at)
    assert nominals(emission) == [0, 1]
    assert state(owner).paused_at == pause_at


def test_an_update_changes_the_definition_and_the_next_instant(owner: Owner) -> None:
    make(owner)
    answer = ask(owner, "update", NOW + 5, spec_of(every_ms=7 * MINUTE))
    assert (answer.outcome, answer.detail["revision"]) == ("updated", "2")
    assert owner.entry(KEY).fire_at == (NOW // (7 * MINUTE) + 1) * 7 * MINUTE
    seen = ask(owner, "update", NOW + 9, spec_of(), detail={"revision": "1"})
    assert (seen.outcome, seen.reason) == ("refused", "revision: it is 2 by now, not 1")
    assert ask(owner, "update", NOW + 9, spec_of(queue="nowhere")).outcome == "refused"


APP = {"source": "app:shop"}


def test_put_makes_changes_or_leaves_alone(owner: Owner) -> None:
    assert ask(owner, "put", NOW, spec_of(**APP, version="1.9")).outcome == "created"
    assert ask(owner, "put", NOW, spec_of(**APP, version="1.9")).outcome == "unchanged"
    assert ask(owner, "put", NOW, spec_of(**APP, version="1.10")).outcome == "unchanged"
    assert state(owner).spec.version == "1.10", "so that an older one is known to be older"
    assert ask(owner, "put", NOW, spec_of(**APP, version="1.9", handler="old")).outcome == "older"
    assert ask(owner, "put", NOW, spec_of(**APP, version="1.10", handler="new")).outcome == "updated"
    assert ask(owner, "put", NOW, spec_of(source="file:crontab")).outcome == "foreign"
    assert state(owner).spec.handler == "new"


def test_what_an_app_removed_an_older_worker_cannot_add_again(owner: Owner) -> None:
    ask(owner, "put", NOW, spec_of(**APP, version="7"))
    assert ask(owner, "delete", NOW, detail={"source": "app:other"}).outcome == "foreign"
    assert ask(owner, "delete", NOW, detail={**APP, "version": "6"}).outcome == "older"
    assert ask(owner, "delete", NOW, detail={**APP, "version": "8"}).outcome == "deleted"
    assert owner.entry(KEY).action == Action.EXPIRE
    assert ask(owner, "put", NOW, spec_of(**APP, version="7")).outcome == "older"
    assert ask(owner, "trigger").outcome == "not_found"
    assert nominals(owner.commit(FIRST)) == []
    again = ask(owner, "put", NOW, spec_of(**APP, version="9"))
    assert (again.outcome, again.detail["revision"]) == ("created", "1")
    assert nominals(owner.commit(FIRST)) == [0]


def test_what_an_app_removed_others_may_make_and_in_time_it_is_forgotten(owner: Owner) -> None:
    ask(owner, "put", NOW, spec_of(**APP, version="7"))
    ask(owner, "delete", NOW, detail={**APP, "version": "8"})
    assert owner.commit(NOW + 29 * 86_400_000).puts == []
    assert [put.value for put in owner.commit(NOW + 31 * 86_400_000).puts] == [None]
    ask(owner, "put", NOW, spec_of(**APP, version="7"))
    ask(owner, "delete", NOW, detail={**APP, "version": "8"})
    assert ask(owner, "put", NOW, spec_of(source="file:x")).outcome == "created"


def test_deleted_by_hand_it_is_gone_and_made_again_it_is_another(owner: Owner) -> None:
    make(owner, overlap="skip")
    (run,) = runs(owner.commit(FIRST))
    assert ask(owner, "delete", FIRST + 1).outcome == "deleted"
    assert owner.index.entry(owner.number, KEY) is None
    make(owner, FIRST + 2)
    done(owner, run.occurrence_id)
    assert state(owner).counts == {}, "the end of another incarnation says nothing of this one"
    (again,) = runs(owner.commit(FIRST + MINUTE))
    assert again.occurrence_id.split(":")[2] != run.occurrence_id.split(":")[2]


def test_made_and_deleted_and_made_in_one_batch(owner: Owner) -> None:
    for n, verb in enumerate(("create", "delete", "create", "pause", "delete")):
        id_ = f"00000000-0000-4000-8000-00000000000{n}"
        spec = spec_of() if verb == "create" else None
        value = codec.COMMAND.encode(
            Command(command_id=id_, verb=f"schedule.{verb}", schedule_id=ID, spec=spec)
        )
        owner.read(keys.command_key(id_), value)
    answers = [event.outcome for event in owner.answers(owner.commit(NOW))]
    assert answers == ["created", "deleted", "created", "paused", "deleted"]
    assert owner.index.entry(owner.number, KEY) is None


# -- firing ---------------------------------------------------------------------------------------------------


def test_after_an_outage_the_rest_is_told_in_one_event(owner: Owner) -> None:
    make(owner, misfire="all(3)")
    emission = owner.commit(FIRST + 99 * MINUTE)
    assert nominals(emission) == [97, 98, 99]
    (skip,) = told(emission, "skipped")
    assert (skip.reason, skip.detail["count"], skip.detail["schedule"]) == ("misfire", "97", ID)
    assert (skip.detail["first"], skip.detail["last"]) == (str(FIRST), str(FIRST + 96 * MINUTE))
    assert emission.skipped == {"misfire": 97}


def test_a_backlog_is_cut_into_steps_of_a_hundred(owner: Owner) -> None:
    make(owner, misfire="all(250)")
    at = FIRST + 400 * MINUTE
    batches = [nominals(owner.commit(at)) for _ in range(4)]
    assert [len(batch) for batch in batches] == [100, 100, 50, 0]
    assert [each for batch in batches for each in batch] == list(range(151, 401))


def test_and_of_large_payloads_into_a_megabyte(owner: Owner) -> None:
    payload = json.dumps({"x": "y" * 300_000}).encode()
    make(owner, misfire="all(250)", payload=payload)
    assert len(runs(owner.commit(FIRST + 400 * MINUTE))) == 3


def test_the_last_success_is_handed_to_the_next_run(owner: Owner) -> None:
    make(owner)
    (run,) = runs(owner.commit(FIRST))
    done(owner, run.occurrence_id)
    (run,) = runs(owner.commit(FIRST + MINUTE))
    assert run.last_success_at == FIRST


def test_an_overlapping_one_is_skipped_and_the_event_names_it(owner: Owner) -> None:
    make(owner, overlap="skip")
    (run,) = runs(owner.commit(FIRST))
    assert [each.place for each in state(owner).open] == [
        f"default/{LAYOUT.work_partition('default', run.occurrence_id)}"
    ]
    (skip,) = told(owner.commit(FIRST + MINUTE), "skipped")
    assert skip.reason == "overlap"
    assert skip.occurrence_id == run.occurrence_id.replace(str(FIRST), str(FIRST + MINUTE))


def test_a_retry_keeps_its_run_open_until_the_last_one_ended(owner: Owner) -> None:
    make(owner, overlap="buffer_one")
    (run,) = runs(owner.commit(FIRST))
    again = replace(run, run=2, due_at=FIRST + 10, failures=1)
    owner.read(keys.retry_key(run.occurrence_id, 1), codec.RUN.encode(again), at=FIRST + 1)
    assert [each.run for each in runs(owner.commit(FIRST + 10))] == [2]
    owner.commit(FIRST + MINUTE)
    assert runs(done(owner, run.occurrence_id, 1, at=FIRST + MINUTE + 1)) == [], "a fact of the run before"
    assert nominals(done(owner, run.occurrence_id, 2, at=FIRST + MINUTE + 2)) == [1]


def test_a_retry_that_is_stopped_or_buried_ends_it_too(owner: Owner) -> None:
    make(owner, overlap="buffer_one")
    (run,) = runs(owner.commit(FIRST))
    owner.commit(FIRST + MINUTE)
    again = replace(run, run=2, due_at=FIRST + 9 * MINUTE, queue="nowhere")
    owner.read(keys.retry_key(run.occurrence_id, 1), codec.RUN.encode(again), at=FIRST + MINUTE)
    first = owner.commit(FIRST + MINUTE + 1)
    assert [put.topic for put in first.puts if put.topic == NAMES.dead] == [NAMES.dead]
    assert nominals(owner.commit(FIRST + MINUTE + 2)) == [1]
    assert state(owner).counts["dead"] == 1


def test_cancel_other_tells_the_worker_and_goes_on_when_it_ended(owner: Owner) -> None:
    make(owner, overlap="cancel_other")
    (run,) = runs(owner.commit(FIRST))
    emission = owner.commit(FIRST + MINUTE)
    assert runs(emission) == []
    (stop,) = [put for put in emission.puts if put.topic == NAMES.acks("default")]
    assert stop.key == keys.stopped_key(run.occurrence_id)
    assert codec.EVENT.decode(stop.value or b"").run == 1
    owner.commit(FIRST + 2 * MINUTE)
    emission = done(owner, run.occurrence_id, outcome="cancelled", at=FIRST + 2 * MINUTE + 5)
    assert nominals(emission) == [2]


def test_cancel_other_of_one_that_waits_to_be_tried_again_drops_that(owner: Owner) -> None:
    make(owner, overlap="cancel_other")
    (run,) = runs(owner.commit(FIRST))
    again = replace(run, run=2, due_at=FIRST + 9 * MINUTE)
    owner.read(keys.retry_key(run.occurrence_id, 1), codec.RUN.encode(again), at=FIRST + 1)
    emission = owner.commit(FIRST + MINUTE)
    assert not [put for put in emission.puts if put.topic == NAMES.acks("default")]
    assert nominals(owner.commit(FIRST + MINUTE + 1)) == [1]
    assert state(owner).counts == {"fired": 2, "cancelled": 1}


def test_a_queue_that_is_gone_makes_its_runs_dead_and_not_the_schedule(owner: Owner) -> None:
    make(owner, overlap="skip", pause_after=2)
    damaged = replace(state(owner), spec=spec_of(queue="gone", overlap="skip", pause_after=2))
    owner.read(KEY, codec.SCHEDULE.encode(damaged))
    emission = owner.commit(FIRST)
    (letter,) = [
        codec.DEAD_LETTER.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.dead
    ]
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.run.nominal_at if letter.run else 0) == ("unknown_queue", FIRST)
    owner.commit(FIRST + 1)
    assert state(owner).counts == {"fired": 1, "dead": 1}
    owner.commit(FIRST + MINUTE)
    paused = told(owner.commit(FIRST + MINUTE + 1), "schedule_paused")
    assert [event.reason for event in paused] == ["2 dead in a row"]
    assert owner.entry(KEY).action == Action.HOLD


def test_the_same_fact_twice_in_a_batch_and_one_of_nobody(owner: Owner) -> None:
    make(owner)
    (run,) = runs(owner.commit(FIRST))
    done(owner, run.occurrence_id)
    done(owner, f"s:{ID}:99:g::{FIRST}")
    done(owner, run.occurrence_id, outcome="danced", run=2)
    assert state(owner).counts == {"fired": 1, "succeeded": 1}


def test_two_ends_in_one_batch_write_the_state_once(owner: Owner) -> None:
    make(owner, misfire="all(9)")
    first, second = runs(owner.commit(FIRST + MINUTE))
    for run in (first, second):
        fact = Event(id=run.occurrence_id, kind="done", at=NOW, run=1, outcome="succeeded")
        owner.read(keys.done_key(run.occurrence_id, 1), codec.EVENT.encode(fact), at=FIRST + MINUTE)
    emission = owner.commit(FIRST + MINUTE + 1)
    assert [put.key for put in emission.puts if put.value is not None] == [KEY]
    assert state(owner).counts == {"fired": 2, "succeeded": 2}


# -- pause, trigger, backfill -----------------------------------------------------------------------------------


def test_paused_it_is_held_and_resumed_it_goes_on(owner: Owner) -> None:
    make(owner)
    answer = ask(owner, "pause", NOW + 1, detail={"note": "holiday"})
    assert (answer.outcome, answer.detail.get("next_due")) == ("paused", None)
    assert (answer.detail["state"], answer.detail["revision"]) == ("paused", str(state(owner).revision))
    assert (state(owner).paused, owner.entry(KEY).action) == ("holiday", Action.HOLD)
    assert runs(owner.commit(FIRST + 9 * MINUTE)) == []
    answer = ask(owner, "resume", FIRST + 9 * MINUTE + 1)
    assert (answer.outcome, answer.detail["next_due"]) == ("resumed", str(FIRST + 10 * MINUTE))
    assert state(owner).counts == {"skipped.paused": 10}
    assert ask(owner, "resume", FIRST + 9 * MINUTE + 2).detail["revision"] == "3", "nothing to resume"


def test_a_trigger_fires_now_and_says_what(owner: Owner) -> None:
    make(owner)
    answer = ask(owner, "trigger", NOW + 7)
    assert (answer.outcome, answer.run, answer.detail["due_at"]) == ("fired", 1, str(NOW + 7))
    assert (answer.occurrence_id or "").startswith(f"s:{ID}:{state(owner).incarnation}:t:")
    assert owner.entry(KEY).fire_at == FIRST
    assert ask(owner, "trigger", NOW + 8, detail={"overlap": "maybe"}).outcome == "refused"


def test_a_trigger_of_one_that_skips_overlaps_is_skipped_while_it_runs(owner: Owner) -> None:
    make(owner, overlap="skip")
    owner.commit(FIRST)
    assert ask(owner, "trigger", FIRST + 1).outcome == "skipped"
    assert ask(owner, "trigger", FIRST + 1, detail={"overlap": "allow"}).outcome == "fired"


def test_a_backfill_makes_up_a_range(owner: Owner) -> None:
    make(owner)
    detail = {"from": str(FIRST - 10 * MINUTE), "to": str(FIRST - 6 * MINUTE)}
    answer = ask(owner, "backfill", NOW, detail=detail)
    assert (answer.outcome, answer.detail["total"]) == ("started", "4")
    assert state(owner).counts == {"backfilled": 4}
    assert nominals(owner.commit(FIRST)) == [0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"from": ""}, "from: missing"),
        ({"from": "yesterday"}, "from: "),
        ({"to": str(NOW - 10 * 86_400_000)}, "to: is not after from"),
        ({"to": str(NOW + MINUTE)}, "to: is in the future"),
        ({"overlap": "cancel_other"}, "overlap: cancel_other"),
        ({"overlap": "perhaps"}, "overlap: 'perhaps'"),
        ({"rate": "0"}, "rate: '0'"),
        ({"rate": "x"}, "rate: 'x'"),
        ({"reverse": "yes"}, "reverse: 'yes'"),
        ({"from": "2020-01-01T00:00:00Z"}, "limit: "),
        ({"limit": "5"}, "limit: 10 occurrences are more than 5"),
        ({"from": str(NOW - 2), "to": str(NOW - 1)}, "from: no instant"),
    ],
)
def test_a_backfill_that_cannot_be_meant_is_refused(owner: Owner, changes: Any, reason: str) -> None:
    make(owner)
    detail = {"from": str(FIRST - 10 * MINUTE), "to": str(NOW), **changes}
    if detail["to"] == str(NOW) and "limit" not in changes:
        detail["to"] = str(FIRST - MINUTE)
    answer = ask(owner, "backfill", NOW, detail=detail)
    assert answer.outcome == "refused"
    assert (answer.reason or "").startswith(reason)


def test_a_backfill_one_after_the_other_ends_with_an_event(owner: Owner) -> None:
    make(owner)
    detail = {"from": str(FIRST - 3 * MINUTE), "to": str(FIRST - MINUTE), "overlap": "buffer_all(5)"}
    backfill = ask(owner, "backfill", NOW, detail={**detail, "reverse": "true"}).detail["backfill"]
    incarnation = state(owner).incarnation
    first, second = (f"s:{ID}:{incarnation}:b:{backfill}:{FIRST - n * MINUTE}" for n in (2, 3))
    assert [run.occurrence_id for run in runs(done(owner, first, at=NOW + 5))] == [second]
    (event,) = told(done(owner, second, at=NOW + 6), "backfilled")
    assert (event.detail["fired"], event.detail["total"]) == ("2", "2")


def test_a_backfill_can_be_cancelled_and_not_too_many_run_at_once(owner: Owner) -> None:
    make(owner)
    detail = {"from": str(FIRST - 5 * MINUTE), "to": str(FIRST - MINUTE), "overlap": "buffer_all"}
    ids = [ask(owner, "backfill", NOW, detail=detail).detail["backfill"] for _ in range(10)]
    assert "10 backfills" in (ask(owner, "backfill", NOW, detail=detail).reason or "")
    assert ask(owner, "cancel_backfill", NOW, detail={"backfill": ids[3]}).outcome == "cancelled"
    assert ask(owner, "cancel_backfill", NOW, detail={"backfill": ids[3]}).outcome == "not_found"
    assert len(state(owner).backfills) == 9


def test_after_finish_has_no_past(owner: Owner) -> None:
    make(owner, every_ms=None, after_ms=MINUTE)
    answer = ask(
        owner, "backfill", NOW, detail={"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"}
    )
    assert answer.outcome == "refused"


# -- what is asked of an occurrence -------------------------------------------------------------------------------


def test_one_that_waits_can_be_cancelled_as_a_job(owner: Owner) -> None:
    make(owner, overlap="buffer_one")
    (run,) = runs(owner.commit(FIRST))
    owner.commit(FIRST + MINUTE)
    waiting = run.occurrence_id.replace(str(FIRST), str(FIRST + MINUTE))
    assert owner.command("cancel", FIRST + MINUTE + 1, job_id=waiting).outcome == "cancelled"
    assert runs(done(owner, run.occurrence_id, at=FIRST + MINUTE + 2)) == []
    assert state(owner).counts["skipped.cancelled"] == 1


def test_one_that_fired_is_too_late_to_cancel_and_can_be_stopped(owner: Owner) -> None:
    make(owner)
    (run,) = runs(owner.commit(FIRST))
    assert owner.command("cancel", FIRST + 1, job_id=run.job_id).outcome == "fired"
    answer = owner.command("stop", FIRST + 1, job_id=run.job_id, seen_run=1, queue="default")
    assert answer.outcome == "stopping"
    unknown = run.job_id.replace(str(FIRST), str(FIRST + 5 * MINUTE))
    assert owner.command("cancel", FIRST + 1, job_id=unknown).outcome == "not_found"


def test_an_open_one_is_stopped_where_it_stands_without_being_told_where(owner: Owner) -> None:
    make(owner, overlap="skip")
    (run,) = runs(owner.commit(FIRST))
    assert owner.command("stop", FIRST + 1, job_id=run.job_id).outcome == "stopping"


def test_a_retry_of_it_is_stopped_and_it_is_no_longer_open(owner: Owner) -> None:
    make(owner, overlap="skip")
    (run,) = runs(owner.commit(FIRST))
    again = replace(run, run=2, due_at=FIRST + 9 * MINUTE)
    owner.read(keys.retry_key(run.occurrence_id, 1), codec.RUN.encode(again), at=FIRST + 1)
    assert owner.command("cancel", FIRST + 2, job_id=run.job_id).outcome == "stopped"
    owner.commit(FIRST + 3)
    assert state(owner).open == ()
    assert state(owner).counts == {"fired": 1, "cancelled": 1}


def test_a_requeue_of_it_is_of_its_schedule_and_open_again(owner: Owner) -> None:
    make(owner, overlap="skip")
    (run,) = runs(owner.commit(FIRST))
    done(owner, run.occurrence_id, outcome="dead", at=FIRST + 1)
    answer = owner.command(
        "requeue", FIRST + 2, job_id=run.job_id, handler="report", payload=b'{"a":1}', seen_run=1
    )
    assert (answer.outcome, answer.run) == ("requeued", 2)
    assert [each.occurrence_id for each in state(owner).open] == [run.occurrence_id]
    done(owner, run.occurrence_id, run=1, outcome="dead", at=FIRST + 3)
    assert len(state(owner).open) == 1
    done(owner, run.occurrence_id, run=2, at=FIRST + 4)
    assert (state(owner).open, state(owner).last_success_at) == ((), FIRST)


def test_a_requeued_run_says_whose_it_is(owner: Owner) -> None:
    make(owner)
    (run,) = runs(owner.commit(FIRST))
    command = Command(
        command_id="00000000-0000-4000-8000-000000000001", verb="requeue", job_id=run.job_id, handler="report",
        payload=b"{}", seen_run=1,
    )  # fmt: skip
    owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command), at=FIRST + 1)
    (again,) = runs(owner.commit(FIRST + 1))
    assert (again.run, again.schedule_id, again.nominal_at) == (2, ID, FIRST)


# -- the log --------------------------------------------------------------------------------------------------


def test_an_index_made_of_the_log_goes_on_where_it_was() -> None:
    owner = Recording(LAYOUT.home_of_name(ID))
    make(owner, overlap="buffer_one")
    (run,) = runs(owner.commit(FIRST))
    owner.commit(FIRST + MINUTE)
    ask(owner, "pause", FIRST + MINUTE + 1)
    ask(owner, "resume", FIRST + MINUTE + 2)
    owner.commit(FIRST + 2 * MINUTE)
    again = rebuilt(owner, owner.log)
    assert again.index.entries(owner.number, None, 99) == owner.index.entries(owner.number, None, 99)
    assert nominals(done(again, run.occurrence_id, at=FIRST + 2 * MINUTE)) == [2]


DAMAGES: dict[str, Callable[[Schedule], bytes]] = {
    "nothing": lambda state: b"",
    "JSON": lambda state: b"{}",
    "a frame": lambda state: b"\xc3\x01" + bytes(8),
    "cut": lambda state: codec.SCHEDULE.encode(state)[:-1],
    "another's": lambda state: codec.SCHEDULE.encode(replace(state, spec=replace(state.spec, id="other"))),
    "before time": lambda state: codec.SCHEDULE.encode(replace(state, last_nominal=-1)),
    "after time": lambda state: codec.SCHEDULE.encode(replace(state, next_due=1 << 62)),
    "a buffer": lambda state: codec.SCHEDULE.encode(replace(state, buffer=(1 << 62,))),
    "incarnation": lambda state: codec.SCHEDULE.encode(replace(state, incarnation=-1)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_ends_as_dead_and_the_others_go_on(owner: Owner, damage: str) -> None:
    make(owner)
    sound = state(owner)
    owner.read(KEY, DAMAGES[damage](sound))
    beside = next(f"n{n}" for n in range(999) if LAYOUT.home_of_name(f"n{n}") == owner.number)
    owner.command("schedule.create", NOW, schedule_id=beside, spec=replace(spec_of(), id=beside))
    assert owner.index.entry(owner.number, KEY) is None
    assert [run.schedule_id for run in runs(owner.commit(FIRST))] == [beside]


@pytest.mark.parametrize(
    "changes",
    [{"misfire": "??"}, {"overlap": "??"}, {"tz": "Mars/Olympus", "every_ms": None, "cron": "0 1 * * *"}],
)
@pytest.mark.parametrize("what", ["fire", "done", "command"])
def test_one_that_shows_its_damage_when_it_is_used_is_buried_then(
    owner: Owner, changes: Any, what: str
) -> None:
    make(owner)
    sound = state(owner)
    owner.read(KEY, codec.SCHEDULE.encode(replace(sound, spec=spec_of(**changes))))
    if what == "command":
        assert ask(owner, "pause", FIRST + 5 * MINUTE).outcome == "refused"
    elif what == "done":
        done(owner, f"s:{ID}:{sound.incarnation}:g::{FIRST}", at=FIRST + 5 * MINUTE)
    else:
        emission = owner.commit(FIRST + 5 * MINUTE)
        assert [put.topic for put in emission.puts if put.topic == NAMES.dead] == [NAMES.dead]
    owner.commit(FIRST + 5 * MINUTE)
    assert owner.index.entry(owner.number, KEY) is None or what != "fire"


def test_a_schedule_on_a_partition_that_is_not_its_home_is_forged(owner: Owner) -> None:
    make(owner)
    elsewhere = Owner((owner.number + 1) % LAYOUT.partitions)
    elsewhere.read(KEY, owner.entry(KEY).value)
    assert elsewhere.entry(KEY).action == Action.DEAD


def test_one_that_is_due_with_nothing_to_decide_is_not_asked_all_the_time(owner: Owner) -> None:
    make(owner)
    owner.partition.postpone([owner.entry(KEY)._replace(fire_at=NOW)])
    emission = owner.partition.emit([owner.entry(KEY)], NOW)
    owner.partition.applied(emission)
    assert owner.entry(KEY).fire_at == NOW + 1_000
    owner.echo(emission)
    assert runs(owner.commit(FIRST)) == [] or owner.entry(KEY).fire_at >= NOW


# -- the next instant by itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "stop", "reschedule", "update", "requeue"])
def test_the_next_instant_cannot_be_changed_by_itself_and_the_answer_says_what_can(
    owner: Owner, verb: str
) -> None:
    make(owner)
    occurrence = f"s:{ID}:{state(owner).incarnation}:g::{FIRST}"
    answer = owner.command(verb, job_id=occurrence, due_at=FIRST + 5_000, payload=b"{}")
    assert answer.outcome == "not_alone"
    assert answer.reason is not None
    assert answer.reason.startswith(f"{occurrence}: it is the next instant of the schedule {ID}")
    assert f"pause {ID}" in answer.reason
    assert nominals(owner.commit(FIRST)) == [0], "it fires as if nobody had asked"


def test_who_is_limited_to_other_queues_is_not_told_of_the_next_instant(owner: Owner) -> None:
    make(owner)
    occurrence = f"s:{ID}:{state(owner).incarnation}:g::{FIRST}"
    own = {"job_id": occurrence, "detail": {QUEUES: "default"}}
    assert owner.command(f"{LIMITED}cancel", **own).outcome == "not_alone"
    other = {"job_id": occurrence, "detail": {QUEUES: "billing"}}
    assert owner.command(f"{LIMITED}cancel", **other).outcome == "not_allowed"


@pytest.mark.parametrize(
    ("verb", "outcome"),
    [("reschedule", "not_alone"), ("update", "not_alone"), ("requeue", "not_alone"), ("cancel", "cancelled")],
)
def test_one_that_waits_for_an_earlier_one_can_only_be_cancelled(
    owner: Owner, verb: str, outcome: str
) -> None:
    make(owner, overlap="buffer_one")
    owner.commit(FIRST)
    owner.commit(FIRST + MINUTE)
    assert state(owner).buffer == (FIRST + MINUTE,)
    occurrence = f"s:{ID}:{state(owner).incarnation}:g::{FIRST + MINUTE}"
    at = FIRST + MINUTE + 1
    answer = owner.command(verb, at, job_id=occurrence, due_at=at + 5_000, payload=b"{}")
    assert answer.outcome == outcome
    assert ("can only be cancelled" in (answer.reason or "")) == (outcome == "not_alone")
