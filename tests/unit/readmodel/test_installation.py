"""Schedules, letters, times, queues, processes, replays and events, as they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from unit.readmodel.conftest import wait_settled
from unit.readmodel.test_jobs import DUE, T0, run_of
from unit.test_follower_schedules import HOUR, SPEC, STATE, at, caught_up, delete, fire, put, skip

from pipeline import codec
from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import Transaction
from pipeline.codec import Era
from pipeline.core import keys
from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import InvalidInput, NotFound
from pipeline.core.job import AckState, Failure, InFlight, JobStatus, Owned
from pipeline.core.offset_metadata import OffsetMetadata, Start, encode
from pipeline.core.queues import Pause, Purge, paused, purged
from pipeline.core.queues import to_event as queue_event
from pipeline.core.schedule import Recent, Schedule
from pipeline.follower import WantedSchedules
from pipeline.follower.values import shown_instant
from pipeline.ports import CommittedOffset, GroupProgress, Put
from pipeline.readmodel import JobsWanted, ReadModel
from pipeline.readmodel.purging import left_of
from pipeline.replay import Replay, ReplayState
from pipeline.replay.record import to_event
from pipeline.survey import Filter, Window

Settled = Callable[[], ReadModel]
ANY = WantedSchedules()


def put_meta(store: Any, key: bytes, value: bytes | None) -> None:
    store.cluster.append(Put(store.names.meta, 0, key, value))


@pytest.fixture
def mail(store: Any) -> None:
    """Another queue, before anything follows."""
    store.add_queues({"mail": 3})


# -- schedules ----------------------------------------------------------------------------------------------


def later(state: Schedule, n: int) -> Schedule:
    nominal = T0 + (n + 1) * HOUR
    return replace(state, last_nominal=nominal - HOUR, next_nominal=nominal, next_due=nominal)


def test_a_schedule_with_its_runs(store: Any, settled: Settled) -> None:
    put(store, STATE)
    for n in range(1, 4):
        store.clock.advance(HOUR)
        run = fire(store, T0 + n * HOUR, later(STATE, n))
        store.ack(run, AckState.STARTED)
        store.clock.advance(2_000)
        started = store.clock.now() - 2_000
        store.ack(run, AckState.SUCCEEDED if n > 1 else AckState.DEAD, started_at=started)
    model = settled()
    (row,) = model.schedules(ANY).rows
    told = store.follower.schedule_views(store.clock.now())[0]
    assert {name: row[name] for name in told} == told
    assert [each["outcome"] for each in row["recent"]] == ["succeeded", "succeeded", "dead"]
    assert row["recent"][0]["occurrence"] == at(T0 + 3 * HOUR)
    assert (row["recent"][0]["took_ms"], row["recent"][0]["lateness_ms"]) == (2_000, 4_000)
    assert len(row["upcoming"]) == 3
    view = model.schedule("daily")
    described = store.follower.schedule_view("daily", store.clock.now())
    assert {name: view[name] for name in described} == described
    listed = model.jobs(JobsWanted(schedule="daily")).rows
    assert [each["status"] for each in listed] == ["dead", "succeeded", "succeeded", "pending"]
    for each in listed:
        assert model.job(each["id"])["status"] == store.follower.job(each["id"])["status"]
    assert model.job(listed[-1]["id"])["payload"] == SPEC.payload.decode()


def test_the_etag_changes_with_the_definition_and_not_with_each_run(store: Any, settled: Settled) -> None:
    put(store, STATE)
    first = settled().schedule("daily")["etag"]
    put(store, later(STATE, 1))
    assert settled().schedule("daily")["etag"] == first
    put(store, replace(STATE, revision=2))
    second = settled().schedule("daily")["etag"]
    put(store, replace(STATE, revision=2, paused="tax season"))
    assert len({first, second, settled().schedule("daily")["etag"]}) == 3


def test_schedules_by_how_they_stand(store: Any, settled: Settled) -> None:
    now = store.clock.now()
    states = {
        "well": replace(STATE, next_due=now + HOUR),
        "still": replace(STATE, next_due=now + HOUR, paused="tax season"),
        "over": replace(STATE, ended="max_occurrences"),
        "late": replace(STATE, next_due=now - HOUR),
        "bad": replace(STATE, next_due=now + HOUR, failures_in_row=2),
    }
    for name, state in states.items():
        put(store, replace(state, spec=replace(SPEC, id=name)))
    model = settled()

    def those(standing: str | None) -> set[str]:
        return {row["id"] for row in model.schedules(WantedSchedules(state=standing)).rows}

    assert those(None) == states.keys()
    assert those("active") == {"well", "late", "bad"}
    assert those("paused") == {"still"}
    assert those("ended") == {"over"}
    assert those("overdue") == {"late"}
    assert those("failing") == {"bad"}
    with pytest.raises(InvalidInput, match=r"^state"):
        those("odd")
    assert [row["id"] for row in store.follower.schedule_views(now, state="failing")] == ["bad"]
    cursor = model.schedules(WantedSchedules(state="active"), limit=1).cursor
    with pytest.raises(InvalidInput, match=r"^cursor"):
        model.schedules(WantedSchedules(state="failing"), cursor=cursor)


def test_of_a_paused_schedule_is_told_what_would_be_next(store: Any, settled: Settled) -> None:
    put(store, replace(STATE, paused="tax season"))
    (row,) = settled().schedules(ANY).rows
    assert row["next_at"] is None
    first = store.clock.now() // HOUR * HOUR + HOUR
    assert row["upcoming"] == [shown_instant(first + n * HOUR) for n in range(3)]
    put(store, replace(STATE, paused="x", spec=replace(SPEC, cron=None, after_ms=HOUR)))
    (row,) = settled().schedules(ANY).rows
    assert row["upcoming"] == []


def test_schedules_in_pages_by_text(store: Any, settled: Settled) -> None:
    for name in ("a", "b", "c", "other"):
        put(store, replace(STATE, spec=replace(SPEC, id=name, handler="x" if name == "other" else "report")))
    put(store, replace(STATE, spec=replace(SPEC, id="gone"), ended="removed"))
    model, found, cursor = settled(), [], None
    while True:
        page = model.schedules(WantedSchedules(text="report"), limit=2, cursor=cursor)
        found += [row["id"] for row in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert found == ["a", "b", "c"]
    put(store, replace(STATE, spec=replace(SPEC, id="b"), paused="tax season"))
    assert [row["id"] for row in settled().schedules(WantedSchedules(text="season")).rows] == ["b"]
    with pytest.raises(InvalidInput, match=r"^cursor"):
        model.schedules(ANY, cursor="AAAA")


@pytest.mark.parametrize("name", ["gone", "none", "\ud800"])
def test_no_such_schedule(store: Any, settled: Settled, name: str) -> None:
    put(store, replace(STATE, spec=replace(SPEC, id="gone"), ended="removed"))
    with pytest.raises(NotFound):
        settled().schedule(name)


def test_instants_that_were_skipped(store: Any, settled: Settled) -> None:
    put(store, later(STATE, 5))
    store.clock.advance(5 * HOUR)
    skip(store, "misfire", T0 + HOUR, T0 + 4 * HOUR)
    noted = Recent(nominal_at=T0 + 5 * HOUR, kind="g", at=T0, outcome="skipped.overlap")
    put(store, replace(later(STATE, 5), recent=(noted,)))
    model = settled()
    for n in (2, 5):
        view = model.job(at(T0 + n * HOUR))
        assert (view["status"], store.follower.job(view["id"])["status"]) == ("skipped", "skipped")
    assert model.job(at(T0 + 2 * HOUR))["skipped"] == "misfire"
    with pytest.raises(NotFound):
        model.job(at(T0 + 2 * HOUR + 1))
    delete(store)
    assert settled().job(at(T0 + 2 * HOUR))["status"] == "skipped"


def test_what_a_schedule_left_out_is_a_row_like_any_other(store: Any, settled: Settled) -> None:
    put(store, STATE)
    noted = Recent(nominal_at=T0 + HOUR, kind="g", at=T0 + HOUR, outcome="skipped.overlap")
    put(store, replace(later(STATE, 1), recent=(noted,)))
    paused = replace(later(STATE, 1), recent=(noted,), paused="why", next_nominal=None, next_due=None)
    put(store, paused)
    store.put(run_of(due_at=T0 + 90 * 60_000))
    model = settled()
    skipped = JobsWanted(statuses=frozenset({JobStatus.SKIPPED}), handler="report", queue="default")
    (row,) = model.jobs(skipped).rows
    assert (row["id"], row["due_at"]) == (at(T0 + HOUR), "2027-01-15T09:00:00.000Z")
    assert (row["schedule"], model.count(skipped).number) == ("daily", 1)
    assert [each["status"] for each in model.jobs(JobsWanted()).rows] == ["skipped", "pending", "cancelled"]
    views = [model.job(at(T0 + n * HOUR)) for n in (1, 2)]
    assert [view["reason"] for view in views] == [
        "an earlier occurrence still ran",
        "the schedule was paused",
    ]
    assert {(view["handler"], view["schedule"], view["payload"]) for view in views} == {
        ("report", "daily", None)
    }
    assert [each["outcome"] for each in model.schedule("daily")["recent"]] == ["skipped"]
    assert model.schedule("daily")["recent"][0]["nominal_at"] == "2027-01-15T09:00:00.000Z"


@pytest.mark.parametrize("folded_before", ["skip", "state", "neither"])
def test_what_was_skipped_among_more_than_a_schedule_notes_is_told_by_its_event(
    store: Any, settled: Settled, folded_before: str
) -> None:
    """The two stand on topics of their own, of which either may be read first."""
    put(store, STATE)
    settled()
    after = caught_up(store)
    for what in ("skip", "state") if folded_before == "skip" else ("state", "skip"):
        if what == "skip":
            skip(store, "misfire", T0 + HOUR, T0 + 10 * HOUR)
        else:
            put(store, after)
        if folded_before != "neither":
            settled()
    view = settled().job(at(T0 + HOUR))
    assert (view["status"], view["skipped"], view["handler"]) == ("skipped", "misfire", "report")
    skipped = JobsWanted(statuses=frozenset({JobStatus.SKIPPED}))
    assert [row["id"] for row in settled().jobs(skipped).rows] == [at(T0 + HOUR)]


def test_what_fired_among_more_than_a_schedule_notes_has_its_outcome(store: Any, settled: Settled) -> None:
    put(store, STATE)
    settled()
    after = caught_up(store)
    run = fire(store, T0 + HOUR, STATE, compacted=True)
    put(store, after)
    assert settled().job(at(T0 + HOUR))["status"] == "queued"
    skip(store, "misfire", T0 - HOUR, T0 + HOUR)  # whoever may append can say anything
    store.ack(run, AckState.SUCCEEDED)
    assert settled().job(at(T0 + HOUR))["status"] == "succeeded"
    assert [queue["lag"] for queue in settled().queues()] == [0]


def test_an_instant_that_a_pause_took_away_comes_back_with_a_resume(store: Any, settled: Settled) -> None:
    put(store, STATE)
    put(store, replace(STATE, paused="why", next_nominal=None, next_due=None))
    assert settled().job(at(T0 + HOUR))["status"] == "cancelled"
    put(store, STATE)
    assert (settled().job(at(T0 + HOUR))["status"], settled().job(at(T0 + HOUR))["reason"]) == (
        "pending",
        None,
    )
    store.clock.advance(HOUR)
    run = fire(store, T0 + HOUR, later(STATE, 1))
    store.ack(run, AckState.SUCCEEDED)
    assert settled().job(at(T0 + HOUR))["status"] == "succeeded"
    assert store.follower.job(at(T0 + HOUR))["status"] == "succeeded"


@pytest.mark.parametrize(
    "changed",
    [{"queue": "mail"}, {"serial": "one"}, {"queue": "mail", "serial": "one"}, {"handler": "other"}],
)
def test_what_was_due_when_its_schedule_was_changed_is_found_where_it_went(
    store: Any, mail: None, settled: Settled, changed: dict[str, str]
) -> None:
    """By the definition before: firing and change are one step, and one state."""
    put(store, STATE)
    store.clock.advance(HOUR)
    edited = replace(
        STATE, revision=2, changed_at=store.clock.now(), spec=replace(SPEC, **changed), last_nominal=T0 + HOUR,
        next_nominal=T0 + 2 * HOUR, next_due=T0 + 2 * HOUR,
    )  # fmt: skip
    run = fire(store, T0 + HOUR, STATE, compacted=True)
    fired = Recent(nominal_at=T0 + HOUR, kind="g", at=store.clock.now(), outcome="fired")
    put(store, replace(edited, recent=(fired,)))
    store.ack(run, AckState.STARTED)
    for ended in (False, True):
        if ended:
            store.ack(run, AckState.SUCCEEDED)
        for ask in (store.follower.job, settled().job):
            view = ask(at(T0 + HOUR))
            assert (view["status"], view["queue"]) == ("succeeded" if ended else "running", "default")
            assert [each["run"] for each in view["runs"]] == [1]


@pytest.mark.parametrize("first", ["home", "work"])
def test_where_a_run_of_an_earlier_definition_stands_is_found_after_a_compaction(
    store: Any, mail: None, settled: Settled, first: str
) -> None:
    """Only the schedule's last state is left, which tells of the occurrence and not by which definition it fired."""
    store.clock.advance(HOUR)
    told = Recent(nominal_at=T0 + HOUR, kind="g", at=store.clock.now(), outcome="succeeded")
    edited = replace(
        STATE, revision=2, changed_at=store.clock.now(), spec=replace(SPEC, queue="mail"), recent=(told,),
        next_nominal=T0 + 2 * HOUR, next_due=T0 + 2 * HOUR,
    )  # fmt: skip
    if first == "home":
        put(store, edited)
        settled()
    run = fire(store, T0 + HOUR, STATE, compacted=True)
    store.ack(run, AckState.SUCCEEDED)
    settled()
    if first == "work":
        put(store, edited)
    view = settled().job(at(T0 + HOUR))
    assert (view["status"], view["queue"], len(view["runs"])) == ("succeeded", "default", 1)
    assert [queue["lag"] for queue in settled().queues()] == [0, 0]


# -- times ----------------------------------------------------------------------------------------------


def test_buckets(store: Any, settled: Settled) -> None:
    begin = DUE - DUE % HOUR
    for n in range(4):
        store.put(run_of(n, due_at=begin + n * 1_800_000))
    late = run_of(9, due_at=begin)
    store.put(late)
    store.clock.advance(begin + 10_000 - store.clock.now())
    store.fire(late)
    model = settled()
    hours = model.buckets(begin, begin + 2 * HOUR, HOUR)
    assert [(b["counts"], b["late"]) for b in hours] == [
        ({"pending": 2, "queued": 1}, 1),
        ({"pending": 2}, 0),
    ]
    halves = model.buckets(begin, begin + 2 * HOUR, 1_800_000)
    assert [sum(b["counts"].values()) for b in halves] == [2, 1, 1, 1]
    for second in (1, 59_999):
        assert model.buckets(begin + second, begin + HOUR + second, 1_800_000) == halves[:3]
        (minute,) = model.buckets(begin + second, begin + second + 1, 60_000)
        assert minute["from"] == hours[0]["from"]
    shifted = model.buckets(begin + 60_000, begin + 60_000 + HOUR, HOUR)
    assert [b["counts"] for b in shifted] == [{"pending": 2}]


@pytest.mark.parametrize("asked", [(0, 10, 1), (10, 5, HOUR), (-1, HOUR, HOUR), (0, 10**12, 60_000)])
def test_buckets_that_make_no_sense(settled: Settled, asked: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        settled().buckets(*asked)


def test_overview(store: Any, settled: Settled) -> None:
    put(store, replace(STATE, next_due=T0 - HOUR))
    runs = [run_of(n, due_at=T0 + n, handler=f"h{n}") for n in range(3)]
    for run in runs:
        store.put(run)
    store.clock.advance(60_000)
    for run, state in ((runs[0], AckState.SUCCEEDED), (runs[1], AckState.DEAD)):
        store.fire(run)
        store.ack(run, AckState.STARTED)
        store.ack(run, state)
    put_meta(store, keys.HOLD_KEY, codec.HOLD.encode(Hold(id="b", state=HoldState.HELD, at=T0, era=2)))
    view = settled().overview()
    # The schedule's next instant is to come as well.
    assert (view["pending"], view["overdue"]) == (2, 2)
    assert view["oldest_overdue"] < "2027-01-15T08:00:00.002Z"
    assert view["lateness"]["p50_ms"] == pytest.approx(60_000, rel=0.1)
    (minute,) = (m for m in view["minutes"] if m["fired"])
    assert (minute["fired"], minute["succeeded"], minute["failed"], minute["dead"]) == (2, 1, 1, 1)
    assert view["handlers"] == [
        {"handler": "h0", "succeeded": 1, "failed": 0, "dead": 0},
        {"handler": "h1", "succeeded": 0, "failed": 1, "dead": 1},
    ]
    assert view["schedules"] == {"count": 1, "paused": 0, "overdue": ["daily"]}
    assert view["held"]["backup"] == "b"
    assert view["freshness"]["problem"] is None


def test_the_dead_are_among_the_failed_also_where_their_owner_ended_them(
    store: Any, settled: Settled
) -> None:
    run = run_of()
    store.put(run)
    store.clock.advance(60_000)
    store.end(run, "dead")
    view = settled().overview()
    assert [(each["failed"], each["dead"]) for each in view["minutes"]] == [(1, 1)]
    assert view["handlers"] == [{"handler": "email.send", "succeeded": 0, "failed": 1, "dead": 1}]


@pytest.mark.parametrize("labels", [{}, {"plain": "no"}])
def test_a_job_for_a_time_in_the_past_is_not_late_by_years(
    store: Any, settled: Settled, labels: dict[str, str]
) -> None:
    run = run_of(due_at=T0 - 2_000 * HOUR, labels=labels)
    store.put(run)
    store.clock.advance(2_000)
    store.fire(run)
    view = settled().overview()
    assert view["lateness"]["p99_ms"] == pytest.approx(2_000, rel=0.1)
    (bucket,) = settled().buckets(T0 - 2_000 * HOUR, T0 - 1_999 * HOUR, HOUR)
    assert bucket["late"] == 0


def test_an_occurrence_that_fired_late_is_late_though_it_is_made_as_it_fires(
    store: Any, settled: Settled
) -> None:
    put(store, STATE)
    store.clock.advance(HOUR + 20_000)
    run = fire(store, T0 + HOUR, later(STATE, 1))
    assert run.created_at > run.due_at
    fire(store, store.clock.now(), later(STATE, 1), "t", "by-hand")
    assert settled().overview()["lateness"]["p99_ms"] == pytest.approx(20_000, rel=0.1)
    (hour,) = settled().buckets(T0 + HOUR, T0 + 2 * HOUR, HOUR)
    assert hour["late"] == 1


# -- the installation ---------------------------------------------------------------------------------------


def backlog(model: ReadModel) -> tuple[int, str | None]:
    (queue,) = model.queues()
    return queue["lag"], queue["oldest_unacked"]


def test_queues(store: Any, settled: Settled, eventually: Any) -> None:
    runs = [run_of(n) for n in range(3)]
    for run in runs:
        store.put(run)
        store.fire(run)
    store.ack(runs[0], AckState.STARTED)
    store.ack(runs[0], AckState.SUCCEEDED)
    state = paused(None, "default", Pause(by="ann", at=T0, reason="deploy"))
    put_meta(store, keys.queue_key("default"), codec.EVENT.encode(queue_event(state)))
    store.clock.advance(60_000)
    store.beat("w1", queues=("default",), handlers=("email.send",), parked=2)
    model = settled()
    eventually(lambda: model.queues()[0]["workers"] == 1)
    (queue,) = model.queues()
    assert queue["paused"] == {"by": "ann", "at": "2027-01-15T08:00:00.000Z", "reason": "deploy"}
    assert (queue["started_per_min"], queue["ended_per_min"], queue["parked"]) == (1, 1, 2)
    assert queue["lag"] == 2


@pytest.mark.parametrize("labels", [{}, {"plain": "no"}])
def test_what_waits_in_a_queue_is_counted_by_run(
    store: Any, settled: Settled, labels: dict[str, str]
) -> None:
    """Whatever else takes offsets: what was started waits no longer, but counts for the oldest until it has ended."""
    assert backlog(settled()) == (0, None)
    runs = [run_of(n, labels=labels) for n in range(3)]
    for run in runs:
        store.put(run)
        store.fire(run)
        store.clock.advance(1_000)
    for partition in range(3):  # markers
        store.cluster.partition(store.names.work("default"), partition).entries.append(None)
    assert backlog(settled()) == (3, "2027-01-15T08:00:00.000Z")
    store.ack(runs[0], AckState.STARTED)
    assert backlog(settled()) == (2, "2027-01-15T08:00:00.000Z")
    store.ack(runs[0], AckState.RELEASED)
    assert backlog(settled()) == (3, "2027-01-15T08:00:00.000Z")
    store.ack(runs[0], AckState.CANCELLED)
    store.ack(runs[1], AckState.RETRYING)
    assert backlog(settled()) == (1, "2027-01-15T08:00:02.000Z")
    again = replace(runs[1], run=2, failures=1)
    store.put(again)
    assert backlog(settled()) == (1, "2027-01-15T08:00:02.000Z")
    store.fire(again)
    assert backlog(settled()) == (2, "2027-01-15T08:00:02.000Z")
    for run in (runs[2], again):
        store.ack(run, AckState.SUCCEEDED)
    assert backlog(settled()) == (0, None)
    assert [*settled()._rows.scan(b"Y", b"Z")] == []


def test_what_waits_is_the_same_after_a_restart(
    store: Any, settled: Settled, connect: Any, tmp_path: Path
) -> None:
    runs = [run_of(n) for n in range(2)]
    for run in runs:
        store.put(run)
        store.fire(run)
        store.clock.advance(1_000)
    settled().close()
    again = ReadModel(tmp_path / "readmodel", connect)
    assert backlog(again)[0] == 2
    store.ack(runs[0], AckState.SUCCEEDED)
    wait_settled(store, again)
    assert backlog(again) == (1, "2027-01-15T08:00:01.000Z")
    again.close()


@pytest.mark.parametrize("labels", [{}, {"plain": "no"}])
def test_runs_that_nobody_will_end_wait_no_longer(
    store: Any,
    settled: Settled,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    labels: dict[str, str],
) -> None:
    """Read anew a month later: of what has ended the ack may be gone, though the run is still there. And what was
    deleted before anybody ran it."""
    monkeypatch.setattr("pipeline.readmodel.groups.EVERY_S", 0.01)
    monkeypatch.setattr("pipeline.readmodel.following.FORGET_S", 0.01)
    work, acks, partition = store.names.work("default"), store.names.acks("default"), 1
    every = (run_of(n, labels=labels) for n in range(100))
    here = (r for r in every if store.layout.work_partition("default", r.job_id) == partition)
    *runs, other = islice(here, 5)
    for run in runs:
        store.put(run)
        store.fire(run)
        store.clock.advance(1_000)
    acks_log = store.cluster.partition(acks, partition)
    acks_log.open.add(unread := Transaction())  # what it has not read yet it does not judge by
    unread.first[acks_log] = acks_log.end
    store.ack(other, AckState.STARTED)
    model = settled()
    assert backlog(model) == (4, "2027-01-15T08:00:00.000Z")
    group = store.cluster.group(store.names.worker_group("default"), work)
    group.committed[partition] = CommittedOffset(1)
    eventually(lambda: backlog(model)[1] == "2027-01-15T08:00:01.000Z")
    assert model.count(JobsWanted(statuses=frozenset({JobStatus.QUEUED}))).number == 4
    assert backlog(model)[0] == 4
    acks_log.open.discard(unread)
    eventually(lambda: backlog(model) == (3, "2027-01-15T08:00:01.000Z"))
    assert not [record for record in caplog.records if "deleted" in record.message]
    store.cluster.partition(work, partition).start = 3
    eventually(lambda: backlog(model) == (1, "2027-01-15T08:00:03.000Z"))
    eventually(lambda: "2 runs were deleted by the retention of their topic" in caplog.text)
    eventually(lambda: model.job(runs[1].job_id)["ended_at"] is not None)  # so that it is forgotten one day
    store.ack(runs[1], AckState.SUCCEEDED)
    wait_settled(store, model)
    assert model.job(runs[1].job_id)["status"] == "succeeded"
    group.committed[partition] = CommittedOffset(2)
    eventually(lambda: model._groups.below("default", partition) == 3)
    group.committed[partition] = CommittedOffset(4)
    eventually(lambda: model._groups.below("default", partition) == 4)
    group.committed[partition] = CommittedOffset(99)  # of a topic that was made anew since: it says nothing
    eventually(lambda: model._groups.below("default", partition) == 3)


def test_a_purge_is_told_until_what_it_means_has_ended(
    store: Any, settled: Settled, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the group has committed: its mark, what ended above it, and what was started before the purge."""
    monkeypatch.setattr("pipeline.readmodel.groups.EVERY_S", 0.01)
    work = store.names.work("default")
    for n in range(8):
        store.cluster.append(Put(work, 0, b"x%d" % n, b"whatever"))
    state = purged(None, "default", purge := Purge(
        id="p1", by="ann", at=T0, topic_id=str(id(store.cluster.partition(work, 0))), ends=(6, 0, 0), waiting=6
    ))  # fmt: skip
    put_meta(store, keys.queue_key("default"), codec.EVENT.encode(queue_event(state)))
    model = settled()
    eventually(lambda: (model.queues()[0]["purge"] or {}).get("left") == 6)
    assert model.queues()[0]["purge"] == {
        "id": "p1", "by": "ann", "at": "2027-01-15T08:00:00.000Z", "before": None, "waiting": 6, "left": 6,
    }  # fmt: skip
    committed = store.cluster.group(store.names.worker_group("default"), work).committed
    above = OffsetMetadata(acks_offset=1, started=((1, Start(1, 9, "w")),), finished=((2, 4),))
    committed[0] = CommittedOffset(1, encode(1, above))
    eventually(lambda: model.queues()[0]["purge"]["left"] == 1)
    committed[0] = CommittedOffset(1, encode(1, replace(above, finished=((2, 7),))))
    eventually(lambda: model.queues()[0]["purge"]["left"] == 0)
    committed[0] = CommittedOffset(0)  # whatever is said of it later: it has ended
    anew = replace(state, purge=replace(purge, id="p2", topic_id="of another topic"))
    put_meta(store, keys.queue_key("default"), codec.EVENT.encode(queue_event(anew)))
    eventually(lambda: model.queues()[0]["purge"]["id"] == "p2")
    eventually(lambda: model.queues()[0]["purge"]["left"] == 0)


@pytest.mark.parametrize(
    ("committed", "metadata", "end", "left"),
    [
        (None, "", 5, 5),
        (2, "", 5, 3),
        (2, "9;of a later version", 5, 3),
        (5, "", 5, 0),
        (1, encode(1, OffsetMetadata(finished=((2, 9),))), 5, 1),
        (1, encode(1, OffsetMetadata(started=((4, Start(1, 9, "w")),), acks_offset=3)), 5, 3),
        (8, encode(8, OffsetMetadata(finished=((9, 9),))), 20, 1),
    ],
)
def test_what_is_left_of_a_purge(
    store: Any, committed: int | None, metadata: str, end: int, left: int
) -> None:
    """Of ten runs; what lies behind the last of them, as markers do, is nothing."""
    work = store.names.work("default")
    for n in range(10):
        store.cluster.append(Put(work, 0, b"x%d" % n, b"whatever"))
    progress = GroupProgress(committed, 0, 20, metadata)
    assert left_of(MemoryReader(store.cluster), work, [progress], [end]) == left


def test_fleet(store: Any, settled: Settled, eventually: Any) -> None:
    put_meta(store, keys.ERA_KEY, codec.ERA.encode(Era(era=3)))
    flight = InFlight(
        occurrence_id=run_of(1).job_id, run=1, attempt=1, token=5, handler="email.send", started_at=T0
    )
    owned = (Owned(topic=store.names.jobs, partition=2, state="running"),)
    store.beat("d1", role="dispatcher", generation=7, owned=owned)
    store.beat("w1", queues=("default",), in_flight=(flight,))
    model = settled()
    eventually(lambda: len(model.fleet()["processes"]) == 2)
    view = model.fleet()
    mine = next(p for p in view["partitions"] if p["owner"] == "d1")
    assert (mine["partition"], mine["generation"], mine["era"], mine["state"]) == (2, 7, 3, "running")
    assert [run["job"] for run in view["runs"]] == [run_of(1).job_id]
    store.leave("w1")
    eventually(lambda: len(model.fleet()["processes"]) == 1)
    store.clock.advance(6_000)
    assert model.fleet()["processes"] == []


def test_replays(store: Any, settled: Settled) -> None:
    values: dict[str, Any] = {
        "state": ReplayState.FINISHED, "window": Window(from_ms=T0, to_ms=DUE), "wanted": Filter(),
        "requested_by": "ann", "updated_at": T0, "matched": 3, "counts": {"replayed": 3},
    }  # fmt: skip
    for n, id_ in enumerate(("b", "a")):
        replay = Replay(id=id_, created_at=T0 + n, **values)
        put_meta(store, b"replay/%b/1" % id_.encode(), codec.EVENT.encode(to_event(replay)))
    model = settled()
    assert [view["id"] for view in model.replays()] == ["a", "b"]
    view = model.replay("b")
    assert (view["state"], view["counts"]["replayed"], view["requested_by"]) == ("finished", 3, "ann")
    assert view["outcomes"] == {"counts": {}, "capped": False}
    with pytest.raises(NotFound):
        model.replay("c")


def test_events_since_a_cursor(store: Any, settled: Settled) -> None:
    for n in range(3):
        store.tell(n, f"c{n}", outcome="cancelled", job_id=f"j{n}")
    skip(store, "misfire", T0, T0)
    model = settled()
    page = model.events()
    assert sorted(row["kind"] for row in page.rows) == ["answer", "answer", "answer", "skipped"]
    assert model.events(after=page.cursor) == replace(page, rows=[], scanned=0)
    store.tell(0, "c9", outcome="stopped", detail={"by": "ann"})
    (row,) = settled().events(after=page.cursor).rows
    assert (row["outcome"], row["by"]) == ("stopped", "ann")
    two = model.events(after=page.rows[0]["id"], limit=2)
    assert [r["id"] for r in two.rows] == [r["id"] for r in page.rows[1:3]]
    with pytest.raises(InvalidInput, match=r"^after"):
        model.events(after="AAAA")


def test_why(store: Any, settled: Settled) -> None:
    run = run_of(1)
    store.put(run)
    view = settled().why(run.job_id)
    assert (view["status"], view["waits_for"]) == ("pending", "time")


@pytest.mark.parametrize("id_", ["x", "", "j123", "k0", "s:a"])
def test_what_is_no_id(settled: Settled, id_: str) -> None:
    with pytest.raises(InvalidInput, match=r"^id"):
        settled().job(id_)


def test_a_long_payload_is_read_where_it_stands(store: Any, settled: Settled) -> None:
    run = run_of(1, payload=b'{"x":"' + b"a" * 20_000 + b'"}')
    store.put(run)
    model = settled()
    assert model.job(run.job_id)["payload"] == run.payload.decode()
    assert model._rows.get(b"P" + run.job_id.encode()) is None
    home = store.cluster.partition(store.names.jobs, store.layout.home(run.job_id))
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED)
    settled()
    home.compact(drop_tombstones=True)
    view = settled().job(run.job_id)
    assert (view["status"], view["kept"], view["payload"]) == ("succeeded", False, None)


def test_garbage_stops_nobody(store: Any, settled: Settled) -> None:
    names = store.names
    garbage = (
        b"",
        b"j/",
        b"j/x",
        b"j/\xff",
        b"r/x",
        b"k/\xff",
        b"s/A",
        b"h/x/1",
        b"zz",
        b"t/a/1/1",
        b"replay/",
    )
    topics = (names.jobs, names.events, names.dead, names.meta, names.fleet, names.work("default"))
    for topic in (*topics, names.acks("default")):
        for key in garbage:
            for value in (None, b"", b"garbage"):
                store.cluster.append(Put(topic, 0, key, value, [("end", b"\xff"), ("work", b"a/b")]))
    run = run_of(1)
    store.put(run)
    model = settled()
    assert [row["id"] for row in model.jobs(JobsWanted()).rows] == [run.job_id]
    assert model.freshness().problem is None


def test_statuses_and_errors_of_a_failure(store: Any, settled: Settled) -> None:
    run = run_of(1)
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.CANCELLED, error=Failure(type="Stopped", message="by request"))
    (row,) = settled().jobs(JobsWanted(statuses=frozenset({JobStatus.STOPPED}))).rows
    assert row["error"] == "Stopped: by request"
