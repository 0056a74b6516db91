"""What is due and has not fired, and what was skipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id
from pipeline.core.job import KeyState, Run
from pipeline.core.schedule import OpenRun, Schedule, ScheduleSpec
from pipeline.ports import Put
from pipeline.survey import Filter, Seen, State, reading, spill, unfired
from tests.unit.survey.conftest import DUE, HOUR, T0, Yard

MINUTE = 60_000


def put(yard: Yard, key: bytes, home: int, value: bytes | None) -> None:
    yard.store.cluster.append(Put(yard.store.names.jobs, home, key, value))


def change(yard: Yard, run: Run) -> None:
    """As its owner writes it."""
    home = yard.store.layout.home(run.job_id)
    put(yard, keys.changed_key(run.job_id), home, codec.RUN.encode(run))
    put(yard, keys.job_key(run.job_id), home, None)


def found(yard: Yard, **wanted: Any) -> list[Seen]:
    return list(unfired(yard.ground, HOUR, Filter(**wanted)))


def ids(yard: Yard, **wanted: Any) -> set[str]:
    return {seen.occurrence_id for seen in found(yard, **wanted)}


# -- jobs ---------------------------------------------------------------------------------------------------


def test_a_job_that_is_due_and_did_not_fire(yard: Yard) -> None:
    run = yard.run(labels={"l": "1"})
    yard.store.put(run)
    (seen,) = found(yard)
    assert seen.state is State.PENDING
    assert (seen.fired_at, seen.run, seen.partition, seen.offset) == (None, 0, -1, -1)
    assert (seen.occurrence_id, seen.due_at, seen.labels, seen.payload_bytes) == (
        run.job_id,
        DUE,
        {"l": "1"},
        7,
    )


def test_one_that_fired_was_cancelled_or_is_due_at_another_time_is_not_pending(yard: Yard) -> None:
    fired, cancelled, later, earlier = (
        yard.run(0),
        yard.run(1),
        yard.run(2, after=3_600_000),
        yard.run(3, after=-1),
    )
    for run in (fired, cancelled, later, earlier):
        yard.store.put(run)
    yard.store.end(fired, "fired")
    yard.store.end(cancelled, "cancelled")
    assert ids(yard) == set()


def test_the_record_says_when_a_job_is_due_not_its_id(yard: Yard) -> None:
    into, out_of = yard.run(0, after=-MINUTE), yard.run(1)
    for run in (into, out_of):
        yard.store.put(run)
    change(yard, replace(into, due_at=DUE + 5))
    change(yard, replace(out_of, due_at=DUE + 4_000_000))
    foreign = replace(yard.run(2), job_id=(id_ := anonymous_id(T0, 9)), occurrence_id=id_)
    gone = replace(yard.run(3), job_id=(other := anonymous_id(T0, 8)), occurrence_id=other)
    for run in (foreign, gone):
        yard.store.put(run)
    yard.store.end(gone, "fired")
    assert ids(yard) == {into.job_id, foreign.job_id}


def test_a_job_that_was_put_into_another_window_is_of_this_one_no_more(yard: Yard) -> None:
    run = yard.run()
    yard.store.put(run)
    yard.store.put(replace(run, due_at=DUE + 4_000_000))
    assert ids(yard) == set()


def test_a_keyed_job_is_pending_as_long_as_its_state_has_a_run(yard: Yard) -> None:
    id_ = keyed_id("invoice-55")
    run = replace(yard.run(), job_id=id_, occurrence_id=f"{id_}.7", key="invoice-55")
    home, key = yard.store.layout.home(id_), keys.keyed_key("invoice-55")
    state = KeyState(incarnation=7, phase="pending", highest_run=0, unique="finished", changed_at=T0, run=run)
    put(yard, key, home, codec.KEY_STATE.encode(state))
    assert ids(yard, key_prefix="invoice-") == {f"{id_}.7"}
    fired = replace(state, phase="fired", highest_run=1, run=None)
    put(yard, key, home, codec.KEY_STATE.encode(fired))
    assert ids(yard) == set()
    put(yard, key, home, b"junk")
    assert ids(yard) == set()


def test_what_nobody_can_read_is_not_pending(yard: Yard) -> None:
    run = yard.run()
    home = yard.store.layout.home(run.job_id)
    put(yard, keys.job_key(run.job_id), home, b"junk")
    put(yard, b"j/what", home, codec.RUN.encode(run))
    put(yard, keys.schedule_key("nightly"), yard.store.layout.home_of_name("nightly"), b"junk")
    put(yard, b"", home, None)
    yard.store.cluster.append(Put(yard.store.names.events, home, b"x", b"junk"))
    yard.store.cluster.append(Put(yard.store.names.events, home, b"x", None))
    assert ids(yard) == set()


def test_pending_jobs_that_do_not_fit_memory(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "ROWS", 3)
    runs = [yard.run(n) for n in range(60)]
    for run in runs:
        yard.store.put(run)
    for run in runs[::3]:
        yard.store.end(run, "fired")
    pending = {run.job_id for n, run in enumerate(runs) if n % 3}
    assert ids(yard) == pending
    assert yard.states() == dict.fromkeys(pending, "pending")


def test_a_filter_that_wants_only_what_fired_reads_nothing(yard: Yard) -> None:
    yard.store.cluster.reachable = False
    assert ids(yard, outcomes=frozenset({State.DEAD})) == set()


def test_a_filter(yard: Yard) -> None:
    yard.store.add_queues({"mail": 1})
    mail, bill = yard.run(0, queue="mail"), yard.run(1, handler="bill")
    for run in (mail, bill):
        yard.store.put(run)
    assert ids(yard, queue="mail") == {mail.job_id}
    assert ids(yard, handler="bill") == {bill.job_id}
    assert ids(yard, outcomes=frozenset({State.SKIPPED})) == set()


# -- schedules ----------------------------------------------------------------------------------------------


def schedule(**fields: Any) -> Schedule:
    spec = {"id": "nightly", "handler": "report", "cron": "*/10 * * * *", "labels": {"team": "a"}}
    spec |= {name: fields.pop(name) for name in [*fields] if name in ScheduleSpec.__slots__}
    values: dict[str, Any] = {
        "incarnation": 5,
        "revision": 1,
        "created_at": T0,
        "changed_at": T0,
        "last_nominal": DUE + 20 * MINUTE,
        "next_nominal": DUE + 30 * MINUTE,
        "next_due": DUE + 30 * MINUTE,
    }
    return Schedule(spec=ScheduleSpec(**spec), **{**values, **fields})


def minutes(yard: Yard, **wanted: Any) -> list[int]:
    return [(seen.due_at - DUE) // MINUTE for seen in found(yard, **wanted)]


def test_instants_that_no_owner_has_decided_are_pending(yard: Yard) -> None:
    yard.put_schedule(schedule())
    assert minutes(yard) == [30, 40, 50]
    (seen, *_) = found(yard, schedule="nightly", labels={"team": "a"})
    assert seen.occurrence_id == f"s:nightly:5:g::{DUE + 30 * MINUTE}"
    assert (seen.state, seen.handler, seen.nominal_at) == (State.PENDING, "report", DUE + 30 * MINUTE)
    assert minutes(yard, handler="bill") == []


def test_a_jittered_instant_is_of_the_window_in_which_it_is_due(yard: Yard) -> None:
    yard.put_schedule(schedule(jitter_ms=9 * MINUTE, next_nominal=DUE - 10 * MINUTE))
    dues = [seen.due_at for seen in found(yard)]
    assert all(due in HOUR for due in dues)
    assert len(dues) in (6, 7)
    assert all(seen.due_at >= seen.nominal_at for seen in found(yard))


def test_what_waits_behind_an_open_run_is_pending(yard: Yard) -> None:
    opened = OpenRun(occurrence_id=f"s:nightly:5:g::{DUE}", nominal_at=DUE, emitted_at=DUE, place="")
    state = schedule(
        buffer=(DUE - MINUTE, DUE + 10 * MINUTE), open=(opened,), next_nominal=None, next_due=None
    )
    yard.put_schedule(state)
    assert minutes(yard) == [10]


@pytest.mark.parametrize("fields", [{"ended": "end"}, {"paused": "holiday"}, {"next_nominal": None}])
def test_a_schedule_that_does_not_run_owes_nothing(yard: Yard, fields: dict[str, Any]) -> None:
    yard.put_schedule(schedule(**fields))
    assert minutes(yard) == []


def test_after_finish_and_unknown_zones_show_the_next_one_only(yard: Yard) -> None:
    yard.put_schedule(schedule(cron=None, after_ms=MINUTE, next_due=DUE + 31 * MINUTE))
    assert minutes(yard) == [31]
    yard.put_schedule(schedule(tz="Europe/Nowhere"))
    assert minutes(yard) == [30]
    yard.put_schedule(schedule(tz="Europe/Nowhere", next_due=DUE + 90 * MINUTE))
    assert minutes(yard) == []


def test_a_deleted_schedule_owes_nothing(yard: Yard) -> None:
    yard.put_schedule(schedule())
    home = yard.store.layout.home_of_name("nightly")
    put(yard, keys.schedule_key("nightly"), home, None)
    assert minutes(yard) == []


def skips(yard: Yard, first: int, last: int, count: int, **detail: str) -> None:
    numbers = {"first": DUE + first * MINUTE, "last": DUE + last * MINUTE, "count": count}
    yard.skip(**{name: str(number) for name, number in numbers.items()}, **detail)


def test_skipped_instants_are_told_apart_by_their_schedule(yard: Yard) -> None:
    yard.put_schedule(schedule(next_nominal=None))
    yard.store.clock.advance(3_600_000)
    skips(yard, -20, 30, 6)
    seen = found(yard)
    assert [(each.due_at - DUE) // MINUTE for each in seen] == [0, 10, 20, 30]
    assert {each.state for each in seen} == {State.SKIPPED}
    assert {(each.reason, each.times, each.handler) for each in seen} == {("misfire", 1, "report")}
    assert seen[0].occurrence_id == f"s:nightly:5:g::{DUE}"


def test_one_skip_needs_no_schedule(yard: Yard) -> None:
    skips(yard, 10, 10, 1)
    (seen,) = found(yard)
    assert (seen.due_at, seen.times, seen.handler) == (DUE + 10 * MINUTE, 1, "")
    assert found(yard, schedule="nightly") == [seen]
    assert found(yard, handler="report") == []


def test_skips_of_a_schedule_that_is_gone_or_was_changed_stand_at_their_first(yard: Yard) -> None:
    skips(yard, 10, 30, 3)
    assert [(seen.due_at, seen.times) for seen in found(yard)] == [(DUE + 10 * MINUTE, 3)]
    yard.put_schedule(schedule(cron="0 * * * *", next_nominal=None))
    assert [seen.times for seen in found(yard)] == [3]
    yard.put_schedule(schedule(next_nominal=None))
    assert [seen.times for seen in found(yard)] == [1, 1, 1]


@pytest.mark.parametrize(
    "detail", [{"count": "x"}, {"first": "-5"}, {"last": "9" * 17}, {"schedule": ""}, {"incarnation": "٣"}]
)
def test_a_skip_that_nobody_of_ours_wrote_says_nothing(yard: Yard, detail: dict[str, str]) -> None:
    full = {"first": str(DUE), "last": str(DUE), "count": "1"}
    yard.skip(**{**full, **detail})
    assert found(yard) == []


def test_an_instant_that_was_skipped_while_this_was_read_counts_once(yard: Yard) -> None:
    yard.put_schedule(schedule(next_nominal=DUE + 10 * MINUTE))
    skips(yard, 10, 20, 2)
    states = {(seen.due_at - DUE) // MINUTE: seen.state.value for seen in found(yard)}
    assert states == {10: "skipped", 20: "skipped", 30: "pending", 40: "pending", 50: "pending"}


def test_what_fires_while_this_is_read_counts_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    fires, stays, fired = yard.run(0), yard.run(1), yard.run(2)
    for run in (fires, stays, fired):
        yard.store.put(run)
    yard.fire(fired)
    monkeypatch.setattr(
        reading, "unfired", lambda *args: iter([*unfired(*args), *_nothing(yard.fire(fires))])
    )
    assert yard.states() == {
        fires.occurrence_id: "waiting",
        stays.occurrence_id: "pending",
        fired.occurrence_id: "waiting",
    }


def _nothing(_fired: Run) -> list[Seen]:
    return []
