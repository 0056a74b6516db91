"""Which runs are open: what the group and the acks say of their end, and `jobs` of their beginning."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from unit.backup.town import LAYOUT, NAMES, T0, Town, fold, reader, run_of

from pipeline import codec
from pipeline.backup.cut import Reach, Span
from pipeline.backup.jobs import JobsState
from pipeline.backup.runs import Finished, OpenRuns, still_open
from pipeline.core import ids, keys
from pipeline.core.errors import StopPartition, Undecodable
from pipeline.core.job import Ack, AckState, Command, Event, Highest, KeyState, Run
from pipeline.core.schedule import Backfill, Schedule
from pipeline.core.spec import ScheduleSpec
from pipeline.ports import CommittedOffset, Put

JOB = ids.anonymous_id(T0, 1)
KEYED = ids.keyed_id("invoice-55")
UUID = "00000000-0000-4000-8000-00000000000a"


@pytest.fixture
def town() -> Town:
    return Town(Random(0))


def state_of(town: Town) -> JobsState:
    return fold(town, [Span(1000, 1000)] * LAYOUT.partitions)


def is_open(town: Town, run: Run, *, sure: bool = False) -> bool:
    return still_open(run, state_of(town), LAYOUT, sure=sure)


# -- anonymous jobs -----------------------------------------------------------------------------------------


def test_a_run_of_which_nothing_is_known_is_open(town: Town) -> None:
    assert is_open(town, run_of(JOB))
    assert is_open(town, run_of(JOB), sure=True)


@pytest.mark.parametrize("key", [keys.job_key(JOB), keys.changed_key(JOB)])
def test_one_whose_job_is_pending_is_not(town: Town, key: bytes) -> None:
    town.put(2, key, codec.RUN.encode(run_of(JOB)))
    assert not is_open(town, run_of(JOB))


def test_only_the_highest_run_counts(town: Town) -> None:
    highest = codec.HIGHEST.encode(Highest(run=2, queue="default", work_partition=0))
    assert not is_open(town, run_of(JOB, run=2)), "emitted after the cut"
    town.put(LAYOUT.home(JOB), keys.highest_key(JOB), highest)
    assert [is_open(town, run_of(JOB, run=run)) for run in (1, 2, 3)] == [False, True, False]
    town.put(LAYOUT.home(JOB), keys.retry_key(JOB, 1), codec.RUN.encode(run_of(JOB, run=2)))
    assert is_open(town, run_of(JOB, run=2)), "that retry is superseded"


def test_one_that_was_followed_by_a_retry_is_not(town: Town) -> None:
    town.put(LAYOUT.home(JOB), keys.retry_key(JOB, 1), codec.RUN.encode(run_of(JOB, run=2)))
    assert not is_open(town, run_of(JOB))
    assert not is_open(town, run_of(JOB), sure=True)


def test_a_run_of_no_job_is_none(town: Town) -> None:
    with pytest.raises(Undecodable):
        is_open(town, run_of("nonsense"))


# -- keys ---------------------------------------------------------------------------------------------------


def keyed(incarnation: int) -> Run:
    return run_of(KEYED, occurrence_id=f"{KEYED}.{incarnation}", key="invoice-55")


def put_key(town: Town, state: KeyState) -> None:
    town.put(LAYOUT.home(KEYED), keys.keyed_key("invoice-55"), codec.KEY_STATE.encode(state))


STATE = KeyState(
    incarnation=7, phase="pending", highest_run=0, unique="finished", changed_at=T0, run=keyed(7)
)


def test_the_run_of_a_key_is_open_unless_its_job_is_pending(town: Town) -> None:
    assert is_open(town, keyed(7))
    put_key(town, STATE)
    assert not is_open(town, keyed(7))
    assert is_open(town, keyed(6)), "an earlier job of the key"
    put_key(town, replace(STATE, phase="fired", highest_run=1, run=None))
    assert is_open(town, keyed(7))


def test_one_that_a_waiting_command_will_make_is_not(town: Town) -> None:
    command = Command(command_id=UUID, verb="create", handler="h", key="invoice-55", due_at=T0)
    town.put(LAYOUT.home(KEYED), keys.command_key(UUID), codec.COMMAND.encode(command))
    assert not is_open(town, keyed(ids.incarnation(3, 0)))
    assert is_open(town, keyed(ids.incarnation(3, 1)))


@pytest.mark.parametrize("consumed", [False, True])
def test_one_whose_end_was_told_is_not(town: Town, consumed: bool) -> None:
    done = keys.done_key(f"{KEYED}.7", 1)
    event = Event(id=KEYED, kind="done", at=T0, outcome="succeeded")
    town.put(LAYOUT.home(KEYED), done, codec.EVENT.encode(event))
    if consumed:
        town.put(LAYOUT.home(KEYED), done, None)
    assert not is_open(town, keyed(7), sure=True)


# -- schedules ----------------------------------------------------------------------------------------------

SPEC = ScheduleSpec(id="daily", handler="report", every_ms=1_000)
HOME = LAYOUT.home_of_name("daily")
DAILY = Schedule(
    incarnation=5, revision=1, spec=SPEC, created_at=T0, changed_at=T0, last_nominal=T0 + 3_000, buffer=(T0 + 2_000,)
)  # fmt: skip


def occurrence(nominal: int, kind: Any = "g", manual: str = "", incarnation: int = 5) -> Run:
    id_ = ids.schedule_occurrence("daily", incarnation, kind, manual, nominal)
    return run_of(id_, schedule_id="daily", nominal_at=nominal)


def put_schedule(town: Town, **changes: Any) -> None:
    town.put(HOME, keys.schedule_key("daily"), codec.SCHEDULE.encode(replace(DAILY, **changes)))


def test_an_instant_is_open_once_the_schedule_has_come_to_it(town: Town) -> None:
    put_schedule(town)
    found = {n: is_open(town, occurrence(T0 + n * 1_000)) for n in range(1, 6)}
    assert found == {1: True, 2: False, 3: True, 4: False, 5: False}, "2 waits in the buffer"
    assert is_open(town, occurrence(T0 + 5_000), sure=True)


def test_of_another_incarnation_only_an_earlier_one(town: Town) -> None:
    put_schedule(town)
    assert is_open(town, occurrence(T0 + 9_000, incarnation=4))
    assert not is_open(town, occurrence(T0 + 1_000, incarnation=6))


def test_of_a_schedule_that_is_gone_all_are(town: Town) -> None:
    assert is_open(town, occurrence(T0 + 1_000))


def wait(town: Town, verb: str) -> None:
    command = Command(command_id=UUID, verb=verb, schedule_id="daily")
    town.put(HOME, keys.command_key(UUID), codec.COMMAND.encode(command))


def test_a_trigger_is_kept_as_what_it_made_and_not_executed_again(town: Town) -> None:
    put_schedule(town)
    wait(town, "schedule.trigger")
    state = state_of(town)
    assert still_open(occurrence(T0 + 9_000, "t", UUID), state, LAYOUT, sure=False)
    assert [record["key"] for record in state.live(HOME)] == [keys.schedule_key("daily")]


@pytest.mark.parametrize(
    ("cursor", "reverse", "opened"),
    [(None, False, []), (2, False, [1, 2]), (2, True, [2, 3])],
    ids=["not begun", "forwards", "backwards"],
)
def test_an_instant_of_a_backfill_is_open_once_that_has_come_to_it(
    town: Town, cursor: int | None, reverse: bool, opened: list[int]
) -> None:
    backfill = Backfill(
        id=UUID,
        from_at=T0,
        to_at=T0 + 9_000,
        overlap="allow",
        rate=None,
        reverse=reverse,
        next_at=T0,
        cursor=None if cursor is None else T0 + cursor * 1_000,
    )
    put_schedule(town, backfills=(backfill,))
    assert [n for n in (1, 2, 3) if is_open(town, occurrence(T0 + n * 1_000, "b", UUID))] == opened


def test_a_backfill_that_is_over_has_come_to_all(town: Town) -> None:
    put_schedule(town)
    assert is_open(town, occurrence(T0 + 9_000, "b", UUID))
    wait(town, "schedule.backfill")
    assert not is_open(town, occurrence(T0 + 9_000, "b", UUID)), "it begins once more"


# -- what has ended -----------------------------------------------------------------------------------------


def test_the_group_says_what_is_finished_and_what_was_started(town: Town) -> None:
    token = (3 << 55) + (1 << 39) + (1 << 8) + 1
    reach = Reach(CommittedOffset(2, f"1;0;1+2;{token}@w1;0.0.3"), 0, 9, 9)
    finished = Finished(reach, ())
    run = run_of(JOB)
    assert [offset for offset in range(2, 7) if finished.has(offset, run)] == [3, 4]
    assert finished.mark == 2
    assert finished.start(5) is None
    for _ in range(6):
        town.cluster.append(Put(NAMES.work("default"), 0, JOB.encode(), codec.RUN.encode(run)))
    records = [*OpenRuns("default", finished, reach, state_of(town), LAYOUT).of(read(town))]
    assert [(r["offset"], r["starts"], r["token"]) for r in records] == [(2, 3, token), (5, 0, None)]
    assert records[0]["topic"] == "work.default"


def read(town: Town) -> Any:
    return reader(town).read(NAMES.work("default"), 0)


def test_metadata_of_another_version_stops_it() -> None:
    with pytest.raises(StopPartition):
        Finished(Reach(CommittedOffset(2, "2;"), 0, 9, 9), ())


def test_where_the_group_has_forgotten_the_acks_say_it(town: Town) -> None:
    others = [ids.anonymous_id(T0, n) for n in range(3)]
    for id_ in others:
        town.cluster.append(Put(NAMES.work("default"), 0, id_.encode(), codec.RUN.encode(run_of(id_))))
    acks = NAMES.acks("default")
    ack = Ack(
        job_id=others[1], occurrence_id=others[1], run=1, attempt=1, token=1, worker="w", handler="h",
        state=AckState.SUCCEEDED, at=T0, work_offset=1,
    )  # fmt: skip
    for key, value in (
        (b"t/x/1/1", b"nonsense"),
        (b"s/x", b"y"),
        (keys.terminal_key(others[1], 1, 1), codec.ACK.encode(ack)),
        (b"t/x/1/2", None),
    ):
        town.cluster.append(Put(acks, 0, key, value))
    reach = Reach(None, 3, 3, 3)
    finished = Finished(reach, reader(town).read(acks, 0))
    runs = OpenRuns("default", finished, reach, state_of(town), LAYOUT)
    assert [record["key"].decode() for record in runs.of(read(town))] == [others[0], others[2]]


def test_what_is_no_run_is_counted_and_left_out(town: Town) -> None:
    for value in (b"nonsense", codec.RUN.encode(run_of("nonsense")), None):
        town.cluster.append(Put(NAMES.work("default"), 0, b"x", value))
    reach = Reach(CommittedOffset(0), 0, 3, 3)
    runs = OpenRuns("default", Finished(reach, ()), reach, state_of(town), LAYOUT)
    assert list(runs.of(read(town))) == []
    assert runs.unreadable == 2
