"""Whose a replay is: processes that stand still, die, are asked twice, or wake up in another installation."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pipeline import codec
from pipeline.codec import Era
from pipeline.core.job import AckState, Command, Run
from pipeline.core.keys import ERA_KEY
from pipeline.portion import REPLAY_HEADER
from pipeline.ports import Put
from pipeline.replay.record import Replay, ReplayState, of_event, to_event
from pipeline.replay.runner import Runner
from tests.unit.cli.replaying import ELSEWHERE, FROM, T0, TO, Owner, counts, fired, record, window


@pytest.fixture(autouse=True)
def meta(store: Any) -> None:
    store.cluster.create_topic(store.names.meta, 1)


@pytest.fixture
def owner(store: Any) -> Owner:
    return Owner(store)


@pytest.fixture(scope="module")
def dead_here() -> Runner:
    """A process of this machine that is not there any more."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return replace(Runner.here(), pid=child.pid)


def write(store: Any, replay: Replay) -> None:
    key = f"replay/{replay.id}/{replay.attempt}".encode()
    store.cluster.append(Put(store.names.meta, 0, key, codec.EVENT.encode(to_event(replay))))


def written(store: Any, replay_id: str) -> Replay:
    """Its highest attempt."""
    log = store.cluster.partition(store.names.meta, 0).read(0, 1_000)[0]
    found = [of_event(codec.EVENT.decode(r.value())) for r in log if replay_id.encode() in r.key()]
    return max(found, key=lambda each: each.attempt)


def meanwhile(store: Any, owner: Owner, what: Callable[[Command], None]) -> None:
    """Have this happen once, when an owner is asked for the first time: the process that asked stands still."""

    def answer(command: Command) -> Mapping[str, Any] | None:
        store.owner = owner
        what(command)
        return owner(command)

    store.owner = answer


def many(store: Any, count: int = 60) -> list[Run]:
    """Enough for several rounds."""
    runs = [fired(store, n, AckState.DEAD) for n in range(count)]
    store.clock.advance(1_000)
    return runs


# -- a process that stood still -------------------------------------------------------------------------------


def test_one_that_stood_still_while_it_was_taken_up_elsewhere_leaves_it_alone(
    dueline: Any, store: Any, owner: Owner
) -> None:
    runs = many(store)

    def taken(command: Command) -> None:
        store.clock.advance(31_000)
        mine = written(store, command.detail["replay"])
        write(store, replace(mine, attempt=1, runner=ELSEWHERE, resumed=1, updated_at=store.clock.now()))

    meanwhile(store, owner, taken)
    ran = dueline(*window("--rate", "100"))
    (shown,) = dueline("replay", "list", "--json").lines("replay_list")
    assert (ran.code, ran.out) == (4, "")
    assert (
        f"dueline: replay {shown['id']} was taken up by elsewhere (process 7) meanwhile: this process leaves it"
        f" alone\n" in ran.err
    )
    assert (shown["state"], shown["runner"], shown["resumed"]) == ("running", "elsewhere (process 7)", 1)
    assert owner.asked.total() < len(runs), "what it had sent before it stood still, and no more"


def test_one_that_stood_still_while_it_was_cancelled_leaves_it_alone(
    dueline: Any, store: Any, owner: Owner
) -> None:
    runs = many(store)

    def cancelled(command: Command) -> None:
        store.clock.advance(31_000)
        ended = written(store, command.detail["replay"])
        ended = replace(
            ended, attempt=1, runner=None, state=ReplayState.CANCELLED, reason="cancelled by ada@engine"
        )
        write(store, ended)

    meanwhile(store, owner, cancelled)
    ran = dueline(*window("--rate", "100"))
    assert (ran.code, ran.out) == (4, "")
    assert "is cancelled by now (cancelled by ada@engine): this process leaves it alone\n" in ran.err
    (shown,) = dueline("replay", "list", "--json").lines("replay_list")
    assert (shown["state"], shown["counts"]["replayed"]) == ("cancelled", 0)
    assert owner.asked.total() < len(runs)


def test_one_that_lost_it_while_it_looked_for_what_to_run_asks_for_nothing(
    dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that resume at once one goes on."""
    from pipeline.replay import Replays

    many(store, 3)
    left = record(store, runner=None, matched=3)
    resumed = Replays.resumed

    def late(self: Replays, *arguments: Any, **named: Any) -> Replay:
        write(store, replace(left, attempt=1, runner=ELSEWHERE, updated_at=store.clock.now()))
        return resumed(self, *arguments, **named)

    monkeypatch.setattr(Replays, "resumed", late)
    ran = dueline("replay", "resume", left.id)
    assert (ran.code, owner.commands) == (4, [])
    assert "is carried out by elsewhere (process 7)" in ran.err


# -- a process that died --------------------------------------------------------------------------------------


def test_whoever_is_in_the_way_is_told_how_to_go_on(dueline: Any, store: Any, owner: Owner) -> None:
    many(store, 1)
    left = record(store, runner=ELSEWHERE)
    store.clock.advance(3_000)
    ran = dueline("replay", "--from", FROM, "--to", TO)
    assert (ran.code, owner.commands) == (2, []), "--to is in the future"
    store.clock.advance(20_000)
    for words in (("resume", left.id), ("--from", FROM, "--only", "dead")):
        ran = dueline("replay", *words)
        assert ran.code == 4
        assert f"`dueline replay resume {left.id} --force`" in ran.err
        assert f"`dueline replay cancel {left.id}`" in ran.err


def test_the_same_request_goes_on_at_once_if_its_process_died_on_this_machine(
    dueline: Any, store: Any, owner: Owner, dead_here: Runner
) -> None:
    store.clock.advance(3_600_000)
    fired(store, 1, AckState.DEAD)
    left = record(store, runner=dead_here, matched=1)
    shown = dueline("replay", "show", left.id, "--json").json("replay_show")
    assert shown["state"] == "interrupted"
    ran = dueline("replay", "--from", FROM, "--to", TO)
    assert (ran.code, owner.asked.total()) == (0, 1)
    assert f"going on with replay {left.id}, which asked for the same" in ran.err
    assert ran.out.startswith(f"finished {left.id}: 1 of 1 replayed in all, the last ")


def test_the_same_request_is_refused_while_its_process_lives(dueline: Any, store: Any, owner: Owner) -> None:
    store.clock.advance(3_600_000)
    left = record(store, runner=Runner.here())
    for more in ((), ("--beside",)):
        ran = dueline("replay", "--from", FROM, "--to", TO, *more)
        assert (ran.code, ran.out) == (4, "")
        assert f"carried out by {socket.gethostname()} (process {os.getpid()}), heard of 0 s ago" in ran.err
        assert "going on" not in ran.err
        assert f"dueline replay resume {left.id} --force" in ran.err


def test_all_asked_for_again_is_one_replay(dueline: Any, store: Any, owner: Owner) -> None:
    """--force says that succeeded ones are meant, and nothing about another replay."""
    from pipeline.replay.chosen import REPLAYABLE
    from pipeline.survey import Filter

    store.clock.advance(3_600_000)
    record(store, runner=ELSEWHERE, wanted=Filter(outcomes=REPLAYABLE))
    fired(store, 1, AckState.SUCCEEDED)
    assert dueline("replay", "--from", FROM, "--to", TO, "--only", "all", "--force").code == 4
    assert len(dueline("replay", "list", "--json").lines("replay_list")) == 1


def test_what_is_left_of_a_killed_one_is_counted_once(dueline: Any, store: Any, owner: Owner) -> None:
    """Its own runs that failed again by now are those that it replayed; and what was asked for twice is one."""
    runs = many(store, 8)
    left = record(store, runner=None, matched=8)
    store.clock.advance(1)
    for n, run in enumerate(runs[:3]):
        again = replace(run, run=2, headers={REPLAY_HEADER: left.id if n < 2 else str(uuid.uuid4())})
        store.fire(again)
        at = store.cluster.partition(store.names.work("default"), store._work(run)).end - 1
        store.ack(again, AckState.DEAD, work_offset=at)
    owner.runs = {
        run.occurrence_id: 2 for run in runs[:4]
    }  # the fourth is emitted while the next process looks
    store.tell(
        0, "asked-before", outcome="replayed", detail={"verb": "replay", "replay": left.id, "replayed": "3"}
    )
    ran = dueline("replay", "resume", left.id, "--json")
    assert (ran.code, counts(ran.json("replay"))) == (0, {"replayed": 7, "changed": 1})
    shown = dueline("replay", "show", left.id, "--json").json("replay_show")
    assert counts(shown) == {"replayed": 7, "changed": 1}


# -- cancelling -----------------------------------------------------------------------------------------------


def test_one_whose_process_is_dead_is_cancelled_at_once_and_for_good(
    dueline: Any, store: Any, owner: Owner, dead_here: Runner
) -> None:
    left = record(store, runner=dead_here, matched=9)
    store.tell(0, "asked", outcome="replayed", detail={"verb": "replay", "replay": left.id, "replayed": "4"})
    assert dueline("replay", "cancel", left.id, "--json").json("replay_cancel")["outcome"] == "cancelled"
    shown = dueline("replay", "show", left.id, "--json").json("replay_show")
    assert (shown["state"], counts(shown), shown["runner"]) == ("cancelled", {"replayed": 4}, None)
    assert shown["reason"].startswith("cancelled by ")
    ran = dueline("replay", "resume", left.id, "--force")
    assert ran.code == 4
    assert f"replay {left.id} is cancelled (cancelled by " in ran.err
    assert "look with --dry-run what is left" in ran.err


def test_what_was_asked_for_before_it_was_cancelled_is_counted(
    dueline: Any, store: Any, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owners answer it when somebody has cancelled the replay already."""
    from pipeline.replay import carrying

    many(store)
    unanswered: list[Command] = []
    wait = carrying.wait

    def cancelled(command: Command) -> None:
        unanswered.append(command)
        mine = written(store, command.detail["replay"])
        mark = codec.EVENT.encode(to_event(mine))
        store.cluster.append(Put(store.names.meta, 0, f"replay/{mine.id}/cancel".encode(), mark))

    def answered(answers: Any, timeout: float) -> Any:
        while unanswered:
            command = unanswered.pop()
            run = codec.RUN.decode(codec.REPLAY_BATCH.decode(command.payload or b"").runs[0])
            store.tell(store.layout.home(run.job_id), command.command_id, **owner(command))
        return wait(answers, timeout)

    store.owner = cancelled
    monkeypatch.setattr(carrying, "wait", answered)
    ran = dueline(*window())
    assert ran.code == 4
    assert counts(ran.json("replay")) == {"replayed": owner.asked.total()}
    assert owner.asked.total() > 0


def test_a_cancel_is_not_undone_by_going_on(dueline: Any, store: Any, owner: Owner) -> None:
    many(store, 1)
    left = record(store, runner=ELSEWHERE)
    assert dueline("replay", "cancel", left.id, "--json").json("replay_cancel")["outcome"] == "cancelling"
    ran = dueline("replay", "resume", left.id, "--force")
    assert (ran.code, owner.commands) == (4, [])
    assert "is about to end (cancelled by " in ran.err
    store.clock.advance(31_000)
    (shown,) = dueline("replay", "list", "--json").lines("replay_list")
    assert shown["state"] == "cancelled", "its process was not heard of any more"
    assert dueline(*window()).code == 0, "it stands in nobody's way"
    assert owner.asked.total() == 1


# -- another installation, and a shorter memory ---------------------------------------------------------------


def test_one_of_a_backup_does_not_go_on_where_it_was_restored(dueline: Any, store: Any, owner: Owner) -> None:
    left = record(store, runner=None, matched=5)
    store.cluster.append(Put(store.names.meta, 0, ERA_KEY, codec.ERA.encode(Era(era=2))))
    ran = dueline("replay", "resume", left.id)
    assert (ran.code, ran.out) == (4, "")
    assert "it began in era 1, and this is era 2" in ran.err
    assert "--dry-run" in ran.err
    shown = dueline("replay", "show", left.id, "--json").json("replay_show")
    assert (shown["state"], shown["matched"]) == ("cancelled", 5)
    many(store, 1)
    assert dueline(*window()).code == 0, "it stands in nobody's way"


def forget(store: Any, until: int) -> None:
    """What the topics lose to their retention."""
    names = store.names
    for topic in (names.work("default"), names.acks("default")):
        for number in range(store.layout.queues["default"]):
            log = store.cluster.partition(topic, number)
            log.entries[:] = [
                None if each is not None and each.timestamp()[1] < until else each for each in log.entries
            ]
            log.start = next((n for n, each in enumerate(log.entries) if each is not None), len(log.entries))


def test_what_is_gone_from_the_store_is_told_and_is_no_success(
    dueline: Any, store: Any, owner: Owner
) -> None:
    early = [fired(store, n, AckState.DEAD) for n in range(20)]
    middle = store.clock.now() + 30_000
    store.clock.advance(50_000)
    late = [fired(store, n, AckState.DEAD, due_at=T0 + 50_000, nominal_at=T0 + 50_000) for n in range(20, 40)]
    store.clock.advance(1_000)
    left = record(store, runner=None, matched=40)
    forget(store, middle)
    ran = dueline("replay", "resume", left.id, "--json")
    found = ran.json("replay")
    assert (ran.code, counts(found)) == (4, {"replayed": len(late), "missing": len(early)})
    assert "may be gone from the store" in ran.err


def test_of_which_all_is_gone_it_does_not_go_on(dueline: Any, store: Any, owner: Owner) -> None:
    many(store, 20)
    left = record(store, runner=None, matched=20)
    store.clock.advance(120_000)
    for n in range(20, 40):
        fired(store, n, AckState.DEAD)
    forget(store, store.clock.now())
    ran = dueline("replay", "resume", left.id)
    assert (ran.code, ran.out) == (4, "")
    assert "all of the window is gone" in ran.err
