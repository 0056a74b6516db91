"""`dueline replay` over a store in memory, whose owner emits the next run of whatever it is asked to replay."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, Command, Run
from pipeline.core.times import format_instant
from pipeline.ports import Put
from pipeline.replay.record import Replay, ReplayState, to_event
from pipeline.survey import Filter, Part, State, Window

T0 = 1_800_000_000_000
FROM = format_instant(T0 - 3_600_000)
TO = format_instant(T0 + 60_000)


@pytest.fixture(autouse=True)
def meta(store: Any) -> None:
    store.cluster.create_topic(store.names.meta, 1)
    store.cluster.create_topic(store.names.dead, 1)


class Owner:
    """Emits and answers as the owners do; `asked` is how often it was asked for each occurrence."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.runs: dict[str, int] = {}
        self.asked: Counter[str] = Counter()
        self.commands: list[Command] = []
        self.silent = False
        store.owner = self

    def __call__(self, command: Command) -> Mapping[str, Any] | None:
        self.commands.append(command)
        if self.silent:
            return None
        batch = codec.REPLAY_BATCH.decode(command.payload or b"")
        counts: Counter[str] = Counter()
        for value in batch.runs:
            run = codec.RUN.decode(value)
            self.asked[run.occurrence_id] += 1
            if self.runs.get(run.occurrence_id, run.run) > run.run:
                counts["superseded"] += 1
                continue
            counts["replayed"] += 1
            self.runs[run.occurrence_id] = run.run + 1
            self.store.fire(replace(run, run=run.run + 1))
        told = {name: str(n) for name, n in counts.items()}
        return {"outcome": "replayed", "detail": {**command.detail, "verb": "replay", **told}}


@pytest.fixture
def owner(store: Any) -> Owner:
    return Owner(store)


def fired(store: Any, n: int, state: AckState | None = None, **fields: Any) -> Run:
    """A job that fired a minute ago, and how it ended."""
    id_ = anonymous_id(T0 - 60_000, n)
    run = Run(
        job_id=id_,
        occurrence_id=id_,
        due_at=T0 - 60_000,
        run=1,
        queue="default",
        handler="mail",
        created_at=T0 - 90_000,
        nominal_at=T0 - 60_000,
        idempotency_key=id_,
        payload=b"{}",
    )
    run = replace(run, **fields)
    store.fire(run)
    if state is not None:
        at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
        store.ack(run, state, work_offset=at)
    return run


def counts(answer: Any) -> dict[str, int]:
    return {name: n for name, n in answer["counts"].items() if n}


def window(*more: str) -> tuple[str, ...]:
    return ("replay", "--from", FROM, "--json", *more)


# -- what is run again ----------------------------------------------------------------------------------------


def test_a_dry_run_counts_by_outcome_and_handler_and_asks_for_nothing(
    dueline: Any, store: Any, owner: Owner
) -> None:
    for n in range(4):
        fired(store, n, AckState.DEAD)
    fired(store, 10, AckState.SUCCEEDED, handler="bill")
    fired(store, 11)
    store.clock.advance(1_000)
    found = dueline(*window("--dry-run", "--rate", "2")).json("replay")
    assert (found["matched"], found["waiting"], found["estimated_seconds"]) == (4, 1, 2.0)
    assert found["outcomes"] == {"dead": 4, "succeeded": 1, "waiting": 1}
    assert found["handlers"] == {"mail": {"dead": 4, "waiting": 1}, "bill": {"succeeded": 1}}
    assert (found["id"], owner.commands) == (None, [])
    assert list(store.cluster.partition(store.names.meta, 0).read(0, 10)[0]) == []


def test_what_failed_is_run_again_once_and_nothing_else(dueline: Any, store: Any, owner: Owner) -> None:
    dead = [fired(store, n, AckState.DEAD).occurrence_id for n in range(30)]
    fired(store, 100, AckState.SUCCEEDED)
    fired(store, 101)
    store.clock.advance(1_000)
    ran = dueline(*window())
    found = ran.json("replay")
    assert (ran.code, found["state"], counts(found)) == (0, "finished", {"replayed": 30})
    assert owner.asked == Counter(dead)
    assert {command.detail["replay"] for command in owner.commands} == {found["id"]}
    assert all(codec.REPLAY_BATCH.decode(command.payload or b"").dead for command in owner.commands)


def test_asked_for_again_there_is_nothing_left(dueline: Any, store: Any, owner: Owner) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    dueline(*window())
    found = dueline(*window()).json("replay")
    assert (found["matched"], found["waiting"], found["id"]) == (0, 1, None)
    assert len(owner.asked) == 1


@pytest.mark.parametrize(
    ("only", "state"),
    [
        ("dead", {AckState.DEAD}),
        ("failed", {AckState.DEAD, AckState.FAILED}),
        ("all", {AckState.DEAD, AckState.FAILED, AckState.SUCCEEDED, AckState.CANCELLED}),
    ],
)
def test_outcomes(dueline: Any, store: Any, owner: Owner, only: str, state: set[AckState]) -> None:
    states = (*(s for s in AckState if s.terminal and s is not AckState.RETRYING), None)
    runs = {each: fired(store, n, each).occurrence_id for n, each in enumerate(states)}
    store.clock.advance(1_000)
    dueline(*window("--only", only, "--force"))
    assert set(owner.asked) == {runs[each] for each in state}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (("--handler", "bill"), {"handler": "bill"}),
        (("--label", "team=a", "--label", "x=y"), {"labels": {"team": "a", "x": "y", "z": "1"}}),
        (("--queue", "other"), {"queue": "other"}),
    ],
)
def test_filters(dueline: Any, store: Any, owner: Owner, options: Any, fields: Any) -> None:
    store.add_queues({"other": 2})
    wanted = fired(store, 1, None, **fields)
    store.ack(wanted, AckState.DEAD)
    fired(store, 2, AckState.DEAD, labels={"team": "a"})
    store.clock.advance(1_000)
    dueline(*window(*options))
    assert set(owner.asked) == {wanted.occurrence_id}


def test_a_bucket_of_due_time(dueline: Any, store: Any, owner: Owner) -> None:
    width = store.layout.bucket_width_ms
    inside = fired(store, 1, AckState.DEAD)
    fired(store, 2, AckState.DEAD, due_at=T0 - 60_000 - width, nominal_at=T0 - 60_000 - width)
    store.clock.advance(1_000)
    found = dueline("replay", "--bucket", format_instant(T0 - 60_000 + 5), "--json").json("replay")
    assert found["from"] == format_instant((T0 - 60_000) // width * width)
    assert set(owner.asked) == {inside.occurrence_id}


def test_the_command_is_for_one_home_and_one_queue_and_bounded(
    dueline: Any, store: Any, owner: Owner
) -> None:
    for n in range(3):
        fired(store, n, AckState.DEAD, payload=bytes(300_000))
    store.clock.advance(1_000)
    dueline(*window())
    homes = [
        {
            store.layout.home(codec.RUN.decode(v).job_id)
            for v in codec.REPLAY_BATCH.decode(c.payload or b"").runs
        }
        for c in owner.commands
    ]
    assert all(len(each) == 1 for each in homes)
    assert all(len(c.payload or b"") < 700_000 for c in owner.commands)
    assert {command.queue for command in owner.commands} == {"default"}


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--from", format_instant(T0 + 99_999_999)), "--from"),
        (("--from", FROM, "--to", format_instant(T0 + 99_999_999)), "--to"),
        (("--from", FROM, "--to", format_instant(T0 - 7_200_000)), "--to"),
        (("--from", "yesterday"), "--from"),
        (("--from", FROM, "--only", "all"), "--only"),
        (("--from", FROM, "--only", "most"), "--only"),
        (("--from", FROM, "--handler", "A B"), "--handler"),
        (("--from", FROM, "--queue", "gone"), "--queue"),
        (("--from", FROM, "--label", "team"), "--label"),
        (("--from", FROM, "--rate", "0"), "--rate"),
        (("--from", FROM, "--bucket", FROM), "--bucket"),
        (("--to", TO), "--from"),
        ((), "--from"),
        (("--from", FROM, "list"), "list"),
    ],
)
def test_bad_input_is_one_line_that_names_the_option(
    dueline: Any, store: Any, owner: Owner, options: Any, says: str
) -> None:
    ran = dueline("replay", *options)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1
    assert owner.commands == []


def test_many_want_a_yes(dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.cli.replay.MANY", 2)
    for n in range(3):
        fired(store, n, AckState.DEAD)
    store.clock.advance(1_000)
    ran = dueline(*window())
    assert (ran.code, owner.commands) == (4, [])
    assert dueline(*window("--yes")).code == 0
    assert len(owner.asked) == 3


def test_another_one_that_is_not_finished_stands_in_the_way(dueline: Any, store: Any, owner: Owner) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    other = record(store, runner="elsewhere")
    ran = dueline(*window("--only", "dead"))
    assert ran.code == 4
    assert other.id in ran.err
    assert owner.commands == []
    assert len(dueline("replay", "list", "--json").lines("replay_list")) == 1, "nothing is left of it"
    assert dueline(*window("--only", "dead", "--force")).code == 0
    assert len(owner.asked) == 1


def test_one_of_another_handler_does_not(dueline: Any, store: Any, owner: Owner) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    record(store, wanted=Filter(handler="bill", outcomes=frozenset({State.FAILED})))
    assert dueline(*window("--handler", "mail")).code == 0


# -- resuming, listing, cancelling ----------------------------------------------------------------------------


def record(store: Any, **fields: Any) -> Replay:
    """One that stands on `meta`, as its process left it."""
    values = {
        "state": ReplayState.RUNNING,
        "window": Window(from_ms=T0 - 3_600_000, to_ms=T0 + 60_000),
        "wanted": Filter(outcomes=frozenset({State.FAILED})),
        "requested_by": "ada@engine",
        "created_at": store.clock.now(),
        "updated_at": store.clock.now(),
        "matched": 7,
        **fields,
    }
    found = Replay(id=str(uuid.uuid4()), **values)
    store.cluster.append(
        Put(store.names.meta, 0, b"replay/" + found.id.encode(), codec.EVENT.encode(to_event(found)))
    )
    return found


def test_one_that_was_interrupted_goes_on_where_it_was(dueline: Any, store: Any, owner: Owner) -> None:
    runs = [fired(store, n, AckState.DEAD) for n in range(20)]
    store.clock.advance(1_000)
    partition = store._work(runs[0])
    before = sorted(run.occurrence_id for run in runs if store._work(run) < partition)
    left = record(store, part=Part("default", partition), runner="")
    store.clock.advance(100)
    ran = dueline("replay", "resume", left.id, "--json")
    found = ran.json("replay")
    assert (ran.code, found["id"], found["state"]) == (0, left.id, "finished")
    assert not set(before) & set(owner.asked)
    assert len(owner.asked) == 20 - len(before)
    assert dueline("replay", "show", left.id, "--json").json("replay_show")["resumed"] == 1
    assert dueline("replay", "resume", left.id).code == 4


def test_the_same_request_again_goes_on_with_it(dueline: Any, store: Any, owner: Owner) -> None:
    store.clock.advance(3_600_000)
    fired(store, 1, AckState.DEAD)
    left = record(store, runner="")
    found = dueline("replay", "--from", FROM, "--to", TO, "--json").json("replay")
    assert found["id"] == left.id


def test_what_was_emitted_since_it_began_is_not_run_again_by_it(
    dueline: Any, store: Any, owner: Owner
) -> None:
    """Its own runs that failed again, and retries of others: it is about what was there when it began."""
    left = record(store, runner="")
    store.clock.advance(1_000)
    fired(store, 1, AckState.DEAD)
    found = dueline("replay", "resume", left.id, "--json").json("replay")
    assert counts(found) == {"changed": 1}
    assert owner.commands == []


def test_what_is_acked_after_it_was_counted_is_left_alone(
    dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.replay import Replays

    run = fired(store, 1, AckState.DEAD)
    fired(store, 2, AckState.DEAD)
    store.clock.advance(1_000)
    begin = Replays.begin

    def late(self: Replays, *arguments: Any) -> Replay:
        at = store.cluster.partition(store.names.work("default"), store._work(run))
        (offset,) = (r.offset() for r in at.read(0, 100)[0] if r.key() == run.occurrence_id.encode())
        store.ack(run, AckState.SUCCEEDED, attempt=2, work_offset=offset)
        return begin(self, *arguments)

    monkeypatch.setattr(Replays, "begin", late)
    found = dueline(*window()).json("replay")
    assert counts(found) == {"changed": 1, "replayed": 1}
    assert run.occurrence_id not in owner.asked


def test_one_that_another_process_carries_out_is_left_to_it(dueline: Any, store: Any, owner: Owner) -> None:
    left = record(store, runner="elsewhere")
    ran = dueline("replay", "resume", left.id)
    assert ran.code == 4
    assert "elsewhere" in ran.err
    store.clock.advance(31_000)
    assert dueline("replay", "resume", left.id).code == 0


def record_of(store: Any) -> Replay:
    return Replay(
        id=str(uuid.uuid4()),
        state=ReplayState.RUNNING,
        window=Window(from_ms=T0, to_ms=T0 + 1),
        wanted=Filter(),
        requested_by="ada@engine",
        created_at=T0,
        updated_at=T0,
    )


def test_list_and_show(dueline: Any, store: Any) -> None:
    assert dueline("replay", "list").out == "no replays\n"
    first = record(store, runner="elsewhere", counts={"replayed": 3})
    second = record(store, state=ReplayState.FINISHED)
    listed = dueline("replay", "list", "--json").lines("replay_list")
    assert [(each["id"], each["state"]) for each in listed] == [
        (second.id, "finished"),
        (first.id, "running"),
    ]
    shown = dueline("replay", "show", first.id, "--json").json("replay_show")
    assert (shown["counts"]["replayed"], shown["requested_by"]) == (3, "ada@engine")
    store.clock.advance(31_000)
    assert dueline("replay", "show", first.id, "--json").json("replay_show")["state"] == "interrupted"
    assert first.id in dueline("replay", "list").out
    assert "ada@engine" in dueline("replay", "show", first.id).out
    assert dueline("replay", "show", str(uuid.uuid4())).code == 3


def test_cancel(dueline: Any, store: Any) -> None:
    running, left = record(store, runner="elsewhere"), record(store, runner="")
    assert dueline("replay", "cancel", running.id, "--json").json("replay_cancel")["outcome"] == "cancelling"
    assert dueline("replay", "show", running.id, "--json").json("replay_show")["state"] == "cancelling"
    assert dueline("replay", "cancel", left.id, "--json").json("replay_cancel")["outcome"] == "cancelled"
    assert dueline("replay", "show", left.id, "--json").json("replay_show")["state"] == "cancelled"
    assert dueline("replay", "cancel", left.id).code == 4
    assert dueline("replay", "cancel", str(uuid.uuid4())).code == 3


def test_one_that_is_cancelled_meanwhile_ends_where_it_stands(
    dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.replay.carrying.CANCEL_S", -1.0)
    for n in range(60):
        fired(store, n, AckState.DEAD)
    store.clock.advance(1_000)

    def cancelled_by_somebody(command: Command) -> Mapping[str, Any] | None:
        mark = b"replay/" + command.detail["replay"].encode() + b"/cancel"
        store.cluster.append(Put(store.names.meta, 0, mark, codec.EVENT.encode(to_event(record_of(store)))))
        return owner(command)

    store.owner = cancelled_by_somebody
    ran = dueline(*window())
    found = ran.json("replay")
    assert (ran.code, found["state"]) == (0, "cancelled")
    assert 0 < len(owner.asked) < 60
    (shown,) = dueline("replay", "list", "--json").lines("replay_list")
    assert shown["state"] == "cancelled"


def test_what_no_owner_took_is_told(dueline: Any, store: Any) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    store.owner = lambda command: {"outcome": "refused", "reason": "payload: too long"}
    ran = dueline(*window())
    assert (ran.code, counts(ran.json("replay"))) == (4, {"refused": 1})
    assert "payload: too long" in ran.err


def test_no_owner_answers(dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.replay.carrying.PATIENCE_MS", 50)
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    owner.silent = True
    ran = dueline(*window())
    assert (ran.code, ran.out) == (1, "")
    (left,) = dueline("replay", "list", "--json").lines("replay_list")
    assert left["state"] == "interrupted"
    assert f"dueline replay resume {left['id']}" in ran.err
    owner.silent = False
    assert dueline("replay", "resume", left["id"]).code == 0
    assert len(owner.asked) == 1


def test_a_record_that_nobody_can_read_hides_no_other(dueline: Any, store: Any) -> None:
    for value in (b"garbage", codec.EVENT.encode(replace(to_event(record(store)), outcome="later"))):
        store.cluster.append(Put(store.names.meta, 0, b"replay/" + uuid.uuid4().hex.encode(), value))
    store.cluster.append(Put(store.names.meta, 0, keys.LAYOUT_KEY, b"x"))
    assert len(dueline("replay", "list", "--json").lines("replay_list")) == 1
