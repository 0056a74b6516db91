"""One `Seen` for each occurrence, from the work records, the acks beside them and the group's offset."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Run
from pipeline.core.offset_metadata import Start
from pipeline.core.token import make_token
from pipeline.ports import CommittedOffset, Put
from pipeline.survey import Part, State, Window, parts, runs_at, spill, survey_part
from pipeline.survey.window import Filter
from tests.unit.survey.conftest import DUE, HOUR, WORKER, Yard


def test_all_that_is_known_of_an_occurrence(yard: Yard) -> None:
    run = yard.run(labels={"l": "1"}, key=None, nominal_at=DUE - 5)
    yard.store.clock.advance(7)
    yard.fire(run)
    yard.ack(run, AckState.SUCCEEDED)
    yard.commit_all()
    partition, offset = yard.offsets[run.occurrence_id, 1]
    (seen,) = yard.seen()
    assert seen._asdict() == {
        "occurrence_id": run.occurrence_id,
        "job_id": run.job_id,
        "handler": "email.send",
        "queue": "default",
        "schedule_id": None,
        "key": None,
        "labels": {"l": "1"},
        "due_at": DUE,
        "nominal_at": DUE - 5,
        "fired_at": DUE + 7,
        "run": 1,
        "state": State.SUCCEEDED,
        "partition": partition,
        "offset": offset,
        "payload_bytes": 7,
        "reason": "",
        "times": 1,
    }


@pytest.mark.parametrize(
    ("acks", "state"),
    [
        ([AckState.SUCCEEDED], "succeeded"),
        ([AckState.FAILED], "failed"),
        ([AckState.DEAD], "dead"),
        ([AckState.CANCELLED], "cancelled"),
        ([AckState.RETRYING], "retrying"),
        ([AckState.STARTED, AckState.SUCCEEDED], "succeeded"),
        ([AckState.SUCCEEDED, AckState.STARTED], "succeeded"),
        ([AckState.STARTED], "unacked"),
        ([AckState.STARTED, AckState.RELEASED], "unacked"),
        ([], "unacked"),
    ],
)
def test_below_the_offset_the_acks_say_how_it_ended(yard: Yard, acks: list[AckState], state: str) -> None:
    run = yard.fire(yard.run())
    for each in acks:
        yard.ack(run, each)
    yard.commit_all()
    assert yard.states() == {run.occurrence_id: state}


@pytest.mark.parametrize(
    ("acks", "state"),
    [
        ([AckState.STARTED], "running"),
        ([AckState.STARTED, AckState.RELEASED], "waiting"),
        ([AckState.RELEASED, AckState.STARTED], "running"),
        ([], "waiting"),
        ([AckState.SUCCEEDED], "succeeded"),
    ],
)
def test_ahead_of_the_offset_it_runs_or_waits(yard: Yard, acks: list[AckState], state: str) -> None:
    run = yard.fire(yard.run())
    for attempt, each in enumerate(acks, 1):
        yard.ack(run, each, attempt=attempt)
    yard.commit(yard.offsets[run.occurrence_id, 1][0], 0)
    assert yard.states() == {run.occurrence_id: state}


def test_without_an_offset_everything_waits(yard: Yard) -> None:
    run = yard.fire(yard.run())
    assert yard.states() == {run.occurrence_id: "waiting"}


def test_what_finished_above_a_gap_is_behind_the_group_too(yard: Yard) -> None:
    runs = [yard.fire(yard.run(n)) for n in range(40)]
    by_place = {yard.offsets[run.occurrence_id, 1]: run.occurrence_id for run in runs}
    yard.commit(0, 1, finished=((2, 3), (6, 6)))
    states = yard.states()
    here = [states[by_place[0, n]] for n in range(8)]
    assert here == ["unacked", "waiting", "unacked", "unacked", "waiting", "waiting", "unacked", "waiting"]


def test_starts_that_the_metadata_names_need_no_ack(yard: Yard) -> None:
    runs = [yard.fire(yard.run(n)) for n in range(40)]
    by_place = {yard.offsets[run.occurrence_id, 1]: run.occurrence_id for run in runs}
    given_back = Start(1, make_token(1, 1, 7, 1), "-")
    started = ((0, Start(1, make_token(1, 1, 7, 1), WORKER)), (1, given_back))
    yard.commit(0, 0, acks_offset=1, started=started)
    states = yard.states()
    assert [states[by_place[0, n]] for n in range(3)] == ["running", "waiting", "waiting"]


def test_a_start_before_the_offset_of_the_metadata_is_told_by_the_metadata_alone(yard: Yard) -> None:
    run = yard.fire(yard.run())
    yard.ack(run, AckState.STARTED)
    partition, _ = yard.offsets[run.occurrence_id, 1]
    yard.commit(partition, 0, acks_offset=1)
    assert yard.states() == {run.occurrence_id: "waiting"}
    yard.commit(partition, 0, acks_offset=0)
    assert yard.states() == {run.occurrence_id: "running"}


def test_metadata_of_a_later_version_tells_nothing(yard: Yard) -> None:
    run = yard.fire(yard.run())
    names = yard.store.names
    group = yard.store.cluster.group(names.worker_group("default"), names.work("default"))
    for partition in range(3):
        group.committed[partition] = CommittedOffset(1, "9;what")
    assert yard.states() == {run.occurrence_id: "unacked"}


def test_the_highest_run_counts_and_the_first_says_when_it_was_due(yard: Yard) -> None:
    first = yard.fire(yard.run())
    yard.ack(first, AckState.RETRYING)
    yard.store.clock.advance(6_000)
    second = yard.fire(yard.again(first))
    yard.ack(second, AckState.DEAD)
    yard.commit_all()
    (seen,) = yard.seen()
    assert (seen.run, seen.state, seen.due_at, seen.fired_at) == (2, State.DEAD, DUE, DUE)
    assert seen.offset == yard.offsets[first.occurrence_id, 2][1]


def test_runs_out_of_order_and_twice_are_one_occurrence(yard: Yard) -> None:
    first = yard.run()
    second, third = yard.again(first), yard.again(yard.again(first))
    for run in (third, second, first, second):
        yard.store.clock.advance(10)
        yard.fire(run, told=False)
    (seen,) = yard.seen()
    assert (seen.run, seen.due_at, seen.fired_at) == (3, DUE, DUE + 30)


def test_an_ack_of_another_run_at_the_same_offset_says_nothing(yard: Yard) -> None:
    """The work topic was made anew: offsets count from 0 again (H13)."""
    run, other = yard.fire(yard.run(0)), yard.run(1)
    yard.offsets[other.occurrence_id, 1] = yard.offsets[run.occurrence_id, 1]
    yard.ack(other, AckState.SUCCEEDED)
    yard.commit_all()
    assert yard.states() == {run.occurrence_id: "unacked"}


def test_an_ack_of_a_run_outside_the_span_is_passed_over(yard: Yard) -> None:
    run = yard.fire(yard.run())
    yard.ack(run, AckState.SUCCEEDED, work_offset=99)
    yard.ack(run, AckState.SUCCEEDED, work_offset=-1)
    yard.commit_all()
    assert yard.states() == {run.occurrence_id: "unacked"}


def test_a_window_is_of_due_time_whenever_it_fired(yard: Yard) -> None:
    early, at, late = yard.run(0, after=-1), yard.run(1), yard.run(2, after=3_599_999)
    beyond = yard.run(3, after=3_600_000)
    yard.store.clock.advance(7_200_000)
    for run in (early, at, late, beyond):
        yard.fire(run)
    assert set(yard.states()) == {at.occurrence_id, late.occurrence_id}


def test_an_occurrence_put_off_by_jitter_is_of_the_window_in_which_it_was_due(yard: Yard) -> None:
    before = yard.run(0, after=5, nominal_at=DUE - 10)
    after = yard.run(1, after=3_600_005, nominal_at=DUE + 3_599_999)
    yard.store.clock.advance(3_700_000)
    for run in (before, after):
        yard.fire(run)
        yard.fire(yard.again(run))
    assert {seen.occurrence_id: seen.run for seen in yard.seen()} == {before.occurrence_id: 2}


def test_without_its_first_run_an_occurrence_is_placed_by_its_nominal_time(yard: Yard) -> None:
    inside, outside = yard.again(yard.run(0)), yard.again(yard.run(1, after=-20_000))
    for run in (inside, outside):
        yard.fire(run, told=False)
    assert [(seen.occurrence_id, seen.due_at) for seen in yard.seen()] == [(inside.occurrence_id, DUE)]


def test_reading_begins_where_the_window_does(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        yard.fire(yard.run(n, after=-7_200_000))
    yard.store.clock.advance(3_600_000)
    run = yard.fire(yard.run(99, after=3_600_000))
    later = Window(from_ms=DUE + 3_600_000, to_ms=DUE + 7_200_000)
    read: list[str] = []
    ground = yard.ground
    inner = ground.scan.batches

    def counted(topic: str, *place: int) -> Any:
        for batch in inner(topic, *place):
            read.extend(record.topic() or "" for record in batch)
            yield batch

    monkeypatch.setattr(ground.scan, "batches", counted)
    found = [seen for part in parts(ground, Filter()) for seen in survey_part(ground, part, later, Filter())]
    assert [seen.occurrence_id for seen in found] == [run.occurrence_id]
    assert read == [yard.store.names.work("default")]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"handler": "bill"}, [1]),
        ({"schedule": "nightly"}, [2]),
        ({"labels": {"team": "a"}}, [1, 2]),
        ({"labels": {"team": "a", "x": "y"}}, [2]),
        ({"key_prefix": "invoice-"}, [3]),
        ({"queue": "default"}, [0, 1, 2, 3]),
        ({"queue": "mail"}, []),
        ({"outcomes": {State.FAILED}}, [0, 1]),
        ({"outcomes": {State.DEAD}}, [1]),
        ({"outcomes": {State.WAITING, State.SUCCEEDED}}, [2, 3]),
    ],
)
def test_a_filter(yard: Yard, wanted: dict[str, Any], found: list[int]) -> None:
    yard.store.add_queues({"mail": 1})
    keyed = keyed_id("invoice-55")
    runs = [
        yard.run(0),
        yard.run(1, handler="bill", labels={"team": "a"}),
        yard.run(2, schedule_id="nightly", labels={"team": "a", "x": "y"}),
        yard.run(3, job_id=keyed, id_=f"{keyed}.7", key="invoice-55"),
    ]
    states = (AckState.FAILED, AckState.DEAD, AckState.SUCCEEDED, None)
    for run, state in zip(runs, states, strict=True):
        yard.fire(run, told=False)
        if state is not None:
            yard.ack(run, state)
    assert set(yard.states(**wanted)) == {runs[n].occurrence_id for n in found}


def test_what_nobody_can_read_is_passed_over(yard: Yard) -> None:
    run = yard.fire(yard.run())
    partition, _ = yard.offsets[run.occurrence_id, 1]
    names = yard.store.names
    for key, value in (
        (b"j1", b"junk"),
        (b"j1", None),
        (b"j-other", codec.RUN.encode(yard.run(5))),
        (b"", b""),
    ):
        yard.store.cluster.append(Put(names.work("default"), partition, key, value))
        yard.store.cluster.append(Put(names.acks("default"), partition, b"t/" + key, value))
        yard.store.cluster.append(Put(names.acks("default"), partition, key, value))
    assert yard.states() == {run.occurrence_id: "waiting"}


def test_records_that_do_not_fit_memory_come_out_the_same(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [yard.fire(yard.run(n, labels={"n": str(n % 3)})) for n in range(60)]
    for run in runs[::2]:
        yard.ack(run, AckState.RETRYING)
        yard.fire(yard.again(run))
    in_memory = yard.seen()
    monkeypatch.setattr(spill, "ROWS", 7)
    assert yard.seen() == in_memory
    assert [seen.run for seen in in_memory].count(2) == 30


def test_runs_are_read_again_by_their_offsets(yard: Yard) -> None:
    runs = [yard.fire(yard.run(n, payload=b'{"n":%d}' % n)) for n in range(30)]
    mine = [run for run in runs if yard.offsets[run.occurrence_id, 1][0] == 2]
    yard.store.cluster.append(Put(yard.store.names.work("default"), 2, b"j", b"junk"))
    offsets = array("q", [0, 2, len(mine), 99])
    found = list(runs_at(yard.ground, Part("default", 2), offsets))
    assert [(each.run, each.offset) for each in found] == [(mine[0], 0), (mine[2], 2)]
    assert found[0].at == DUE
    assert list(runs_at(yard.ground, Part("default", 2), array("q"))) == []


def test_parts_are_those_of_the_queues(yard: Yard) -> None:
    yard.store.add_queues({"a.first": 2})
    every = parts(yard.ground, Filter())
    assert every == [*(Part("a.first", n) for n in range(2)), *(Part("default", n) for n in range(3))]
    assert parts(yard.ground, Filter(queue="a.first")) == every[:2]


def test_a_run_whose_token_run_or_attempt_is_long_is_read_too(yard: Yard) -> None:
    run = yard.fire(yard.run(run=70))
    yard.ack(run, AckState.SUCCEEDED, attempt=65)
    other = yard.fire(yard.run(1))
    yard.ack(other, AckState.DEAD, token=5)
    keyed = keyed_id("a" * 40)
    third = yard.fire(replace(yard.run(2), job_id=keyed, occurrence_id=f"{keyed}.123456"), told=False)
    yard.ack(third, AckState.CANCELLED, worker="w" * 70)
    assert sorted(yard.states().values()) == ["cancelled", "dead", "succeeded"]
    assert HOUR.from_ms == DUE


def test_what_ran_again_is_found_whatever_its_first_run_came_to(yard: Yard) -> None:
    first = yard.fire(yard.run(labels={"a": "b"}))
    yard.ack(first, AckState.SUCCEEDED)
    yard.store.clock.advance(6_000)
    yard.ack(yard.fire(yard.again(first)), AckState.DEAD)
    retried = yard.fire(yard.run(1))
    yard.ack(retried, AckState.DEAD)
    yard.fire(yard.again(retried))
    yard.commit(yard.offsets[retried.occurrence_id, 2][0], 0)
    assert yard.states(outcomes={State.DEAD}) == {first.occurrence_id: "dead"}
    (seen,) = yard.seen(outcomes={State.DEAD})
    assert (seen.run, seen.due_at, seen.fired_at) == (2, DUE, DUE + 6_000)


LATER = Window(from_ms=DUE + 7_200_000, to_ms=DUE + 10_800_000)


def keyed(yard: Yard, n: int) -> Run:
    id_ = keyed_id(f"invoice-{n}")
    return replace(yard.run(n), job_id=id_, occurrence_id=f"{id_}.{n}", key=f"invoice-{n}")


@pytest.mark.parametrize("outcomes", [set(), {State.SUCCEEDED}, {State.SUCCEEDED, State.WAITING}])
def test_a_requeue_is_of_the_window_in_which_its_occurrence_was_due(yard: Yard, outcomes: set[State]) -> None:
    """It is meant for the moment at which somebody asked for it (`commands.again`)."""
    first, other = yard.run(), keyed(yard, 1)
    for run in (first, other):
        yard.ack(yard.fire(run, told=False), AckState.DEAD)
    yard.store.clock.advance(LATER.from_ms - DUE + 5_000)
    for run in (first, other):
        yard.ack(yard.fire(yard.requeued(run)), AckState.SUCCEEDED)
    found = yard.seen(outcomes=outcomes)
    assert {seen.occurrence_id: (seen.state, seen.run) for seen in found} == {
        run.occurrence_id: (State.SUCCEEDED, 2) for run in (first, other)
    }
    assert {(seen.due_at, seen.nominal_at, seen.fired_at) for seen in found} == {(DUE, DUE, DUE)}
    assert yard.seen(LATER, outcomes=outcomes) == []
    assert yard.seen(outcomes={State.DEAD}) == []


def test_what_follows_from_a_requeue_is_of_its_window_too(yard: Yard) -> None:
    first = yard.ack(yard.fire(yard.run()), AckState.DEAD)
    yard.store.clock.advance(LATER.from_ms - DUE + 5_000)
    second = yard.ack(yard.fire(yard.requeued(first)), AckState.RETRYING)
    yard.store.clock.advance(5_000)
    yard.ack(yard.fire(yard.again(second)), AckState.CANCELLED)
    assert yard.states() == {first.occurrence_id: "cancelled"}
    assert yard.states(LATER) == {}


def test_a_retry_of_a_job_that_was_created_for_at_once_is_no_requeue_of_another_window(yard: Yard) -> None:
    first = yard.ack(yard.fire(yard.run(created_at=DUE)), AckState.RETRYING)
    yard.store.clock.advance(5_000)
    yard.ack(yard.fire(yard.again(first)), AckState.SUCCEEDED)
    assert yard.states() == yard.states(outcomes={State.SUCCEEDED}) == {first.occurrence_id: "succeeded"}
