"""Results, and stops of jobs that fired, over a store in memory: each answer is what the log says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from pipeline import JobFailed, codec
from pipeline.client import waiting
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Command, Failure, KeyState, Run
from pipeline.core.keys import keyed_key, stopped_key
from pipeline.ports import Put

ANON = "j" + "0" * 26
STOPPED = Failure(type="Stopped", message="stopped by request")


@pytest.fixture
def job(store: Any, app: Any) -> Run:
    """One that has fired."""
    app.schedule("h", in_="0s", serial="customer-7")
    (run,) = store.runs()
    store.fire(run)
    found: Run = run
    return found


# -- results ------------------------------------------------------------------------------------------------


def test_the_result_of_a_job_that_succeeded(store: Any, app: Any, job: Run) -> None:
    store.ack(job, AckState.SUCCEEDED, result=b'{"sent":[1,null]}')
    assert app.result(job.job_id, wait=0) == {"sent": [1, None]}
    assert asyncio.run(app.aresult(job.job_id)) == {"sent": [1, None]}


def test_a_store_that_is_away_for_a_while_ends_no_wait(store: Any, app: Any, job: Run) -> None:
    steps = waiting.result(app._connected(), job.job_id, "60s")
    next(steps)
    store.cluster.reachable = False
    for _ in range(3):
        next(steps)
    store.cluster.reachable = True
    store.ack(job, AckState.SUCCEEDED, result=b"1")
    assert waiting.wait_for(steps) == 1


def test_a_store_that_stays_away_is_told_when_the_patience_is_over(store: Any, app: Any, job: Run) -> None:
    app._connected()
    store.cluster.reachable = False
    with pytest.raises(StoreUnreachable):
        app.result(job.job_id, wait=0)


def test_a_handler_that_returned_nothing_has_the_result_none(store: Any, app: Any, job: Run) -> None:
    store.ack(job, AckState.SUCCEEDED)
    assert app.result(job.job_id) is None


def test_a_result_is_waited_for_from_the_creation_of_the_job_on(store: Any, app: Any) -> None:
    ref = app.schedule("h", in_="1h")
    steps = waiting.result(app._connected(), ref.id, "60s")
    assert next(steps) <= waiting.FIRST_S
    (run,) = store.runs()
    store.fire(run)
    next(steps)
    store.ack(run, AckState.STARTED)
    next(steps)
    store.ack(run, AckState.RETRYING, error=Failure(type="ValueError", message="no"))
    again = replace(run, run=2)
    store.put(again)
    next(steps)
    store.fire(again)
    next(steps)
    store.ack(again, AckState.SUCCEEDED, result=b"7")
    assert waiting.wait_for(steps) == 7


def test_pauses_grow_up_to_a_limit_and_end_with_the_patience(
    store: Any, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("pipeline.client.waiting.time.monotonic", lambda: now)
    pauses = []
    for pause in waiting._pauses(10.0):
        pauses.append(pause)
        now += pause
    assert pauses[:2] == [waiting.FIRST_S, waiting.FIRST_S * waiting.GROWTH]
    assert max(pauses) == waiting.LONGEST_S
    assert sum(pauses) == pytest.approx(10.0)
    assert len(pauses) < 25


@pytest.mark.parametrize(
    ("state", "error", "status"),
    [
        (AckState.DEAD, Failure(type="ValueError", message="no\nmore"), "dead"),
        (AckState.CANCELLED, Failure(type="Cancel", message="not today"), "cancelled"),
        (AckState.CANCELLED, STOPPED, "stopped"),
    ],
)
def test_a_job_that_ended_otherwise_says_how_and_why(
    store: Any, app: Any, job: Run, state: AckState, error: Failure, status: str
) -> None:
    store.ack(job, state, error=error)
    with pytest.raises(JobFailed) as caught:
        app.result(job.job_id)
    assert (caught.value.status, caught.value.error, caught.value.exit_code) == (status, error, 1)
    assert str(caught.value) == f"job {job.job_id} is {status}: {error.type}: {error.message.splitlines()[0]}"


def test_a_result_that_does_not_come_in_time_is_a_timeout(app: Any, job: Run) -> None:
    with pytest.raises(TimeoutError, match="is still queued after waiting 20ms"):
        app.result(job.job_id, wait="20ms")
    with pytest.raises(TimeoutError):
        asyncio.run(app.aresult(job.job_id, wait="20ms"))


def test_what_is_wrong_with_the_question_is_told(app: Any) -> None:
    with pytest.raises(NotFound):
        app.result(ANON)
    with pytest.raises(InvalidInput, match="id"):
        app.result("nonsense")
    with pytest.raises(InvalidInput, match="wait"):
        app.result(ANON, wait="soon")


def test_a_keyed_job_is_the_one_that_held_the_key_at_first(store: Any, app: Any) -> None:
    id_ = keyed_id("k")
    (pending,) = [keyed(store, id_, incarnation) for incarnation in (3,)]
    steps = waiting.result(app._connected(), id_, "60s")
    next(steps)
    state = KeyState(incarnation=3, phase="fired", highest_run=1, unique="finished", changed_at=0)
    place = f"default/{store.layout.work_partition('default', id_)}".encode()
    put_state(store, id_, state, [("run", b"1"), ("work", place)])
    keyed(store, id_, 9)  # the key was taken again meanwhile
    next(steps)
    store.ack(pending, AckState.SUCCEEDED, result=b'"mine"')
    assert waiting.wait_for(steps) == "mine"


def keyed(store: Any, id_: str, incarnation: int) -> Run:
    run = Run(
        job_id=id_,
        occurrence_id=f"{id_}.{incarnation}",
        due_at=store.clock.now(),
        run=1,
        queue="default",
        handler="h",
        created_at=store.clock.now(),
        nominal_at=store.clock.now(),
        idempotency_key="i",
        payload=b"{}",
        key="k",
    )
    state = KeyState(
        incarnation=incarnation, phase="pending", highest_run=0, unique="finished", changed_at=0, run=run
    )
    put_state(store, id_, state, None)
    return run


def put_state(store: Any, id_: str, state: KeyState, headers: Any) -> None:
    value = codec.KEY_STATE.encode(state)
    store.cluster.append(Put(store.names.jobs, store.layout.home(id_), keyed_key("k"), value, headers))


# -- stops --------------------------------------------------------------------------------------------------


class Owner:
    """Of a job that fired: it knows no place before it is told one. What comes then is the worker's."""

    def __init__(self, store: Any, then: Any = lambda: None) -> None:
        self._then = then
        store.owner = self

    def __call__(self, command: Command) -> dict[str, Any]:
        if command.seen_run is None:
            return {"outcome": "fired"}
        self._then()
        return {"outcome": "stopping", "run": command.seen_run}


@pytest.mark.parametrize("word", ["cancelled", "stopped"])
def test_what_the_owner_can_stop_alone_is_asked_once(store: Any, app: Any, job: Run, word: str) -> None:
    store.owner = lambda _command: {"outcome": word}
    assert app.cancel(job.job_id, stop=True).outcome == word
    assert [command.verb for command in store.commands] == ["stop"]


def test_the_owner_is_told_where_the_run_stands(store: Any, app: Any, job: Run) -> None:
    Owner(store)
    assert app.cancel(job.job_id, stop=True, wait="2s").outcome == "stopping"
    _, told = store.commands
    assert (told.verb, told.job_id) == ("stop", job.job_id)
    assert (told.queue, told.serial, told.seen_run) == ("default", "customer-7", 1)


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        ([], "stopping"),
        ([AckState.STARTED], "stopping"),
        ([AckState.SUCCEEDED], "too_late"),
        ([AckState.DEAD], "too_late"),
        ([AckState.RETRYING], "stopping"),
    ],
)
def test_the_outcome_is_what_stands_on_the_acks(
    store: Any, app: Any, job: Run, states: list[AckState], outcome: str
) -> None:
    Owner(store, lambda: [store.ack(job, state) for state in states])
    change = app.cancel(job.job_id, stop=True, wait="2s" if outcome == "stopping" else "30s")
    assert (change.id, change.outcome) == (job.job_id, outcome)


def test_a_run_that_its_worker_ended_is_stopped(store: Any, app: Any, job: Run) -> None:
    Owner(store, lambda: store.ack(job, AckState.CANCELLED, error=STOPPED))
    assert app.cancel(job.job_id, stop=True).outcome == "stopped"
    assert asyncio.run(app.acancel(job.job_id, stop=True)).outcome == "stopped"


def test_a_job_that_cancelled_itself_was_not_stopped(store: Any, app: Any, job: Run) -> None:
    Owner(store, lambda: store.ack(job, AckState.CANCELLED, error=Failure(type="Cancel", message="")))
    assert app.cancel(job.job_id, stop=True).outcome == "too_late"


def test_a_job_that_ended_before_is_too_late_and_no_stop_is_written(store: Any, app: Any, job: Run) -> None:
    Owner(store)
    store.ack(job, AckState.SUCCEEDED)
    assert app.cancel(job.job_id, stop=True).outcome == "too_late"
    assert [command.seen_run for command in store.commands] == [None]


def test_a_stop_that_the_owner_could_place_is_followed_at_once(store: Any, app: Any, job: Run) -> None:
    def owner(_command: Command) -> dict[str, Any]:
        store.ack(job, AckState.CANCELLED, error=STOPPED)
        return {"outcome": "stopping", "run": 1}

    store.owner = owner
    assert app.cancel(job.job_id, stop=True).outcome == "stopped"
    assert len(store.commands) == 1


def test_nothing_is_not_found_and_no_answer_is_unknown(store: Any, app: Any) -> None:
    store.owner = lambda _command: {"outcome": "not_found"}
    assert app.cancel(ANON, stop=True).outcome == "not_found"
    store.owner = lambda _command: None
    assert app.cancel(ANON, stop=True, wait="20ms").outcome == "unknown"
    with pytest.raises(InvalidInput, match="id"):
        app.cancel("nonsense", stop=True)


def test_a_plain_cancel_of_a_job_that_was_being_stopped_looks_how_that_ended(
    store: Any, app: Any, job: Run
) -> None:
    store.owner = lambda _command: {"outcome": "fired", "reason": "stopping"}
    assert app.cancel(job.job_id).outcome == "too_late"
    store.ack(job, AckState.CANCELLED, error=STOPPED)
    assert app.cancel(job.job_id).outcome == "stopped"


def test_a_job_that_runs_again_after_a_stop_is_not_stopped(store: Any, app: Any, job: Run) -> None:
    store.ack(job, AckState.CANCELLED, error=STOPPED)
    assert app.get(job.job_id)["status"] == "stopped"
    store.cluster.append(Put(store.names.jobs, store.layout.home(job.job_id), stopped_key(job.job_id), None))
    again = replace(job, run=2)
    store.put(again)
    store.fire(again)
    assert app.get(job.job_id)["status"] == "queued"
    store.ack(again, AckState.SUCCEEDED, result=b"1")
    assert app.result(job.job_id) == 1
