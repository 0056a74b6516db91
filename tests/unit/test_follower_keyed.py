"""Changed jobs and jobs with keys in the read model, folded from what their owners write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import NotFound
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import AckState, Command, Highest, JobStatus, KeyState, Run
from pipeline.follower import Wanted
from pipeline.ports import Put

T0 = 1_800_000_000_000
DUE = T0 + 60_000
KEY = "invoice/55"
ID = keyed_id(KEY)


def run_of(incarnation: int | None = None, **fields: Any) -> Run:
    """The run of an anonymous job, or of an incarnation of the keyed one."""
    id_ = anonymous_id(DUE, 1) if incarnation is None else ID
    values: dict[str, Any] = {
        "job_id": id_,
        "occurrence_id": id_ if incarnation is None else f"{ID}.{incarnation}",
        "due_at": DUE,
        "run": 1,
        "queue": "default",
        "handler": "email.send",
        "created_at": T0,
        "nominal_at": DUE,
        "idempotency_key": id_,
        "payload": b"{}",
        "key": None if incarnation is None else KEY,
    }
    return Run(**{**values, **fields})


def put(store: Any, key: bytes, value: bytes | None, **headers: str) -> None:
    """A record at the home of the anonymous job or of the key, by what its key says."""
    home = store.layout.home(anonymous_id(DUE, 1) if key[:2] in (b"j/", b"a/") else ID)
    pairs = [(name, text.encode()) for name, text in headers.items()]
    store.cluster.append(Put(store.names.jobs, home, key, value, pairs))


def state(store: Any, incarnation: int, pending: Run | None = None, highest: int = 0, **headers: str) -> None:
    value = KeyState(
        incarnation=incarnation,
        phase="pending" if pending else "fired",
        highest_run=highest,
        unique="finished",
        changed_at=T0,
        run=pending,
    )
    put(store, keys.keyed_key(KEY), codec.KEY_STATE.encode(value), **headers)


def ended(store: Any, end: str, **headers: str) -> None:
    put(store, keys.keyed_key(KEY), None, end=end, **headers)


def fire_keyed(store: Any, run: Run) -> None:
    """What its owner writes when it emits a run of the keyed job."""
    place = store.layout.work_partition(run.queue, run.job_id)
    key = run.occurrence_id.encode()
    store.cluster.append(Put(store.names.work(run.queue), place, key, codec.RUN.encode(run)))
    incarnation = int(run.occurrence_id.rpartition(".")[2])
    state(store, incarnation, None, run.run, run=str(run.run), work=f"{run.queue}/{place}")


# -- changed anonymous jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tombstone_first", [True, False])
def test_a_changed_job_is_pending_as_changed(store: Any, tombstone_first: bool) -> None:
    run = run_of()
    changed = replace(run, due_at=DUE + 60_000)
    store.put(run)
    writes = [
        lambda: put(store, keys.job_key(run.job_id), None, end="changed"),
        lambda: put(store, keys.changed_key(run.job_id), codec.RUN.encode(changed)),
    ]
    for write in writes if tombstone_first else reversed(writes):
        write()
    view = store.follower.job(run.job_id)
    assert (view["status"], view["due_at"]) == ("pending", "2027-01-15T08:02:00.000Z")
    assert [job["due_at"] for job in store.follower.jobs(Wanted())] == ["2027-01-15T08:02:00.000Z"]
    assert store.follower.backlog(store.layout.home(run.job_id)) == (1, DUE + 60_000)


@pytest.mark.parametrize(("end", "status"), [("cancelled", "cancelled"), ("fired", "queued")])
def test_a_changed_job_ends_under_its_new_record(store: Any, end: str, status: str) -> None:
    run = run_of()
    store.put(run)
    put(store, keys.job_key(run.job_id), None, end="changed")
    put(store, keys.changed_key(run.job_id), codec.RUN.encode(run))
    more = {"work": "default/0", "run": "1"} if end == "fired" else {}
    put(store, keys.changed_key(run.job_id), None, end=end, **more)
    assert store.follower.job(run.job_id)["status"] == status
    assert list(store.follower.jobs(Wanted())) == []


def test_a_run_that_was_brought_forward_is_found_before_the_id_says_it_is_due(store: Any) -> None:
    run = run_of(due_at=T0 + 5_000)
    put(store, keys.job_key(run.job_id), None, end="changed")
    put(store, keys.changed_key(run.job_id), codec.RUN.encode(run))
    place = store.layout.work_partition("default", run.job_id)
    store.cluster.append(Put(store.names.work("default"), place, run.job_id.encode(), codec.RUN.encode(run)))
    put(store, keys.changed_key(run.job_id), None, end="fired", run="1", work=f"default/{place}")
    store.ack(run, AckState.SUCCEEDED)
    assert store.follower.job(run.job_id)["status"] == "succeeded"


# -- jobs with a key ----------------------------------------------------------------------------------------


def test_a_keyed_job_is_found_by_its_id_and_by_its_occurrence(store: Any) -> None:
    state(store, 7, run_of(7))
    for id_ in (ID, f"{ID}.7"):
        view = store.follower.job(id_)
        assert (view["id"], view["status"], view["key"]) == (id_, "pending", KEY)
        assert view["due_at"] == "2027-01-15T08:01:00.000Z"
    for id_ in (f"{ID}.6", f"{ID}.8"):
        for ask in (store.follower.job, lambda id_: store.follower.why(id_, T0)):
            with pytest.raises(
                NotFound, match=f"nothing is stored .*; the last incarnation of its key is {ID}.7$"
            ):
                ask(id_)
    for id_ in (keyed_id("other"), f"{keyed_id('other')}.1"):
        with pytest.raises(NotFound, match=r"no longer kept\)$"):
            store.follower.job(id_)


def test_a_keyed_job_from_firing_to_its_end(store: Any) -> None:
    run = run_of(7)
    state(store, 7, run)
    fire_keyed(store, run)
    assert store.follower.job(ID)["status"] == "queued"
    store.ack(run, AckState.STARTED)
    assert store.follower.job(ID)["status"] == "running"
    store.ack(run, AckState.SUCCEEDED, result=b'"sent"')
    ended(store, "done", occurrence=run.occurrence_id)
    for id_ in (ID, f"{ID}.7"):
        view = store.follower.job(id_)
        assert (view["status"], view["result"], len(view["runs"])) == ("succeeded", "sent", 1)


def test_a_keyed_job_that_is_retried(store: Any) -> None:
    run = run_of(7)
    retry = replace(run, run=2, due_at=DUE + 5_000, failures=1)
    state(store, 7, run)
    fire_keyed(store, run)
    store.ack(run, AckState.RETRYING)
    put(store, keys.retry_key(run.occurrence_id, 1), codec.RUN.encode(retry))
    view = store.follower.job(ID)
    assert (view["status"], view["due_at"]) == ("retrying", "2027-01-15T08:01:05.000Z")
    (listed,) = store.follower.jobs(Wanted())
    assert (listed["id"], listed["status"], listed["run"]) == (f"{ID}.7", "retrying", 2)
    fire_keyed(store, retry)
    put(store, keys.retry_key(run.occurrence_id, 1), None, end="fired", run="2")
    view = store.follower.job(ID)
    assert (view["status"], [each["run"] for each in view["runs"]]) == ("queued", [1, 2])
    assert store.follower.run_of(ID)[1] == 2


@pytest.mark.parametrize("end", ["cancelled", "dead"])
def test_a_keyed_job_that_never_fired(store: Any, end: str) -> None:
    state(store, 7, run_of(7))
    ended(store, end, occurrence=f"{ID}.7")
    assert store.follower.job(ID)["status"] == end
    assert list(store.follower.jobs(Wanted())) == []


def test_the_last_incarnation_is_meant_and_the_older_one_has_its_own_end(store: Any) -> None:
    first, second = run_of(7), run_of(9, due_at=DUE + 60_000)
    state(store, 7, first)
    ended(store, "cancelled", occurrence=f"{ID}.7")
    state(store, 9, second)
    assert store.follower.job(ID)["status"] == "pending"
    assert store.follower.job(f"{ID}.7")["status"] == "cancelled"
    fire_keyed(store, second)
    store.ack(second, AckState.SUCCEEDED)
    ended(store, "done", occurrence=f"{ID}.9")
    assert store.follower.job(ID)["status"] == "succeeded"
    assert store.follower.job(f"{ID}.7")["status"] == "cancelled"
    assert store.follower.job(f"{ID}.9")["status"] == "succeeded"


def test_a_late_retry_of_an_older_incarnation_changes_nothing(store: Any) -> None:
    state(store, 9, run_of(9))
    put(store, keys.retry_key(f"{ID}.7", 1), codec.RUN.encode(run_of(7, run=2)))
    put(store, keys.retry_key("k" + "0" * 26 + ".9", 1), codec.RUN.encode(run_of(9, run=2)))
    assert store.follower.job(ID)["status"] == "pending"
    assert store.follower.job(f"{ID}.7")["status"] == "retrying"


def test_a_key_that_was_free_once_it_started(store: Any) -> None:
    run = run_of(7)
    state(store, 7, run)
    place = store.layout.work_partition("default", ID)
    work = Put(store.names.work("default"), place, run.occurrence_id.encode(), codec.RUN.encode(run))
    store.cluster.append(work)
    ended(store, "fired", run="1", work=f"default/{place}", occurrence=run.occurrence_id)
    assert store.follower.job(ID)["status"] == "queued"
    store.ack(run, AckState.SUCCEEDED)
    assert store.follower.job(ID)["status"] == "succeeded"


def test_a_keyed_job_is_found_after_compaction(store: Any) -> None:
    """What is left is the last record of each key; a tombstone that names no occurrence is the last one's."""
    run = run_of(7)
    state(store, 7, run)
    fire_keyed(store, run)
    fire_keyed(store, replace(run, run=2, failures=1))
    highest = Highest(run=2, queue="default", work_partition=store.layout.work_partition("default", ID))
    put(store, keys.highest_key(run.occurrence_id), codec.HIGHEST.encode(highest))
    store.ack(run, AckState.RETRYING)
    store.ack(replace(run, run=2), AckState.SUCCEEDED)
    ended(store, "done", occurrence=run.occurrence_id)
    store.clock.advance(86_400_000)
    store.cluster.partition(store.names.jobs, store.layout.home(ID)).compact()
    view = store.follower.job(ID)
    assert (view["status"], [each["run"] for each in view["runs"]]) == ("succeeded", [1, 2])


def test_runs_long_before_the_last_are_found_after_compaction(store: Any) -> None:
    run = run_of(7)
    fire_keyed(store, run)
    store.ack(run, AckState.RETRYING)
    store.clock.advance(7_200_000)
    fire_keyed(store, replace(run, run=2, failures=1))
    store.cluster.partition(store.names.jobs, store.layout.home(ID)).compact()
    assert [each["run"] for each in store.follower.job(ID)["runs"]] == [1, 2]


def test_a_tombstone_is_the_end_of_the_occurrence_that_it_names(store: Any) -> None:
    ended(store, "cancelled", occurrence=f"{ID}.9")
    for id_ in (ID, f"{ID}.9"):
        assert store.follower.job(id_)["status"] == "cancelled"
    with pytest.raises(NotFound):
        store.follower.job(f"{ID}.7")


def test_a_tombstone_that_names_nothing_is_shown_by_the_runs_where_it_points(store: Any) -> None:
    old, run = run_of(3), run_of(7)
    for each in (old, run):
        fire_keyed(store, each)
        store.ack(each, AckState.SUCCEEDED if each is run else AckState.DEAD)
    place = store.layout.work_partition("default", ID)
    ended(store, "fired", run="1", work=f"default/{place}")
    store.cluster.partition(store.names.jobs, store.layout.home(ID)).compact()
    assert store.follower.job(ID)["status"] == "succeeded"


def test_a_job_whose_key_was_replaced_before_it_fired(store: Any) -> None:
    state(store, 7, run_of(7))
    state(store, 9, run_of(9))
    assert store.follower.job(f"{ID}.7")["status"] == "cancelled"
    assert store.follower.job(f"{ID}.9")["status"] == "pending"


@pytest.mark.parametrize("verb", ["create", "limited.create"])
def test_a_create_command_that_waits_is_told(store: Any, verb: str) -> None:
    command = Command(command_id="00000000-0000-4000-8000-000000000000", verb=verb, key=KEY)
    put(store, keys.command_key(command.command_id), codec.COMMAND.encode(command))
    with pytest.raises(NotFound, match="its create command waits for the owner"):
        store.follower.job(ID)
    put(store, keys.command_key(command.command_id), None, end="executed")
    with pytest.raises(NotFound, match="nothing is stored"):
        store.follower.job(ID)


def test_rubbish_under_a_key_is_passed_over(store: Any) -> None:
    for key in (
        keys.keyed_key(KEY),
        b"k/\xff",
        b"k/",
        b"c/" + b"0" * 36,
        b"h/" + ID.encode() + b".7",
        b"r/x/1",
    ):
        put(store, key, b"rubbish")
    put(store, b"h/" + ID.encode() + b".x", codec.HIGHEST.encode(Highest(run=1, queue="q", work_partition=0)))
    with pytest.raises(NotFound, match="no record of a job"):
        store.follower.job(ID)
    state(store, 7, run_of(7))
    assert store.follower.job(ID)["status"] == "pending"


def test_a_list_is_filtered_by_the_start_of_the_key(store: Any) -> None:
    state(store, 7, run_of(7))
    store.put(run_of())
    own = [ID]
    for prefix, found in (("invoice/", own), ("invoice/55", own), ("order", []), ("", own)):
        assert [view["id"] for view in store.follower.jobs(Wanted(key_prefix=prefix))] == found
    assert [view["key"] for view in store.follower.jobs(Wanted(statuses=frozenset({JobStatus.PENDING})))] == [
        None,
        KEY,
    ]
    fire_keyed(store, run_of(7))
    assert list(store.follower.jobs(Wanted(key_prefix=""))) == []


def test_a_keyed_job_counts_in_the_backlog_while_it_is_pending(store: Any) -> None:
    home = store.layout.home(ID)
    state(store, 7, run_of(7))
    assert store.follower.backlog(home) == (1, DUE)
    fire_keyed(store, run_of(7))
    assert store.follower.backlog(home) == (0, None)
