"""Replays as the owner executes them: what becomes of each occurrence, in which portions, and what is told of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.codec.wire import write_instant
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, keyed_id, occurrence_of_keyed
from pipeline.core.job import Command, Event, Highest, ReplayBatch, Run
from pipeline.core.token import LAST_RUN
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.emission import Emission
from pipeline.portion import REPLAY_HEADER, RUNS_LIMIT, Portion, at_most
from pipeline.ports import Action
from tests.unit import test_recurring as recurring
from tests.unit.owner import LAYOUT, NAMES, NOW, Owner, run_of
from tests.unit.test_commands import create, done, fired, retry

REPLAY_ID = "3c9c5b1e-0000-4000-8000-000000000000"
DUE = NOW - 60_000
HOME = LAYOUT.home(anonymous_id(DUE, 1))
KEY = "invoice-55"
KEYED = keyed_id(KEY)


@pytest.fixture
def owner() -> Owner:
    return Owner(HOME)


def seen(*, count: int = 1, **changes: Any) -> list[Run]:
    """Runs of anonymous jobs at home here, as they were seen on the work topic: emitted a minute ago."""
    ids = (anonymous_id(DUE, n) for n in range(100_000))
    at_home = (id_ for id_ in ids if LAYOUT.home(id_) == HOME)
    fields = {"due_at": DUE, "nominal_at": DUE, "failures": 3, **changes}
    return [run_of(next(at_home), **fields) for _ in range(count)]


def ask(
    owner: Owner, runs: Iterable[Run | bytes], *, dead: bool = False, at: int = NOW, **fields: Any
) -> bytes:
    """Put the command; its record key."""
    values = tuple(run if isinstance(run, bytes) else codec.RUN.encode(run) for run in runs)
    batch = codec.REPLAY_BATCH.encode(ReplayBatch(runs=values, dead=dead))
    wanted = {"payload": batch, "detail": {"replay": REPLAY_ID}, "requested_by": "me@here", **fields}
    command = Command(command_id=str(uuid.uuid4()), verb="replay", **wanted)
    key = keys.command_key(command.command_id)
    owner.read(key, codec.COMMAND.encode(command), at=at)
    return key


def emitted(emission: Emission) -> list[Run]:
    return [codec.RUN.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.work("default")]


def replayed(owner: Owner, runs: Iterable[Run | bytes], **fields: Any) -> tuple[Event, list[Run]]:
    """The answer, and what was emitted."""
    ask(owner, runs, **fields)
    emission = owner.commit(NOW)
    return owner.answers(emission)[-1], emitted(emission)


def counts(answer: Event) -> dict[str, int]:
    about = ("verb", "replay", "requested_by")
    return {name: int(text) for name, text in answer.detail.items() if name not in about}


# -- what becomes of an occurrence ----------------------------------------------------------------------------


def test_h29_each_gets_one_further_run_under_its_own_idempotency_key(owner: Owner) -> None:
    runs = seen(count=3, idempotency_key="once", headers={"trace": "t"}, labels={"a": "b"})
    answer, again = replayed(owner, runs)
    assert (answer.outcome, counts(answer)) == ("replayed", {"replayed": 3})
    assert answer.detail["replay"] == REPLAY_ID
    assert answer.detail["requested_by"] == "me@here"
    for before, after in zip(runs, again, strict=True):
        headers = {"trace": "t", REPLAY_HEADER: REPLAY_ID}
        assert after == replace(before, run=2, failures=0, due_at=NOW, headers=headers)
    assert [codec.HIGHEST.decode(owner.entry(keys.highest_key(r.occurrence_id)).value).run for r in runs] == [
        2
    ] * 3


def test_its_work_partition_is_that_of_the_run_before(owner: Owner) -> None:
    (run,) = seen(serial="customer-7")
    ask(owner, [run])
    (put,) = [put for put in owner.commit(NOW).puts if put.topic == NAMES.work("default")]
    assert put.partition == LAYOUT.work_partition("default", "customer-7")
    assert put.key == run.occurrence_id.encode()


def test_asked_twice_it_runs_once(owner: Owner) -> None:
    runs = seen(count=2)
    replayed(owner, runs)
    answer, again = replayed(owner, runs)
    assert (counts(answer), again) == ({"superseded": 2}, [])


def test_asked_twice_within_one_batch_it_runs_once(owner: Owner) -> None:
    runs = seen(count=2)
    ask(owner, runs)
    ask(owner, runs)
    emission = owner.commit(NOW)
    assert [counts(answer) for answer in owner.answers(emission)] == [{"replayed": 2}, {"superseded": 2}]
    assert len(emitted(emission)) == 2


def test_the_same_command_again_is_answered_again_and_emits_nothing(owner: Owner) -> None:
    key = ask(owner, seen())
    value = owner.entry(key).value
    first = owner.answers(owner.commit(NOW))
    owner.read(key, value)
    emission = owner.commit(NOW)
    assert owner.answers(emission) == first
    assert emitted(emission) == []


def test_what_was_replayed_can_be_replayed_again_by_who_has_seen_it(owner: Owner) -> None:
    _, first = replayed(owner, seen())
    answer, again = replayed(owner, first)
    assert counts(answer) == {"replayed": 1}
    assert [run.run for run in again] == [3]


def test_a_waiting_retry_is_brought_forward(owner: Owner) -> None:
    (run,) = seen()
    retry(owner, run, NOW + 3_600_000)
    answer, again = replayed(owner, [run])
    assert (counts(answer), again) == ({"brought_forward": 1}, [])
    (forward,) = fired(owner, NOW)
    assert (forward.run, forward.failures) == (2, 1)


def test_a_late_retry_of_the_run_before_is_superseded(owner: Owner) -> None:
    (run,) = seen()
    replayed(owner, [run])
    retry(owner, run, NOW)
    assert fired(owner, NOW) == []


def test_what_somebody_stopped_is_left_alone(owner: Owner) -> None:
    (run,) = seen()
    assert owner.command("stop", job_id=run.job_id, seen_run=1, queue="default").outcome == "stopping"
    answer, again = replayed(owner, [run])
    assert (counts(answer), again) == ({"stopped": 1}, [])
    assert owner.entry(keys.stopped_key(run.occurrence_id)).action == Action.EXPIRE


@pytest.mark.parametrize("dead", [True, False])
def test_dead_letters_are_dealt_with_where_there_are_some(owner: Owner, dead: bool) -> None:
    (run,) = seen(run=4)
    owner.read(
        keys.highest_key(run.occurrence_id),
        codec.HIGHEST.encode(Highest(run=4, queue="default", work_partition=0)),
    )
    ask(owner, [run], dead=dead)
    marks = [put for put in owner.commit(NOW).puts if put.topic == NAMES.dead]
    expected = [(run.occurrence_id.encode(), None, [("end", b"requeued"), ("run", b"5")])] if dead else []
    assert [(put.key, put.value, put.headers) for put in marks] == expected


# -- keys and schedules ---------------------------------------------------------------------------------------


@pytest.fixture
def keyed() -> Owner:
    return Owner(LAYOUT.home(KEYED))


def test_a_key_that_its_job_still_holds_stays_its_own(keyed: Owner) -> None:
    create(keyed)
    (run,) = fired(keyed, NOW + 5_000)
    answer, (again,) = replayed(keyed, [run])
    assert counts(answer) == {"replayed": 1}
    done(keyed, run)
    assert create(keyed).outcome == "existing", "the run before the last one ends nothing"
    done(keyed, again)
    assert create(keyed).outcome == "created"


def test_an_older_incarnation_is_left_alone_while_another_job_holds_its_key(keyed: Owner) -> None:
    create(keyed)
    (run,) = fired(keyed, NOW + 5_000)
    done(keyed, run, "dead")
    create(keyed)
    before = keyed.entry(keys.keyed_key(KEY)).value
    answer, again = replayed(keyed, [run], dead=True)
    assert (counts(answer), again) == ({"key_taken": 1}, [])
    assert keyed.entry(keys.keyed_key(KEY)).value == before


def test_an_older_incarnation_runs_again_once_its_key_is_free_and_does_not_take_it(keyed: Owner) -> None:
    create(keyed)
    (run,) = fired(keyed, NOW + 5_000)
    done(keyed, run, "dead")
    answer, (again,) = replayed(keyed, [run], dead=True)
    assert counts(answer) == {"replayed": 1}
    assert create(keyed).outcome == "created"
    done(keyed, again)
    assert create(keyed).outcome == "existing", "its end frees nobody else's key"


def of_key(incarnation: int, **changes: Any) -> Run:
    """What was seen of one of the jobs that the key has had."""
    return run_of(KEYED, occurrence_id=occurrence_of_keyed(KEYED, incarnation), key=KEY, **changes)


def test_of_the_jobs_of_one_key_none_runs_beside_a_later_one(keyed: Owner) -> None:
    """The later one was run again, its key is free by now, and all that is remembered of it is its highest run."""
    answer, (again,) = replayed(keyed, [of_key(10)])
    assert counts(answer) == {"replayed": 1}
    done(keyed, again)
    answer, again = replayed(keyed, [of_key(9), of_key(3), of_key(11)])
    assert counts(answer) == {"key_taken": 2, "replayed": 1}
    assert [run.occurrence_id for run in again] == [occurrence_of_keyed(KEYED, 11)]
    answer, again = replayed(keyed, [of_key(10, run=2)])
    assert (counts(answer), again) == ({"key_taken": 1}, [])


def test_of_the_jobs_of_one_key_in_one_command_none_runs_behind_a_later_one(keyed: Owner) -> None:
    answer, again = replayed(keyed, [of_key(9), of_key(3)])
    assert counts(answer) == {"replayed": 1, "key_taken": 1}
    assert [run.occurrence_id for run in again] == [occurrence_of_keyed(KEYED, 9)]


def test_a_key_that_has_had_many_jobs(keyed: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked through page by page, in the order of their texts."""
    monkeypatch.setattr("pipeline.commands.replay.PAGE", 3)
    for incarnation in range(1, 13):
        assert counts(replayed(keyed, [of_key(incarnation)])[0]) == {"replayed": 1}
    others = ((keyed_id(f"invoice-{n}"), f"invoice-{n}") for n in range(1_000))
    id_, key = next((id_, key) for id_, key in others if LAYOUT.home(id_) == keyed.number and id_ > KEYED)
    replayed(keyed, [run_of(id_, occurrence_id=occurrence_of_keyed(id_, 99), key=key)])
    assert counts(replayed(keyed, [of_key(11, run=2), of_key(12, run=2)])[0]) == {
        "key_taken": 1,
        "replayed": 1,
    }


def test_a_keyed_job_that_is_still_to_fire_is_left_to_that(keyed: Owner) -> None:
    create(keyed)
    state = codec.KEY_STATE.decode(keyed.entry(keys.keyed_key(KEY)).value)
    assert state.run is not None
    answer, again = replayed(keyed, [state.run])
    assert (counts(answer), again) == ({"pending": 1}, [])


PLAIN = {"failures": 0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"payload": b""},
        {"payload": b'{"n":1}' * 1_000},
        {"handler": "a", "created_at": NOW - 999_999},
        {"labels": {"a": "b"}},
        {"headers": {REPLAY_HEADER: "another"}},
        {"serial": "s"},
        {"idempotency_key": "own"},
        {"nominal_at": DUE - 1},
        {"failures": 2},
        {"attempt_limit": 3},
        {"last_success_at": 5},
        {"run": 3},
    ],
)
def test_the_short_way_and_the_long_one_make_the_same_run(owner: Owner, changes: dict[str, Any]) -> None:
    (run,) = seen(**{**PLAIN, **changes})
    _, (again,) = replayed(owner, [run])
    headers = {**run.headers, REPLAY_HEADER: REPLAY_ID}
    assert again == replace(run, run=run.run + 1, failures=0, due_at=NOW, headers=headers)


def test_an_occurrence_of_a_schedule_keeps_what_its_schedule_made_it(owner: Owner) -> None:
    id_ = next(
        f"s:nightly-{n}:7:g::{NOW}" for n in range(1_000) if LAYOUT.home(f"s:nightly-{n}:7:g::{NOW}") == HOME
    )
    run = run_of(id_, schedule_id=id_.split(":")[1], nominal_at=NOW - 60_000, last_success_at=5)
    answer, (again,) = replayed(owner, [run])
    assert counts(answer) == {"replayed": 1}
    assert (again.schedule_id, again.nominal_at, again.last_success_at) == (run.schedule_id, NOW - 60_000, 5)


def test_a_schedule_hears_how_it_ended_and_is_not_held_up_by_it() -> None:
    owner = Owner(LAYOUT.home_of_name(recurring.ID))
    recurring.make(owner, overlap="skip")
    first = recurring.FIRST
    (run,) = recurring.runs(owner.commit(first))
    recurring.done(owner, run.occurrence_id, outcome="dead", at=first + 1)
    ask(owner, [run], dead=True, at=first + 2)
    assert [again.run for again in recurring.runs(owner.commit(first + 2))] == [2]
    assert recurring.state(owner).open == ()
    assert recurring.nominals(owner.commit(first + recurring.MINUTE)) == [1], "though the replayed one runs"
    recurring.done(owner, run.occurrence_id, run=1, outcome="dead", at=first + recurring.MINUTE)
    recurring.done(owner, run.occurrence_id, run=2, at=first + recurring.MINUTE)
    counts = recurring.state(owner).counts
    assert (counts["fired"], counts["dead"], counts["succeeded"]) == (2, 1, 1)


# -- what is refused ------------------------------------------------------------------------------------------


def stranger(**changes: Any) -> Run:
    id_ = next(id_ for n in range(100_000) if LAYOUT.home(id_ := anonymous_id(NOW, n)) != HOME)
    return run_of(id_, **changes)


def over_long(instant: int) -> bytes:
    """A plain run in which six bytes that no reader takes stand for this one."""
    return codec.RUN.encode(seen(failures=0)[0]).replace(write_instant(instant), b"\x80\x80\x80\x80\x80\x00")


BAD: dict[str, tuple[Run | bytes, str]] = {
    "nothing of ours": (b"garbage", "single-object"),
    "another home": (stranger(), "has another home"),
    "another occurrence": (replace(seen()[0], occurrence_id=stranger().job_id), "is none of its job"),
    "no incarnation": (run_of(KEYED), "is no job or occurrence id"),
    "another queue": (replace(seen()[0], queue="email"), "is not that of the command"),
    "no next token": (replace(seen()[0], run=LAST_RUN), "has no next one that has a token"),
    "an illegal handler": (replace(seen()[0], handler="A B"), "illegal name"),
    "more than a run": (codec.RUN.encode(seen(failures=0)[0]) + b"x", "trailing bytes"),
    "less than a run": (codec.RUN.encode(seen(failures=0)[0])[:-1], "truncated"),
    "an over-long due time": (over_long(DUE), "over-long integer"),
    "an over-long time of creation": (over_long(NOW), "over-long integer"),
    "too long": (replace(seen()[0], payload=bytes(2_090_000)), "leaves no room"),
    "plain and too long": (replace(seen(failures=0)[0], payload=bytes(2_090_000)), "leaves no room"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_run_that_can_never_be_emitted_is_refused_by_itself(owner: Owner, bad: str) -> None:
    value, problem = BAD[bad]
    good = seen(count=2)[1]
    answer, again = replayed(owner, [good, value])
    assert counts(answer) == {"refused": 1, "replayed": 1}
    assert problem in (answer.reason or "")
    assert [run.job_id for run in again] == [good.job_id]


def test_an_unknown_queue_is_refused(owner: Owner) -> None:
    answer, again = replayed(owner, seen(queue="gone"), queue="gone")
    assert (counts(answer), again) == ({"refused": 1}, [])
    assert answer.reason == "unknown_queue: gone"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"payload": None}, "payload: missing"),
        ({"payload": b"{}"}, "payload: no single-object"),
        ({"payload": codec.REPLAY_BATCH.encode(ReplayBatch(runs=(), dead=False))}, "payload: 0 runs"),
        (
            {"payload": codec.REPLAY_BATCH.encode(ReplayBatch(runs=(b"",) * (RUNS_LIMIT + 1), dead=False))},
            "payload: 1001 runs",
        ),
        ({"queue": "NO"}, "queue: illegal name"),
        ({"detail": {"replay": "x" * 81}}, "detail: replay: is longer"),
    ],
)
def test_a_command_that_says_nothing_sound_is_refused(
    owner: Owner, fields: dict[str, Any], problem: str
) -> None:
    answer, again = replayed(owner, seen(), **fields)
    assert (answer.outcome, again) == ("refused", [])
    assert (answer.reason or "").startswith(problem)


def test_it_is_moved_home_like_any_command(owner: Owner) -> None:
    run = stranger()
    key = ask(owner, [run])
    assert (owner.entry(key).action, owner.entry(key).detail) == (Action.MOVE, str(LAYOUT.home(run.job_id)))
    ask(owner, [b"garbage"])
    (answer,) = owner.answers(owner.commit(NOW))
    assert counts(answer) == {"refused": 1}


# -- portions -------------------------------------------------------------------------------------------------


def portion(owner: Owner, key: bytes, runs: int) -> Emission:
    emission = owner.partition.emit([at_most(owner.entry(key), runs)], NOW)
    owner.partition.applied(emission)
    return emission


def test_it_is_settled_in_portions_and_answered_once(owner: Owner) -> None:
    runs = seen(count=5)
    key = ask(owner, runs)
    assert Portion.of(owner.entry(key).detail) == ("default", 5, 5, {}, "")
    first, second = portion(owner, key, 2), portion(owner, key, 2)
    assert (owner.answers(first), owner.answers(second)) == ([], [])
    last = portion(owner, key, 2)
    again = [run.job_id for emission in (first, second, last) for run in emitted(emission)]
    assert again == [run.job_id for run in runs]
    assert [counts(answer) for answer in owner.answers(last)] == [{"replayed": 5}]
    assert owner.index.entry(owner.number, key) is None


def test_what_is_not_emitted_takes_no_room_and_a_portion_never_stands_still(owner: Owner) -> None:
    runs = seen(count=6)
    replayed(owner, runs[:4])
    key = ask(owner, runs)
    assert [run.job_id for run in emitted(portion(owner, key, 1))] == [runs[4].job_id]
    last = portion(owner, key, 1)
    assert [counts(answer) for answer in owner.answers(last)] == [{"superseded": 4, "replayed": 2}]


def test_an_index_made_anew_begins_the_command_anew_and_emits_nothing_twice(owner: Owner) -> None:
    runs = seen(count=4)
    key = ask(owner, runs)
    value = owner.entry(key).value
    first = portion(owner, key, 3)
    rebuilt = Owner(HOME)
    rebuilt.read(key, value)
    rebuilt.echo(first)
    emission = rebuilt.commit(NOW)
    assert [run.job_id for run in emitted(emission)] == [runs[3].job_id]
    assert counts(rebuilt.answers(emission)[0]) == {"superseded": 3, "replayed": 1}


def test_it_stands_behind_what_was_due_before_it_was_asked_for(owner: Owner) -> None:
    key = ask(owner, seen(), at=NOW - 5)
    assert owner.entry(key).fire_at == NOW - 5
    assert owner.index.size(HOME) == 0, "it is no job"


def test_an_occurrence_named_with_its_incarnation_is_none_of_another_key(keyed: Owner) -> None:
    run = run_of(KEYED, occurrence_id=occurrence_of_keyed(KEYED, 3), key=KEY)
    answer, (again,) = replayed(keyed, [run])
    assert counts(answer) == {"replayed": 1}
    assert again.occurrence_id == run.occurrence_id


# -- the highest run ------------------------------------------------------------------------------------------


def test_an_index_made_anew_keeps_a_highest_run_as_long_as_its_owner_does(owner: Owner) -> None:
    """Its owner does not read it back, so the record says until when, whatever time the log gives it."""
    (run,) = seen()
    ask(owner, [run])
    emission = owner.partition.emit(owner.index.due(owner.number, NOW, 10), NOW)
    owner.partition.applied(emission)
    key = keys.highest_key(run.occurrence_id)
    (put,) = [put for put in emission.puts if put.key == key]
    kept = owner.entry(key)
    owner.read(key, put.value, at=NOW + 7, headers=put.headers)
    assert owner.entry(key) == kept, "not folded again"
    rebuilt = Owner(HOME)
    offset = rebuilt.read(key, put.value, at=NOW + 7, headers=put.headers)
    assert rebuilt.entry(key) == kept._replace(offset=offset)
    assert kept.fire_at == NOW + WORK_RETENTION_MS


@pytest.mark.parametrize("until", [b"", b"soon", b"-1", b"\xd9\xa1", b"9" * 17])
def test_what_a_header_says_of_a_highest_run_is_a_number_or_nothing(owner: Owner, until: bytes) -> None:
    (run,) = seen()
    key, value = keys.highest_key(run.occurrence_id), Highest(run=2, queue="default", work_partition=0)
    owner.read(key, codec.HIGHEST.encode(value), headers=[("until", until)])
    assert owner.entry(key).fire_at == NOW + WORK_RETENTION_MS
    owner.read(key, codec.HIGHEST.encode(value), headers=[("until", b"9" * 16)])
    assert owner.entry(key).fire_at <= NOW + WORK_RETENTION_MS + 60_000, "nobody keeps it for ever"
