"""The promises of DESIGN §2, looked for in what stands on the topics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, KeyState, Run
from pipeline.core.token import make_token
from pipeline.ports import Put
from pipeline.survey import spill
from pipeline.survey.promises import Judged, Kind
from pipeline.survey.verifying import TOLD, Verdict, verify_promises
from tests.unit.survey.conftest import DUE, HOUR, T0, Yard


def verdict(yard: Yard) -> Verdict:
    return verify_promises(yard.ground, HOUR)


def found(yard: Yard) -> dict[Kind, list[str]]:
    return {kind: [finding.id for finding in each] for kind, each in verdict(yard).first.items()}


def fine(yard: Yard, n: int = 0) -> Run:
    run = yard.run(n)
    yard.store.put(run)
    yard.fire(run)
    yard.ack(run, AckState.STARTED)
    return yard.ack(run, AckState.SUCCEEDED)


def test_nothing_is_wrong_with_what_went_well(yard: Yard) -> None:
    for n in range(20):
        fine(yard, n)
    waiting = yard.fire(yard.run(90))
    yard.store.put(yard.run(91))
    first = yard.fire(yard.run(92))
    yard.ack(first, AckState.RETRYING)
    yard.store.clock.advance(10_000)
    yard.ack(yard.fire(yard.again(first)), AckState.SUCCEEDED)
    yard.commit_all()
    yard.commit(yard.offsets[waiting.occurrence_id, 1][0], 0)
    looked = verdict(yard)
    assert (looked.first, looked.judged) == ({}, Judged(22, 23, waiting=1))


def test_a_job_that_its_home_calls_fired_and_that_no_work_record_has_is_lost(yard: Yard) -> None:
    run = yard.run()
    yard.store.put(run)
    yard.store.end(run, "fired", place="default/1")
    assert found(yard) == {Kind.LOST: [run.occurrence_id]}
    assert verdict(yard).first[Kind.LOST][0].detail == "no run 1 at default/1"


def test_other_ends_and_late_copies_of_it_are_no_word_of_a_firing(yard: Yard) -> None:
    for n, (end, place) in enumerate([("cancelled", "default/1"), ("dead", "default/1"), ("fired", None)]):
        run = yard.run(n)
        yard.store.put(run)
        yard.store.end(run, end, place=place)
    copy = yard.run(9)
    home = yard.store.layout.home(copy.job_id)
    headers = [("end", b"fired"), ("work", b"default/1")]  # of a duplicate: no run
    yard.store.cluster.append(Put(yard.store.names.jobs, home, keys.job_key(copy.job_id), None, headers))
    assert found(yard) == {}


def test_a_changed_job_that_fired_is_looked_for(yard: Yard) -> None:
    run = yard.run()
    home = yard.store.layout.home(run.job_id)
    headers = [("end", b"fired"), ("run", b"1"), ("work", b"default/0")]
    key = keys.changed_key(run.job_id)
    yard.store.cluster.append(Put(yard.store.names.jobs, home, key, None, headers))
    assert found(yard) == {Kind.LOST: [run.occurrence_id]}
    yard.fire(run, told=False)
    assert found(yard) == {}


@pytest.mark.parametrize("freed", [False, True])
def test_a_keyed_job_that_fired_is_looked_for(yard: Yard, freed: bool) -> None:
    id_ = keyed_id("invoice-55")
    run = replace(yard.run(), job_id=id_, occurrence_id=f"{id_}.7", key="invoice-55")
    home, key = yard.store.layout.home(id_), keys.keyed_key("invoice-55")
    state = KeyState(incarnation=7, phase="fired", highest_run=1, unique="finished", changed_at=T0)
    headers = [("end", b"fired")] * freed + [("run", b"1"), ("work", b"default/0")]
    headers += [("occurrence", run.occurrence_id.encode())] * freed
    value = None if freed else codec.KEY_STATE.encode(state)
    yard.store.cluster.append(Put(yard.store.names.jobs, home, key, value, headers))
    assert found(yard) == {Kind.LOST: [run.occurrence_id]}
    yard.fire(run, told=False)
    assert found(yard) == {}
    yard.store.cluster.append(Put(yard.store.names.jobs, home, key, b"junk", headers))
    assert found(yard) == {}


def test_a_later_run_without_the_first_is_lost_if_it_is_of_the_window(yard: Yard) -> None:
    inside, before = yard.again(yard.run(0)), yard.again(yard.run(1, after=-9_000))
    yard.store.clock.advance(9_000)
    for run in (inside, before):
        yard.fire(run, told=False)
    assert found(yard) == {Kind.LOST: [inside.occurrence_id]}


def test_two_first_runs_are_a_double(yard: Yard) -> None:
    run = fine(yard)
    yard.ack(yard.fire(run), AckState.SUCCEEDED)
    yard.commit_all()
    assert found(yard)[Kind.DOUBLED] == [run.occurrence_id]


def test_a_double_is_found_wherever_it_stands(yard: Yard) -> None:
    yard.store.add_queues({"mail": 2})
    run = fine(yard)
    yard.fire(replace(run, queue="mail"), told=False)
    assert found(yard) == {Kind.DOUBLED: [run.occurrence_id]}


def test_a_run_that_was_appended_before_it_was_due(yard: Yard) -> None:
    run = yard.run(after=1_000)
    yard.fire(run)
    assert found(yard) == {Kind.EARLY: [run.occurrence_id]}
    assert verdict(yard).first[Kind.EARLY][0].detail.endswith(", 1000 ms")


def test_a_run_that_the_group_is_past_needs_an_ack(yard: Yard) -> None:
    run = yard.fire(yard.run())
    yard.ack(run, AckState.STARTED)
    assert found(yard) == {}
    yard.commit_all()
    assert found(yard) == {Kind.UNACKED: [run.occurrence_id]}


def test_a_dead_letter_or_a_later_run_makes_it_good(yard: Yard) -> None:
    buried, replayed = yard.fire(yard.run(0)), yard.fire(yard.run(1))
    yard.commit_all()
    assert len(found(yard)[Kind.UNACKED]) == 2
    yard.store.cluster.append(Put(yard.store.names.dead, 1, buried.occurrence_id.encode(), b"letter"))
    yard.store.clock.advance(6_000)
    yard.fire(yard.again(replayed))
    assert found(yard) == {}
    yard.store.clock.advance(6_000)
    yard.fire(yard.again(buried))
    yard.commit_all()
    assert sorted(found(yard)[Kind.UNACKED]) == sorted([buried.occurrence_id, replayed.occurrence_id])


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (make_token(1, 1, 9, 1), "of another run"),
        (make_token(0, 2, 7, 1), "after run 1's"),
        (5, "of another run"),
    ],
)
def test_tokens_grow_from_run_to_run(yard: Yard, second: int, what: str) -> None:
    run = yard.fire(yard.run())
    yard.ack(run, AckState.RETRYING)
    yard.store.clock.advance(6_000)
    again = yard.fire(yard.again(run))
    yard.ack(again, AckState.SUCCEEDED, token=second)
    assert found(yard) == {Kind.TOKEN: [run.occurrence_id]}
    assert what in verdict(yard).first[Kind.TOKEN][0].detail


def test_what_ended_without_a_start_has_no_token_and_is_no_finding(yard: Yard) -> None:
    """Purged, stopped before it began, too old, of no handler: its ack carries 0."""
    yard.ack(yard.fire(yard.run()), AckState.CANCELLED, token=0)
    run = yard.fire(yard.run(1))
    yard.ack(run, AckState.RETRYING)
    yard.store.clock.advance(6_000)
    yard.ack(yard.fire(yard.again(run)), AckState.DEAD, token=0)
    assert found(yard) == {}


def test_a_run_that_was_acked_twice_has_a_token_that_did_not_grow(yard: Yard) -> None:
    run = yard.fire(yard.run())
    yard.ack(run, AckState.SUCCEEDED, attempt=2)
    yard.ack(run, AckState.SUCCEEDED, attempt=1)
    assert found(yard) == {Kind.TOKEN: [run.occurrence_id]}


def test_a_run_that_was_acked_twice_with_one_token(yard: Yard) -> None:
    run = yard.fire(yard.run())
    for _ in range(2):
        yard.ack(run, AckState.SUCCEEDED)
    assert found(yard) == {Kind.TOKEN: [run.occurrence_id]}


def test_all_are_counted_and_the_first_are_named(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "ROWS", 11)
    for n in range(2 * TOLD):
        yard.fire(fine(yard, n))
    looked = verdict(yard)
    assert (looked.counts[Kind.DOUBLED], len(looked.first[Kind.DOUBLED])) == (2 * TOLD, TOLD)
    assert looked.judged == Judged(2 * TOLD, 4 * TOLD)


def test_only_what_was_due_in_the_window_is_judged(yard: Yard) -> None:
    yard.store.clock.advance(3_600_000)
    for run in (yard.run(0, after=-1), yard.run(1, after=3_600_000)):
        yard.fire(run)
        yard.fire(run)
    lost = yard.run(2, after=3_600_000)
    yard.store.end(lost, "fired", place="default/1")
    assert found(yard) == {}
    assert DUE in HOUR


def test_a_requeue_of_what_was_due_before_the_window_is_not_lost(yard: Yard) -> None:
    yard.store.clock.advance(-7_200_000)
    old = yard.run(after=-7_200_000)
    yard.ack(yard.fire(old), AckState.DEAD)
    yard.store.clock.advance(7_200_000)
    yard.ack(yard.fire(yard.requeued(old)), AckState.SUCCEEDED)
    assert found(yard) == {}


def test_an_unacked_run_that_was_requeued_after_the_window_is_made_good(yard: Yard) -> None:
    run = yard.fire(yard.run())
    yard.commit_all()
    assert found(yard) == {Kind.UNACKED: [run.occurrence_id]}
    yard.store.clock.advance(7_200_000)
    yard.fire(yard.requeued(run))
    assert found(yard) == {}


def test_what_fired_before_a_restore_went_on_as_a_further_run_and_is_not_lost(yard: Yard) -> None:
    run = yard.again(yard.run())
    yard.store.clock.advance(6_000)
    yard.ack(yard.fire(run), AckState.SUCCEEDED)
    yard.commit_all()
    assert found(yard) == {Kind.LOST: [run.occurrence_id]}
    restored = verify_promises(yard.ground, HOUR, DUE + 3_000)
    assert (restored.first, restored.judged) == ({}, Judged(1, 1, restored=1))
    assert Kind.LOST in verify_promises(yard.ground, HOUR, DUE).first


def test_a_restore_excuses_nothing_that_fired_since(yard: Yard) -> None:
    run = yard.run()
    yard.store.put(run)
    yard.store.end(run, "fired", place="default/1")
    yard.store.clock.advance(6_000)
    yard.fire(yard.again(run), told=False)
    assert Kind.LOST in verify_promises(yard.ground, HOUR, DUE + 3_000).first


def test_the_restored_state_of_a_key_is_no_word_of_a_firing_here(yard: Yard) -> None:
    state = KeyState(incarnation=7, phase="fired", highest_run=1, unique="finished", changed_at=T0)
    home, key = yard.store.layout.home(keyed_id("invoice-55")), keys.keyed_key("invoice-55")
    headers = [("run", b"1"), ("work", b"default/0"), ("moved", b"restored")]
    yard.store.cluster.append(Put(yard.store.names.jobs, home, key, codec.KEY_STATE.encode(state), headers))
    assert found(yard) == {}


def test_pending_ones_are_counted_apart(yard: Yard) -> None:
    fine(yard)
    yard.store.put(yard.run(1))
    yard.store.put(yard.run(2, after=3_600_000))
    looked = verdict(yard)
    assert (looked.pending, looked.judged) == (1, Judged(1, 1))
