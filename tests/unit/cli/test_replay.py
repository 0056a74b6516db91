"""`dueline replay` over a store in memory, whose owner emits the next run of whatever it is asked to replay."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import codec
from pipeline.cli import served
from pipeline.core import keys
from pipeline.core.errors import NotFound
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState, Command, Event
from pipeline.core.times import format_instant
from pipeline.ports import Put
from pipeline.replay.chosen import REPLAYABLE
from pipeline.replay.record import Replay, ReplayState, to_event
from pipeline.survey import Filter, Part, State, Window
from tests.unit.cli.replaying import ELSEWHERE, FROM, T0, TO, Owner, counts, fired, record, window


@pytest.fixture(autouse=True)
def meta(store: Any) -> None:
    store.cluster.create_topic(store.names.meta, 1)
    store.cluster.create_topic(store.names.dead, 1)


@pytest.fixture
def owner(store: Any) -> Owner:
    return Owner(store)


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--from", TO, "--to", FROM), "--to"),
        (("--from", FROM, "--to", FROM), "--to"),
        (("--from", "yesterday"), "--from"),
        (("--bucket", "yesterday"), "--bucket"),
        (("--from", FROM, "--only", "all"), "--only"),
        (("--from", FROM, "--handler", "A B"), "--handler"),
        (("--from", FROM, "--label", "team"), "--label"),
        *((("--from", FROM, "--rate", rate), "--rate") for rate in ("-1", "nan", "inf", "many")),
        (("resume", "x", "--rate", "nan"), "--rate"),
    ],
)
def test_what_can_be_told_without_the_store_is_told_without_it(
    dueline: Any, store: Any, options: Any, says: str
) -> None:
    store.cluster.reachable = False
    ran = dueline("replay", *options)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "nothing that was due"),
        (("--handler", "mial"), "nothing of handler mial that was due"),
        (("--schedule", "nightly", "--label", "a=b"), "nothing of schedule nightly, label a=b that was due"),
        (("--key-prefix", "inv"), "nothing of key prefix inv that was due"),
    ],
)
def test_that_nothing_of_this_name_fired_is_told(
    dueline: Any, store: Any, owner: Owner, options: Any, says: str
) -> None:
    if options:
        fired(store, 1, AckState.DEAD)
        store.clock.advance(1_000)
    for more in (("--dry-run",), ()):
        ran = dueline(*window(*options, *more))
        assert (ran.code, ran.json("replay")["matched"]) == (0, 0)
        assert says in ran.err
    assert owner.commands == []
    assert "has fired" not in dueline(*window("--only", "unacked", "--dry-run")).err or not options


def test_what_the_topics_cannot_tell_is_told(dueline: Any, store: Any, owner: Owner) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    assert f"the store began at {format_instant(T0)}: nothing is known of before\n" in dueline(*window()).err
    event = codec.EVENT.encode(Event(id="b", kind="restored", at=T0 + 500))
    store.cluster.append(Put(store.names.meta, 0, keys.restored_key(2), event))
    said = dueline(*window()).err
    assert f"the store was restored at {format_instant(T0 + 500)}: what fired before is on no topic" in said


def test_what_a_newer_version_wrote_is_told(dueline: Any, store: Any, owner: Owner) -> None:
    run = fired(store, 1, AckState.DEAD)
    newer = b"\xc3\x01" + (77).to_bytes(8, "little")
    store.layout = replace(store.layout, fingerprints=(f"{77:016x}",))
    store.cluster.append(Put(store.names.work("default"), store._work(run), b"unknown", newer))
    store.clock.advance(1_000)
    ran = dueline(*window("--dry-run"))
    assert ran.json("replay")["matched"] == 1
    assert "records of a newer version on unit.work.default cannot be read here (1)" in ran.err


def test_a_dry_run_says_of_how_many(dueline: Any, store: Any, owner: Owner) -> None:
    for n in range(4):
        fired(store, n, AckState.DEAD)
    fired(store, 10, AckState.SUCCEEDED, handler="bill")
    store.clock.advance(1_000)
    out = dueline("replay", "--from", FROM, "--only", "all", "--force", "--dry-run").out
    assert [line.split() for line in out.splitlines()] == [
        ["HANDLER", "DEAD", "SUCCEEDED"],
        ["mail", "4", "0"],
        ["bill", "0", "1"],
        ["in", "all", "4", "1"],
        ["5", "of", "5", "would", "be", "replayed", "(only", "all),", "0", "wait", "for", "a", "worker"],
    ]
    out = dueline("replay", "--from", FROM, "--dry-run").out
    assert "4 of 5 would be replayed (only failed), 0 wait for a worker\n" in out


def test_of_one_key_the_latest_job_is_run_again(dueline: Any, store: Any, owner: Owner) -> None:
    id_ = keyed_id("invoice-55")
    for incarnation in (3, 12):
        run = fired(store, 1, job_id=id_, occurrence_id=f"{id_}.{incarnation}", key="invoice-55")
        at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
        store.ack(run, AckState.DEAD, work_offset=at)
    store.clock.advance(1_000)
    out = dueline("replay", "--from", FROM, "--dry-run").out
    assert "1 of 2 would be replayed" in out
    assert "1 are left alone: their key had another job since" in out
    found = dueline(*window()).json("replay")
    assert (found["matched"], found["key_taken"], counts(found)) == (1, 1, {"replayed": 1})
    assert owner.asked == {f"{id_}.12": 1}


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
    other = record(store, runner=ELSEWHERE)
    ran = dueline(*window("--only", "dead"))
    assert ran.code == 4
    assert other.id in ran.err
    assert owner.commands == []
    assert len(dueline("replay", "list", "--json").lines("replay_list")) == 1, "nothing is left of it"
    assert dueline(*window("--only", "dead", "--force")).code == 4, "that is about what succeeded"
    assert dueline(*window("--only", "dead", "--beside")).code == 0
    assert len(owner.asked) == 1


def test_one_of_another_handler_does_not(dueline: Any, store: Any, owner: Owner) -> None:
    fired(store, 1, AckState.DEAD)
    store.clock.advance(1_000)
    record(store, wanted=Filter(handler="bill", outcomes=frozenset({State.FAILED})))
    assert dueline(*window("--handler", "mail")).code == 0


# -- resuming, listing, cancelling ----------------------------------------------------------------------------


def test_one_that_was_interrupted_goes_on_where_it_was(dueline: Any, store: Any, owner: Owner) -> None:
    runs = [fired(store, n, AckState.DEAD) for n in range(20)]
    store.clock.advance(1_000)
    partition = store._work(runs[0])
    before = sorted(run.occurrence_id for run in runs if store._work(run) < partition)
    left = record(store, part=Part("default", partition), runner=None)
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
    left = record(store, runner=None)
    found = dueline("replay", "--from", FROM, "--to", TO, "--json").json("replay")
    assert found["id"] == left.id


def test_what_was_emitted_since_it_began_is_not_run_again_by_it(
    dueline: Any, store: Any, owner: Owner
) -> None:
    """Its own runs that failed again, and retries of others: it is about what was there when it began."""
    left = record(store, runner=None, matched=1)
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
    left = record(store, runner=ELSEWHERE)
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
    first = record(store, runner=ELSEWHERE, counts={"replayed": 3})
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
    record(store, wanted=Filter(handler="mail", outcomes=REPLAYABLE))
    assert "  all handler=mail  " in dueline("replay", "list").out
    assert "ada@engine" in dueline("replay", "show", first.id).out
    assert dueline("replay", "show", str(uuid.uuid4())).code == 3


def test_how_a_replay_stands_now_a_server_is_asked(
    dueline: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server answers, without one: how it is found and asked `served` has tests of."""
    replay = record(store, state=ReplayState.FINISHED, counts={"replayed": 3})
    assert dueline("replay", "show", replay.id, "--json").json("replay_show")["outcomes"] is None
    assert "outcomes" not in dueline("replay", "show", replay.id).out
    asked: list[tuple[str, str]] = []
    told: dict[str, Any] = {"counts": {"succeeded": 2, "dead": 1}, "capped": False}

    def ask(method: str, path: str, **_: Any) -> dict[str, Any]:
        asked.append((method, path))
        if not told:
            raise NotFound("nothing of this id")
        return {"outcomes": dict(told)}

    server = SimpleNamespace(calls=SimpleNamespace(ask=ask))
    monkeypatch.setattr(served, "running_server", lambda: nullcontext(server))
    assert dueline("replay", "show", replay.id, "--json").json("replay_show")["outcomes"] == told
    assert asked == [("GET", f"/replays/{replay.id}")]
    assert "outcomes      2 succeeded, 1 dead\n" in dueline("replay", "show", replay.id).out
    told["capped"] = True
    assert "2 succeeded, 1 dead (not all are counted)\n" in dueline("replay", "show", replay.id).out
    told.clear()
    ran = dueline("replay", "show", replay.id, "--json")
    assert (ran.code, ran.json("replay_show")["outcomes"]) == (0, None)
    assert "how it stands now is not known: nothing of this id" in ran.err


def test_cancel(dueline: Any, store: Any) -> None:
    running, left = record(store, runner=ELSEWHERE), record(store, runner=None)
    assert dueline("replay", "cancel", running.id, "--json").json("replay_cancel")["outcome"] == "cancelling"
    assert dueline("replay", "show", running.id, "--json").json("replay_show")["state"] == "cancelling"
    assert dueline("replay", "cancel", left.id, "--json").json("replay_cancel")["outcome"] == "cancelled"
    assert dueline("replay", "show", left.id, "--json").json("replay_show")["state"] == "cancelled"
    assert dueline("replay", "cancel", left.id).code == 4
    assert dueline("replay", "cancel", str(uuid.uuid4())).code == 3


def test_one_that_is_cancelled_meanwhile_ends_where_it_stands(
    dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(60):
        fired(store, n, AckState.DEAD)
    store.clock.advance(1_000)

    def cancelled_by_somebody(command: Command) -> Mapping[str, Any] | None:
        mark = b"replay/" + command.detail["replay"].encode() + b"/cancel"
        event = replace(to_event(record_of(store)), reason="cancelled by ada@engine")
        store.cluster.append(Put(store.names.meta, 0, mark, codec.EVENT.encode(event)))
        return owner(command)

    store.owner = cancelled_by_somebody
    ran = dueline(*window())
    found = ran.json("replay")
    assert (ran.code, found["state"]) == (4, "cancelled")
    assert "dueline: cancelled by ada@engine\n" in ran.err
    assert 0 < len(owner.asked) < 60
    assert counts(found) == {"replayed": len(owner.asked)}, "what was under way is counted too"
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
    monkeypatch.setattr("pipeline.replay.carrying.PATIENCE_MS", 60_000)
    assert dueline("replay", "resume", left["id"]).code == 0
    assert len(owner.asked) == 1


def test_a_record_that_nobody_can_read_hides_no_other(dueline: Any, store: Any) -> None:
    for value in (b"garbage", codec.EVENT.encode(replace(to_event(record(store)), outcome="later"))):
        key = b"replay/%b/0" % uuid.uuid4().hex.encode()
        store.cluster.append(Put(store.names.meta, 0, key, value))
    store.cluster.append(Put(store.names.meta, 0, keys.LAYOUT_KEY, b"x"))
    assert len(dueline("replay", "list", "--json").lines("replay_list")) == 1
