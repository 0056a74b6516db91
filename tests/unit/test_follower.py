"""The read model, folded from what clients, dispatchers and workers write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput, NotFound
from pipeline.core.ids import anonymous_id
from pipeline.core.job import Ack, AckState, Failure, Highest, JobStatus, Owned, Run
from pipeline.follower import FRESH_MS, Wanted, headers_of
from pipeline.ports import Put

T0 = 1_800_000_000_000
DUE = T0 + 60_000


def run_of(n: int = 0, *, due_at: int = DUE, **fields: Any) -> Run:
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


def retry_of(run: Run, due_at: int) -> Run:
    return replace(run, run=run.run + 1, due_at=due_at, failures=run.failures + 1)


# -- one job ------------------------------------------------------------------------------------------------


def test_a_pending_job(store: Any) -> None:
    run = run_of(labels={"team": "a"}, serial="s", payload=b'{"n":123456789012345678901234567890}')
    store.put(run)
    assert store.follower.job(run.job_id) == {
        "id": run.job_id,
        "handler": "email.send",
        "status": "pending",
        "due_at": "2027-01-15T08:01:00.000Z",
        "created_at": "2027-01-15T08:00:00.000Z",
        "ended_at": None,
        "key": None,
        "queue": "default",
        "labels": {"team": "a"},
        "schedule": None,
        "occurrence": run.job_id,
        "serial": "s",
        "failures": 0,
        "skipped": None,
        "reason": None,
        "waits_behind": None,
        "kept": True,
        "payload": '{"n":123456789012345678901234567890}',
        "result": None,
        "runs": [],
    }


def test_a_job_ends_with_its_last_attempt_or_when_its_home_says_so(store: Any) -> None:
    run, cancelled = run_of(), run_of(1)
    store.put(cancelled)
    store.clock.advance(1_000)
    store.end(cancelled, "cancelled")
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.STARTED)
    assert store.follower.job(run.job_id)["ended_at"] is None
    store.clock.advance(1_000)
    store.ack(run, AckState.SUCCEEDED)
    assert store.follower.job(run.job_id)["ended_at"] == "2027-01-15T08:00:02.000Z"
    assert store.follower.job(cancelled.job_id)["ended_at"] == "2027-01-15T08:00:01.000Z"
    store.put(replace(run, run=2))
    assert store.follower.job(run.job_id)["ended_at"] is None


def test_a_payload_is_found_on_the_work_topic_once_its_home_has_no_more_of_the_job(store: Any) -> None:
    run = run_of(payload=b'{"a":1}')
    store.fire(run)
    view = store.follower.job(run.job_id)
    assert (view["kept"], view["payload"]) == (True, '{"a":1}')
    store.fire(replace(run, run=2, payload=b'{"a":2}'))  # by a requeue that mended it
    assert store.follower.job(run.job_id)["payload"] == '{"a":2}'
    gone = run_of(1)
    store.end(gone, "dead")
    view = store.follower.job(gone.job_id)
    assert (view["kept"], view["payload"], view["created_at"]) == (False, None, None)


def test_a_job_from_firing_to_success(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.clock.advance(60_000)
    store.fire(run)
    assert store.follower.job(run.job_id)["status"] == "queued"
    store.ack(run, AckState.STARTED, started_at=DUE)
    assert store.follower.job(run.job_id)["status"] == "running"
    store.clock.advance(500)
    store.ack(run, AckState.SUCCEEDED, started_at=DUE, result=b'{"sent":1}')
    view = store.follower.job(run.job_id)
    assert (view["status"], view["result"], view["due_at"]) == (
        "succeeded",
        {"sent": 1},
        "2027-01-15T08:01:00.000Z",
    )
    assert view["runs"] == [
        {
            "run": 1,
            "fired_at": "2027-01-15T08:01:00.000Z",
            "attempts": [
                {
                    "attempt": 1,
                    "worker": "w1",
                    "token": "1001",
                    "started_at": "2027-01-15T08:01:00.000Z",
                    "finished_at": "2027-01-15T08:01:00.500Z",
                    "outcome": "succeeded",
                    "error": None,
                }
            ],
        }
    ]


def test_a_job_that_is_retried(store: Any) -> None:
    run = run_of()
    retry = retry_of(run, DUE + 5_000)
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.STARTED)
    store.ack(run, AckState.RETRYING, error=Failure(type="ValueError", message="no"), retry_at=retry.due_at)
    store.put(retry)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["due_at"]) == ("retrying", "2027-01-15T08:01:05.000Z")
    assert view["runs"][0]["attempts"][0]["error"] == {"type": "ValueError", "message": "no", "trace": None}
    store.fire(retry)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["due_at"]) == ("queued", "2027-01-15T08:01:00.000Z")
    store.ack(retry, AckState.DEAD, error=Failure(type="ValueError", message="no"))
    view = store.follower.job(run.job_id)
    assert [run["run"] for run in view["runs"]] == [1, 2]
    assert view["status"] == "dead"


def test_between_the_ack_and_its_retry_the_job_is_retrying(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.RETRYING)
    assert store.follower.job(run.job_id)["status"] == "retrying"


def test_an_attempt_whose_worker_died_is_lost(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.STARTED, attempt=1)
    store.ack(run, AckState.STARTED, attempt=2)
    attempts = store.follower.job(run.job_id)["runs"][0]["attempts"]
    assert [(a["attempt"], a["outcome"], a["finished_at"]) for a in attempts] == [
        (1, "lost", None),
        (2, None, None),
    ]


@pytest.mark.parametrize(
    "order", [(AckState.STARTED, AckState.SUCCEEDED), (AckState.SUCCEEDED, AckState.STARTED)]
)
def test_a_terminal_ack_outranks_a_start_whatever_the_order(store: Any, order: tuple[AckState, ...]) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    for state in order:
        store.ack(run, state)
    assert store.follower.job(run.job_id)["status"] == "succeeded"


def test_a_released_attempt_is_queued_again(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.STARTED)
    store.ack(run, AckState.RELEASED)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["runs"][0]["attempts"][0]["outcome"]) == ("queued", "released")


def test_a_released_attempt_is_told_beside_the_one_that_has_its_number_again(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    for state, token in ((AckState.STARTED, 1), (AckState.RELEASED, 1), (AckState.STARTED, 2)):
        put_ack(store, run, state, token, worker=f"w{token}")
    put_ack(store, run, AckState.SUCCEEDED, 2, worker="w2", log_tail="line 1\nline 2")
    attempts = store.follower.job(run.job_id)["runs"][0]["attempts"]
    told = [(a["attempt"], a["worker"], a["outcome"], a.get("log")) for a in attempts]
    assert told == [(1, "w1", "released", None), (1, "w2", "succeeded", "line 1\nline 2")]


def test_the_end_of_a_run_outranks_a_start_that_came_beside_it(store: Any) -> None:
    """A holder finished, and the next owner had started it again before it read that."""
    run = run_of()
    store.put(run)
    store.fire(run)
    put_ack(store, run, AckState.STARTED, 1)
    put_ack(store, run, AckState.SUCCEEDED, 1, result=b"1")
    put_ack(store, run, AckState.STARTED, 2, attempt=2)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["result"]) == ("succeeded", 1)
    assert [a["outcome"] for a in view["runs"][0]["attempts"]] == ["succeeded", "lost"]


def put_ack(store: Any, run: Run, state: AckState, token: int, attempt: int = 1, **more: Any) -> None:
    values = {"worker": "w1", "started_at": DUE, **more}
    ack = Ack(
        job_id=run.job_id,
        occurrence_id=run.occurrence_id,
        run=run.run,
        attempt=attempt,
        token=token,
        handler=run.handler,
        state=state,
        at=DUE,
        work_offset=0,
        **values,
    )
    key = (
        keys.terminal_key(run.occurrence_id, run.run, attempt)
        if state.terminal
        else keys.started_key(run.occurrence_id, run.run, token)
    )
    partition = store.layout.work_partition(run.queue, run.serial or run.job_id)
    store.cluster.append(Put(store.names.acks(run.queue), partition, key, codec.ACK.encode(ack)))


@pytest.mark.parametrize(
    ("error", "status"), [("Stopped", JobStatus.STOPPED), ("Cancel", JobStatus.CANCELLED)]
)
def test_a_run_that_was_stopped_before_it_started(store: Any, error: str, status: JobStatus) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.CANCELLED, error=Failure(type=error, message="by request"))
    view = store.follower.job(run.job_id)
    assert view["status"] == status
    (attempt,) = view["runs"][0]["attempts"]
    assert (attempt["outcome"], attempt["started_at"]) == ("cancelled", None)


def test_a_job_that_is_requeued_after_its_retry_was_dropped_is_no_longer_stopped(store: Any) -> None:
    run = run_of()
    retry, again = retry_of(run, DUE + 5_000), replace(run, run=2)
    store.put(run)
    store.fire(run)
    store.put(retry)
    store.end(retry, "stopped")
    assert store.follower.job(run.job_id)["status"] == "stopped"
    place = store.layout.work_partition("default", run.job_id)
    highest = codec.HIGHEST.encode(Highest(run=2, queue="default", work_partition=place))
    home = store.layout.home(run.job_id)
    store.cluster.append(Put(store.names.jobs, home, keys.highest_key(run.job_id), highest))
    assert store.follower.job(run.job_id)["status"] == "queued"
    store.ack(again, AckState.SUCCEEDED)
    assert store.follower.job(run.job_id)["status"] == "succeeded"


@pytest.mark.parametrize("end", ["dead", "cancelled"])
def test_a_job_its_owner_ended(store: Any, end: str) -> None:
    run = run_of()
    store.put(run)
    store.end(run, end)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["handler"], view["runs"]) == (end, "email.send", [])


def test_a_duplicate_changes_nothing(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED)
    store.put(run)
    store.end(run, "duplicate")
    assert store.follower.job(run.job_id)["status"] == "succeeded"
    other = run_of(1)
    store.put(other)
    store.end(other, "cancelled")
    store.end(other, "duplicate")
    assert store.follower.job(other.job_id)["status"] == "cancelled"


def test_a_fired_job_is_found_after_compaction(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.cluster.partition(store.names.jobs, store.layout.home(run.job_id)).compact()
    store.ack(run, AckState.SUCCEEDED)
    view = store.follower.job(run.job_id)
    assert (view["status"], view["handler"], view["due_at"]) == (
        "succeeded",
        "email.send",
        "2027-01-15T08:01:00.000Z",
    )


def test_the_tombstone_before_its_run_is_visible(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.end(run, "fired", place="default/1")
    view = store.follower.job(run.job_id)
    assert (view["status"], view["handler"], view["runs"]) == ("queued", "email.send", [])


def test_other_jobs_of_the_partition_stay_out(store: Any) -> None:
    run = run_of()
    others = (run_of(n) for n in range(1, 200))
    neighbour = next(
        other for other in others if store.layout.home(other.job_id) == store.layout.home(run.job_id)
    )
    for each in (run, neighbour):
        store.put(each)
        store.fire(each)
        store.ack(each, AckState.STARTED)
    store.ack(neighbour, AckState.SUCCEEDED)
    view = store.follower.job(run.job_id)
    assert view["status"] == "running"
    assert [len(each["attempts"]) for each in view["runs"]] == [1]


@pytest.mark.parametrize("id_", ["", "nonsense", "j123", "j" + "0" * 25 + "u", "s:"])
def test_a_malformed_id(store: Any, id_: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        store.follower.job(id_)
    assert caught.value.field == "id"


def test_an_unknown_id(store: Any) -> None:
    with pytest.raises(NotFound):
        store.follower.job(anonymous_id(DUE, 7))


# -- many jobs ----------------------------------------------------------------------------------------------


def ids(views: Any) -> list[str]:
    return [view["id"] for view in views]


def test_a_list_holds_what_has_a_run_to_come(store: Any) -> None:
    pending, retried, fired = run_of(1), run_of(2), run_of(3)
    for run in (pending, retried, fired):
        store.put(run)
    for run in (retried, fired):
        store.fire(run)
    store.put(retry_of(retried, DUE + 1))
    assert {view["id"]: view["status"] for view in store.follower.jobs(Wanted())} == {
        pending.job_id: "pending",
        retried.job_id: "retrying",
    }


def test_a_list_is_filtered(store: Any) -> None:
    one = run_of(1, handler="a", labels={"customer": "7", "kind": "x"})
    two = run_of(2, handler="b", labels={"customer": "8"}, due_at=DUE + 1_000)
    for run in (one, two):
        store.put(run)
    for wanted, found in (
        (Wanted(handler="a"), [one]),
        (Wanted(queue="default", handler="b"), [two]),
        (Wanted(queue="mail"), []),
        (Wanted(labels={"customer": "7"}), [one]),
        (Wanted(labels={"customer": "7", "kind": "y"}), []),
        (Wanted(due_from=DUE + 1_000), [two]),
        (Wanted(due_to=DUE + 1_000), [one]),
        (Wanted(statuses=frozenset({JobStatus.PENDING}), handler="b"), [two]),
        (Wanted(statuses=frozenset({JobStatus.RETRYING})), []),
    ):
        assert ids(store.follower.jobs(wanted)) == [run.job_id for run in found]


def test_a_job_that_no_longer_matches_leaves_the_list(store: Any) -> None:
    run = run_of(labels={"a": "1"})
    store.put(run)
    store.put(replace(run, labels={}))
    assert ids(store.follower.jobs(Wanted(labels={"a": "1"}))) == []


def test_a_limit_gives_the_first_due_of_all_partitions(store: Any) -> None:
    runs = [run_of(n, due_at=DUE + 60_000 * n) for n in reversed(range(40))]
    for run in runs:
        store.put(run)
    first = sorted(runs, key=lambda run: run.due_at)[:5]
    assert ids(store.follower.jobs(Wanted(), limit=5)) == [run.job_id for run in first]
    assert len(ids(store.follower.jobs(Wanted()))) == 40


def test_what_nobody_can_read_is_not_listed_but_owed(store: Any) -> None:
    run = run_of()
    home = store.layout.home(run.job_id)
    store.cluster.append(Put(store.names.jobs, home, b"j/" + run.job_id.encode(), b"rubbish"))
    assert list(store.follower.jobs(Wanted())) == []
    assert store.follower.backlog(home) == (1, 0)


def test_a_backlog_counts_what_is_owed(store: Any) -> None:
    run = run_of()
    home = store.layout.home(run.job_id)
    assert store.follower.backlog(home) == (0, None)
    store.put(run)
    assert store.follower.backlog(home) == (1, DUE)
    store.fire(run)
    assert store.follower.backlog(home) == (0, None)


# -- processes ----------------------------------------------------------------------------------------------


def processes(store: Any) -> list[tuple[str, tuple[str, ...]]]:
    seen = store.follower.processes(store.clock.now())
    return [(each.heartbeat.process, each.heartbeat.queues) for each in seen]


def test_a_process_is_shown_while_its_heartbeat_is_fresh(store: Any) -> None:
    store.beat("d1", role="dispatcher", owned=(Owned(topic="t", partition=1, state="running"),))
    assert processes(store) == [("d1", ())]
    store.clock.advance(FRESH_MS)
    assert processes(store) == [("d1", ())]
    store.clock.advance(1)
    assert processes(store) == []


def test_a_worker_beats_for_each_of_its_queues(store: Any) -> None:
    for queue in ("b", "a", "b"):
        store.beat("w1", queues=(queue,))
    assert processes(store) == [("w1", ("a",)), ("w1", ("b",))]
    store.leave("w1")
    assert processes(store) == []


def test_probes_of_the_clock_are_no_processes(store: Any) -> None:
    store.cluster.append(Put(store.names.fleet, 1, b"probe", None))
    store.cluster.append(Put(store.names.fleet, 1, b"probe", b"\x00"))
    assert processes(store) == []


# -- records that nobody should have written ----------------------------------------------------------------


def put_raw(store: Any, run: Run, value: bytes | None, headers: Any = None) -> None:
    home = store.layout.home(run.job_id)
    store.cluster.append(Put(store.names.jobs, home, f"j/{run.job_id}".encode(), value, headers))


@pytest.mark.parametrize("due_at", [2**62, -(2**62)])
def test_an_absurd_due_time_is_shown_as_its_number(store: Any, due_at: int) -> None:
    run = replace(run_of(), due_at=due_at)
    store.put(run)
    store.put(run_of(1))
    listed = {view["id"]: view["due_at"] for view in store.follower.jobs(Wanted())}
    assert listed[run.job_id] == str(due_at)
    assert store.follower.job(run.job_id)["due_at"] == str(due_at)
    (first,) = store.follower.jobs(Wanted(), limit=1)
    assert (first["id"] == run.job_id) == (due_at < 0)


@pytest.mark.parametrize("damage", [lambda _: b"garbage", lambda value: value[:-3]], ids=["garbage", "tail"])
def test_only_an_unreadable_record_is_not_found_and_then_dead(store: Any, damage: Any) -> None:
    run = run_of()
    put_raw(store, run, damage(codec.RUN.encode(run)))
    with pytest.raises(NotFound, match="no record of a job"):
        store.follower.job(run.job_id)
    store.end(run, "dead")
    assert store.follower.job(run.job_id)["status"] == "dead"


def test_junk_on_the_work_and_acks_topics_is_passed_over(store: Any) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED, result=b"NaN")
    place = store.layout.work_partition(run.queue, run.job_id)
    store.cluster.append(Put(store.names.work(run.queue), place, run.job_id.encode(), b"junk"))
    for key in (f"s/{run.job_id}/1/1", f"t/{run.job_id}/1/1"):
        store.cluster.append(Put(store.names.acks(run.queue), place, key.encode(), b"junk"))
    view = store.follower.job(run.job_id)
    assert (view["status"], view["result"], len(view["runs"])) == ("succeeded", "NaN", 1)


@pytest.mark.parametrize(
    "place", [b"zz", b"default/zz", b"default/-1", b"default/" + b"9" * 30, b"none/0", b"\xff"]
)
def test_a_forged_place_leads_nowhere(store: Any, place: bytes) -> None:
    run = run_of()
    put_raw(store, run, None, [("end", b"dead"), ("work", place), ("x", b"\xff")])
    assert store.follower.job(run.job_id)["status"] == "dead"


def test_headers_that_the_library_cannot_read_are_none() -> None:
    class Record:
        def headers(self) -> Any:
            raise SystemError("error return without exception set")

    assert headers_of(Record()) == {}  # type: ignore[arg-type]
