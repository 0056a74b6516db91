"""Commands of who is limited to some queues, as the owner executes them: what is on another queue stays as it was, by
what stands there when the command is executed and not when somebody looked."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, command_job_id, keyed_id
from pipeline.core.job import Command, Event, ReplayBatch, Run
from pipeline.core.layout import default_layout
from pipeline.core.limited import limited
from pipeline.core.schedule import ScheduleSpec
from pipeline.core.site import Site
from tests.unit.owner import NAMES, NOW, Owner, run_of

LAYOUT = default_layout(queues={"default": 12, "billing": 4})
SITE = Site(names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=1_000_000)
KEY = "invoice-55"
KEYED = keyed_id(KEY)
JOB = anonymous_id(NOW + 5_000, 42)
ID = "nightly"
CHANGES: dict[str, dict[str, Any]] = {
    "cancel": {},
    "stop": {"seen_run": 1, "queue": "billing"},
    "reschedule": {"due_at": NOW + 9_000},
    "update": {"payload": b'{"n":2}'},
    "requeue": {"handler": "bill", "queue": "billing"},
}


def ask(owner: Owner, verb: str, queues: str = "billing", at: int = NOW, **fields: Any) -> Event:
    """The answer to a command of who is limited to `queues`."""
    command = Command(command_id=str(uuid.uuid4()), verb=verb, **fields)
    return owner.command(**_fields(limited(command, queues.split())), at=at)


def _fields(command: Command) -> dict[str, Any]:
    given = {name: getattr(command, name) for name in command.__dataclass_fields__}
    return {name: value for name, value in given.items() if name != "command_id"}


def fired(owner: Owner, at: int) -> list[Run]:
    puts = owner.commit(at).puts
    return [codec.RUN.decode(put.value or b"") for put in puts if put.topic.startswith(NAMES.work(""))]


def waiting(queue: str = "default") -> Owner:
    """Of the home of an anonymous job on that queue."""
    owner = Owner(LAYOUT.home(JOB), SITE)
    owner.read(keys.job_key(JOB), codec.RUN.encode(run_of(JOB, queue=queue)))
    return owner


def retrying() -> Owner:
    owner = waiting()
    (run,) = fired(owner, NOW + 5_000)
    again = replace(run, run=2, due_at=NOW + 60_000, failures=1)
    owner.read(keys.retry_key(JOB, 1), codec.RUN.encode(again))
    return owner


def holding(queue: str = "default") -> Owner:
    """Of the home of a key that a job on that queue holds."""
    owner = Owner(LAYOUT.home(KEYED), SITE)
    owner.command("create", key=KEY, handler="bill", due_at=NOW + 5_000, queue=queue)
    return owner


def scheduled(**changes: Any) -> Owner:
    owner = Owner(LAYOUT.home_of_name(ID), SITE)
    assert owner.command("schedule.create", schedule_id=ID, spec=spec_of(**changes)).outcome == "created"
    return owner


def spec_of(**changes: Any) -> ScheduleSpec:
    given = {"id": ID, "handler": "report", "queue": "default", "payload": b"{}", "every_ms": 60_000}
    return ScheduleSpec(**{**given, **changes})


# -- jobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", CHANGES)
def test_a_pending_job_of_another_queue_stays_as_it_was(verb: str) -> None:
    owner = waiting()
    before = owner.entry(keys.job_key(JOB))
    assert ask(owner, verb, job_id=JOB, **CHANGES[verb]).outcome == "not_allowed"
    assert owner.entry(keys.job_key(JOB)) == before


@pytest.mark.parametrize("verb", CHANGES)
def test_a_waiting_retry_of_another_queue_stays_as_it_was(verb: str) -> None:
    owner = retrying()
    before = owner.entry(keys.retry_key(JOB, 1))
    assert ask(owner, verb, job_id=JOB, at=NOW + 6_000, **CHANGES[verb]).outcome == "not_allowed"
    assert owner.entry(keys.retry_key(JOB, 1)) == before


@pytest.mark.parametrize("verb", ["cancel", "reschedule", "update"])
def test_a_job_of_its_own_queue_is_changed(verb: str) -> None:
    assert ask(waiting("billing"), verb, "billing other", job_id=JOB, **CHANGES[verb]).outcome in (
        "cancelled", "rescheduled", "updated",
    )  # fmt: skip


def test_a_run_that_was_emitted_is_on_the_queue_where_its_owner_saw_it() -> None:
    owner = retrying()
    assert [run.run for run in fired(owner, NOW + 60_000)] == [2]
    for verb in ("stop", "requeue"):
        asked = ask(owner, verb, at=NOW + 61_000, job_id=JOB, **CHANGES[verb] | {"seen_run": 2})
        assert asked.outcome == "not_allowed"
    assert ask(owner, "stop", "default", at=NOW + 61_000, job_id=JOB).outcome == "stopping"


def test_a_stop_or_a_requeue_of_what_the_owner_has_forgotten_goes_nowhere_else() -> None:
    owner = waiting()
    fired(owner, NOW + 5_000)
    for verb in ("stop", "requeue"):
        asked: dict[str, Any] = {"handler": "bill", "seen_run": 1, "queue": "default", "job_id": JOB}
        assert ask(owner, verb, at=NOW + 6_000, **asked).outcome == "not_allowed"
    # Without a queue a run goes to the default one.
    assert ask(owner, "requeue", at=NOW + 6_000, job_id=JOB, handler="bill").outcome == "not_allowed"
    assert ask(owner, "cancel", at=NOW + 6_000, job_id=JOB).outcome == "fired"


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conflict", [None, "existing", "replace", "debounce", "reject"])
def test_a_key_that_a_job_of_another_queue_holds_is_not_touched(conflict: str | None) -> None:
    owner = holding()
    before = owner.entry(keys.keyed_key(KEY))
    wanted: dict[str, Any] = {"key": KEY, "handler": "bill", "queue": "billing", "due_at": NOW + 9_000}
    answer = ask(owner, "create", on_conflict=conflict, **wanted)
    assert (answer.outcome, answer.job_id, answer.detail) == ("not_allowed", None, {"verb": "create"})
    assert owner.entry(keys.keyed_key(KEY)) == before


def test_nor_one_whose_job_has_fired() -> None:
    owner = holding()
    fired(owner, NOW + 5_000)
    wanted: dict[str, Any] = {"key": KEY, "handler": "bill", "queue": "billing", "due_at": NOW + 9_000}
    assert ask(owner, "create", at=NOW + 6_000, **wanted).outcome == "not_allowed"
    assert ask(owner, "release", at=NOW + 6_000, job_id=KEYED).outcome == "not_allowed"
    assert ask(owner, "release", "default", at=NOW + 6_000, job_id=KEYED).outcome == "released"
    assert ask(owner, "create", at=NOW + 6_000, **wanted).outcome == "created"


def test_a_key_whose_job_stands_where_nobody_can_tell_is_not_touched() -> None:
    owner = holding()
    fired(owner, NOW + 5_000)
    entry = owner.entry(keys.keyed_key(KEY))
    owner.read(entry.record_key, entry.value)  # its header, which says where the run stands, is lost
    assert ask(owner, "release", "default", at=NOW + 6_000, job_id=KEYED).outcome == "not_allowed"


def test_the_job_of_ones_own_queue_is_replaced() -> None:
    owner = holding("billing")
    wanted: dict[str, Any] = {"key": KEY, "handler": "bill", "queue": "billing", "due_at": NOW + 9_000}
    assert ask(owner, "create", on_conflict="replace", **wanted).outcome == "replaced"


def test_no_job_is_created_on_another_queue() -> None:
    owner = Owner(LAYOUT.home(KEYED), SITE)
    assert ask(owner, "create", key=KEY, handler="bill", due_at=NOW + 5_000).outcome == "not_allowed"
    assert ask(owner, "create", handler="bill").outcome == "not_allowed"
    assert owner.index.due(owner.number, NOW + 9_000, 9) == []


def test_without_a_key_or_a_time_it_is_due_when_the_log_took_it() -> None:
    owner = Owner(0, SITE)
    answer = ask(owner, "create", handler="bill", queue="billing")
    assert (answer.outcome, answer.detail["due_at"]) == ("created", str(NOW))
    assert answer.job_id == command_job_id(NOW, answer.command_id or "")


# -- schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["create", "update", "put", "delete", "pause", "trigger", "cancel_backfill"])
def test_a_schedule_of_another_queue_stays_as_it_was(verb: str) -> None:
    owner = scheduled()
    before = owner.entry(keys.schedule_key(ID))
    spec = spec_of(queue="billing") if verb in ("create", "update", "put") else None
    assert ask(owner, f"schedule.{verb}", schedule_id=ID, spec=spec).outcome == "not_allowed"
    assert owner.entry(keys.schedule_key(ID)) == before


def test_a_schedule_is_not_made_on_another_queue_or_moved_there() -> None:
    owner = scheduled(queue="billing")
    assert ask(owner, "schedule.update", schedule_id=ID, spec=spec_of()).outcome == "not_allowed"
    assert ask(owner, "schedule.pause", schedule_id=ID).outcome == "paused"
    assert ask(owner, "schedule.delete", schedule_id=ID).outcome == "deleted"
    assert ask(owner, "schedule.create", schedule_id=ID, spec=spec_of()).outcome == "not_allowed"
    assert ask(owner, "schedule.create", schedule_id=ID, spec=spec_of(queue="billing")).outcome == "created"


def test_an_occurrence_that_waits_is_on_the_queue_of_its_schedule() -> None:
    owner = scheduled(overlap="buffer_one")
    first = NOW // 60_000 * 60_000 + 60_000
    (run,) = fired(owner, first)
    fired(owner, first + 60_000)
    later = run.occurrence_id.replace(str(first), str(first + 60_000))
    assert ask(owner, "cancel", at=first + 61_000, job_id=later).outcome == "not_allowed"
    assert ask(owner, "cancel", "default", at=first + 61_000, job_id=later).outcome == "cancelled"
    assert ask(owner, "stop", at=first + 61_000, job_id=run.occurrence_id).outcome == "not_allowed"
    assert ask(owner, "stop", "default", at=first + 61_000, job_id=run.occurrence_id).outcome == "stopping"


# -- the verb ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["replay", "schedule.retain", "explode"])
def test_what_is_about_more_than_one_queue_has_no_limited_form(verb: str) -> None:
    batch = codec.REPLAY_BATCH.encode(ReplayBatch(runs=(codec.RUN.encode(run_of(JOB)),), dead=False))
    owner = waiting()
    detail = {"source": "app:a", "partition": str(owner.number), "ids": ""}
    answer = ask(owner, verb, "default", job_id=JOB, payload=batch, detail=detail)
    assert (answer.outcome, answer.reason) == ("refused", f"verb: {verb!r} is unknown")


def test_one_that_names_no_queues_is_allowed_none() -> None:
    assert waiting().command("limited.cancel", job_id=JOB).outcome == "not_allowed"


def test_it_is_moved_home_with_its_limit_and_may_be_json() -> None:
    id_ = str(uuid.uuid4())
    fields = {"command_id": id_, "verb": "limited.create", "handler": "bill", "key": KEY, "delay_ms": 5}
    elsewhere = Owner((LAYOUT.home(KEYED) + 1) % LAYOUT.partitions, SITE)
    value = json.dumps({**fields, "detail": {"queues": "billing"}}).encode()
    elsewhere.read(keys.command_key(id_), value, headers=[("content-type", b"application/json")])
    (moved,) = [
        put for put in elsewhere.commit(NOW).puts if put.partition == LAYOUT.home(KEYED) and put.value
    ]
    at_home = holding("billing")
    at_home.read(moved.key, moved.value, headers=moved.headers)
    (answer,) = at_home.answers(at_home.commit(NOW))
    assert (answer.outcome, answer.detail["verb"]) == ("not_allowed", "create")


def test_an_owner_that_starts_anew_decides_as_the_one_before_it() -> None:
    first, again = waiting(), waiting()
    command = limited(Command(command_id=str(uuid.uuid4()), verb="cancel", job_id=JOB), ["billing"])
    for owner in (first, again):
        owner.read(keys.command_key(command.command_id), codec.COMMAND.encode(command))
    told = [owner.answers(owner.commit(NOW)) for owner in (first, again)]
    assert told[0] == told[1]
    assert first.commit(NOW + 9_000).fired == 1
