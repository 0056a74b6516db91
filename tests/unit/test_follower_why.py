"""`why`: one sentence, for each thing that a job can wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import NotFound
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import AckState, Command, Event, Failure, JobStatus, Owned, Run
from pipeline.core.queues import Pause, paused, resumed, to_event
from pipeline.follower.why import Reason
from pipeline.ports import Put

T0 = 1_800_000_000_000
DUE = T0 + 3_723_000


def run_of(n: int = 0, **fields: Any) -> Run:
    due_at = fields.get("due_at", DUE)
    id_ = anonymous_id(due_at, n)
    values: dict[str, Any] = {
        "job_id": id_,
        "occurrence_id": id_,
        "due_at": due_at,
        "run": 1,
        "queue": "default",
        "handler": "email.send",
        "created_at": T0,
        "nominal_at": due_at,
        "idempotency_key": id_,
        "payload": b"{}",
    }
    return Run(**{**values, **fields})


def why(store: Any, id_: str) -> Reason:
    return store.follower.why(id_, store.clock.now())  # type: ignore[no-any-return]


def owning(store: Any, state: str = "running", process: str = "d1") -> None:
    owned = tuple(Owned(topic=store.names.jobs, partition=n, state=state) for n in range(24))
    store.beat(process, role="dispatcher", owned=owned)


def working(store: Any, process: str = "w1", **fields: Any) -> None:
    owned = tuple(Owned(topic=store.names.work("default"), partition=n, state="running") for n in range(3))
    store.beat(process, **{"queues": ("default",), "handlers": ("email.send",), "owned": owned, **fields})


# -- to come ------------------------------------------------------------------------------------------------


def test_its_time(store: Any) -> None:
    owning(store)
    run = run_of()
    store.put(run)
    reason = why(store, run.job_id)
    assert reason[:2] == ("pending", "time")
    assert reason.sentence == "it waits for its time, 2027-01-15T09:02:03.000Z, in 1 h 2 min"


def test_its_time_while_nobody_would_fire_it(store: Any) -> None:
    run = run_of()
    store.put(run)
    home = store.layout.home(run.job_id)
    told = f"no live dispatcher owns its partition {home}: start `dueline dispatcher`"
    assert why(store, run.job_id).sentence.endswith(f", in 1 h 2 min; {told}")
    store.clock.advance(3_725_000)
    reason = why(store, run.job_id)
    assert reason[:2] == ("pending", "owner")
    assert reason.sentence == f"it is due since 2027-01-15T09:02:03.000Z, 2 s ago; {told}"


def test_an_owner_that_restores(store: Any) -> None:
    run = run_of(due_at=T0)
    store.put(run)
    owning(store, "restoring")
    reason = why(store, run.job_id)
    assert reason.waits_for == "owner"
    assert "its owner, dispatcher d1, is restoring its partition" in reason.sentence
    owning(store, "running", "d2")
    assert why(store, run.job_id).waits_for == "turn"


def test_its_turn_behind_what_is_due_before_it(store: Any) -> None:
    owning(store)
    runs = [run_of(n, due_at=T0 + 1_000) for n in range(100)]
    last = run_of(7, due_at=T0 + 2_000)
    for run in (*runs, last):
        store.put(run)
    home = store.layout.home(last.job_id)
    before = sum(store.layout.home(run.job_id) == home for run in runs)
    assert before > 0
    store.clock.advance(2_000)
    reason = why(store, last.job_id)
    assert reason.waits_for == "turn"
    assert reason.sentence.endswith(f"by the rate of its queue: {before} due before it")


def test_a_retry_after_its_error(store: Any) -> None:
    owning(store)
    run = run_of(due_at=T0)
    retry = replace(run, run=2, failures=1, due_at=T0 + 5_000)
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.RETRYING, error=Failure(type="ValueError", message="no\nway"))
    reason = why(store, run.job_id)
    assert reason == ("retrying", "retry", "its next run is being written after run 1: ValueError: no")
    store.put(retry)
    reason = why(store, run.job_id)
    assert reason[:2] == ("retrying", "retry")
    at = "2027-01-15T08:00:05.000Z"
    assert reason.sentence == f"it retries after run 1: ValueError: no at {at}, in 5 s"


def test_a_create_command_that_nobody_executes(store: Any) -> None:
    id_ = keyed_id("k")
    command = Command(command_id="00000000-0000-4000-8000-000000000000", verb="create", key="k")
    home = store.layout.home(id_)
    key = keys.command_key(command.command_id)
    store.cluster.append(Put(store.names.jobs, home, key, codec.COMMAND.encode(command)))
    assert why(store, id_)[:2] == (None, "owner")
    owning(store)
    told = (None, "command", "it waits for its create command to be executed")
    assert why(store, id_) == told


# -- fired --------------------------------------------------------------------------------------------------


@pytest.fixture
def fired(store: Any) -> Run:
    run = run_of(due_at=T0)
    store.put(run)
    store.fire(run)
    return run


def test_no_worker_for_its_queue(store: Any, fired: Run) -> None:
    working(store, queues=("mail",))
    reason = why(store, fired.job_id)
    assert reason[:2] == ("queued", "worker")
    assert "no live worker takes the queue default" in reason.sentence


def test_its_queue_is_paused(store: Any, fired: Run) -> None:
    store.cluster.create_topic(store.names.meta, 1)
    pause = Pause(by="ann@h1", at=T0, reason="the mail server is down")
    state = paused(None, "default", pause)
    put = Put(store.names.meta, 0, keys.queue_key("default"), codec.EVENT.encode(to_event(state)))
    store.cluster.append(put)
    reason = why(store, fired.job_id)
    assert reason[:2] == ("queued", "queue")
    assert reason.sentence.endswith(
        "; the queue default is paused by ann@h1 since 2027-01-15T08:00:00.000Z: the mail server is down"
    )
    other = resumed(state, "default", "bob@h2", T0)
    assert other is not None
    store.cluster.append(put._replace(value=codec.EVENT.encode(to_event(other))))
    assert why(store, fired.job_id)[:2] == ("queued", "worker")


def test_no_worker_that_knows_its_handler(store: Any, fired: Run) -> None:
    working(store, handlers=("other",))
    reason = why(store, fired.job_id)
    assert reason[:2] == ("queued", "handler")
    assert reason.sentence.endswith("no live worker of the queue default knows the handler email.send")


def test_the_worker_that_has_it_does_not_know_its_handler(store: Any, fired: Run) -> None:
    working(store, handlers=("other",))
    working(store, "w2", owned=())
    reason = why(store, fired.job_id)
    assert reason[:2] == ("queued", "handler")
    assert reason.sentence.endswith("worker w1, which has it, does not know the handler email.send")


def test_a_partition_that_no_worker_has_yet(store: Any, fired: Run) -> None:
    working(store, owned=())
    place = store.layout.work_partition("default", fired.job_id)
    reason = why(store, fired.job_id)
    assert reason.sentence.endswith(f"no live worker owns partition {place} of the queue default yet")
    owned = (Owned(topic=store.names.work("default"), partition=place, state="restoring"),)
    working(store, owned=owned)
    assert f"worker w1 is restoring partition {place}" in why(store, fired.job_id).sentence


def test_a_worker_that_will_start_it(store: Any, fired: Run) -> None:
    working(store)
    reason = why(store, fired.job_id)
    assert reason[:2] == ("queued", "worker")
    assert reason.sentence.endswith("worker w1 has it and starts it in its turn; it runs 0 runs now")


def test_others_of_its_serial_group(store: Any) -> None:
    working(store)
    runs = [run_of(n, due_at=T0, serial="s") for n in range(3)]
    other = run_of(9, due_at=T0, serial="t")
    for run in (other, *runs):
        store.put(run)
        store.fire(run)
    store.ack(runs[0], AckState.SUCCEEDED)
    store.ack(runs[1], AckState.STARTED)
    reason = why(store, runs[2].job_id)
    assert reason[:2] == ("queued", "serial")
    assert reason.sentence.endswith("it is behind 1 run of its serial group s")
    store.ack(runs[1], AckState.DEAD)
    assert why(store, runs[2].job_id).waits_for == "worker"


def test_the_attempt_that_is_running_it(store: Any, fired: Run) -> None:
    store.ack(fired, AckState.STARTED, started_at=T0)
    reason = why(store, fired.job_id)
    assert reason[:2] == ("running", "worker")
    assert "is not alive any more" in reason.sentence
    working(store)
    reason = why(store, fired.job_id)
    assert reason[:2] == ("running", "attempt")
    at = "2027-01-15T08:00:00.000Z"
    assert reason.sentence == f"worker w1 started attempt 1 of run 1 at {at} and is running it"


# -- over ---------------------------------------------------------------------------------------------------


def test_what_is_over_waits_for_nothing(store: Any, fired: Run) -> None:
    store.ack(fired, AckState.SUCCEEDED)
    at = "2027-01-15T08:00:00.000Z"
    told = ("succeeded", None, f"it succeeded in run 1, attempt 1, at {at}")
    assert why(store, fired.job_id) == told
    store.ack(fired, AckState.DEAD, attempt=2, error=Failure(type="ValueError", message=""))
    told = ("dead", None, f"it is dead in run 1, attempt 2, at {at}: ValueError")
    assert why(store, fired.job_id) == told
    store.end(fired, "stopped")
    assert why(store, fired.job_id)[:2] == ("stopped", None)


def test_a_cancelled_job_waits_for_nothing(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.end(run, "cancelled")
    told = ("cancelled", None, "it was cancelled before it fired; it waits for nothing")
    assert why(store, run.job_id) == told
    with pytest.raises(NotFound):
        why(store, anonymous_id(DUE, 99))


# -- stops and leases ---------------------------------------------------------------------------------------


def stopped(store: Any, run: Run, number: int = 1) -> None:
    event = Event(id=run.occurrence_id, kind="stopped", at=DUE, run=number, outcome="stopping")
    key = keys.stopped_key(run.occurrence_id)
    store.cluster.append(Put(store.names.jobs, store.layout.home(run.job_id), key, codec.EVENT.encode(event)))


def test_a_run_that_is_asked_to_stop_says_so(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    working(store)
    stopped(store, run)
    asked = "; it was asked to stop at 2027-01-15T09:02:03.000Z"
    assert asked in why(store, run.job_id).sentence
    store.ack(run, AckState.STARTED)
    assert why(store, run.job_id) == Reason(
        JobStatus.RUNNING,
        "attempt",
        f"worker w1 started attempt 1 of run 1 at 2027-01-15T08:00:00.000Z and is running it{asked}",
    )
    again = replace(run, run=2)
    store.put(again)
    store.fire(again)
    assert "asked to stop" not in why(store, run.job_id).sentence, "the stop was of an earlier run"


def test_a_held_run_names_its_holder_and_the_owner_that_waits(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.STARTED)
    store.beat("w1", queues=("default",), handlers=("email.send",))
    working(store, "w2")
    reason = why(store, run.job_id)
    assert reason.waits_for == "attempt"
    assert reason.sentence.endswith("is running it; worker w2 owns its partition now and waits for that")
    working(store, "w1")
    store.leave("w2")
    assert "waits for that" not in why(store, run.job_id).sentence
