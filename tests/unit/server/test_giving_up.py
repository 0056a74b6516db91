"""Long changes whose time is over, or whose asker has gone: they stop between two jobs, and what was done is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from unit.server.test_failures_api import SINCE, dead_job
from unit.server.test_jobs_api import IN_AN_HOUR, problem

from pipeline.core.errors import StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.readmodel.questions import JobsWanted
from pipeline.server import failure_actions, job_actions, replay_changes
from pipeline.server import store as stores
from pipeline.server.access import LOCAL
from pipeline.server.allowed import Allowed
from pipeline.server.store import SLOW


class Looks(Allowed):
    """Over after so many looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(60)
        self._looks = looks

    @property
    def over(self) -> bool:
        self._looks -= 1
        return self._looks < 0


def looking(monkeypatch: pytest.MonkeyPatch, where: Any, looks: int) -> None:
    monkeypatch.setattr(where, "Allowed", lambda _seconds: Looks(looks))


def noted(served: Any, verb: str) -> list[tuple[str, Any]]:
    return [(each.outcome, each.detail) for each in served.audits() if each.detail["verb"] == verb]


# -- many jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [False, True])
def test_what_many_changes_did_not_come_to_is_told_and_can_be_asked_for(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch, stop: bool
) -> None:
    ids = [served.post("/jobs", IN_AN_HOUR).json()["id"] for _ in range(5)]
    store.owner = lambda command: {"outcome": "cancelled", "job_id": command.job_id}
    looking(monkeypatch, job_actions, 3)
    told = served.post("/jobs/bulk", {"verb": "cancel", "ids": ids, "stop": stop}).json()
    assert (told["matched"], told["counts"]) == (5, {"cancelled": 3})
    assert (told["left"], told["left_ids"]) == (2, ids[3:])
    assert len(store.commands) == 3
    ((outcome, detail),) = noted(served, "jobs.cancel")
    assert (outcome, detail["count"], detail["left"]) == ("in_part", "5", "2")
    monkeypatch.undo()
    rest = {"verb": "cancel", "ids": told["left_ids"], "stop": stop}
    again = served.post("/jobs/bulk", rest).json()
    assert (again["counts"], again["left"], again["left_ids"]) == ({"cancelled": 2}, 0, [])


def test_what_is_not_found_in_time_is_left_alone(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.post("/jobs", IN_AN_HOUR)
    looking(monkeypatch, job_actions, 0)
    monkeypatch.setattr(job_actions, "LIST_LIMIT", 1)
    served.post("/jobs", IN_AN_HOUR)
    answer = served.post("/jobs/bulk", {"verb": "cancel", "filter": {"handler": "email.send"}})
    assert "narrow the filter" in problem(answer, 408, "too-slow")["detail"]
    assert store.commands == []


def test_many_changes_end_with_who_asked_for_them(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("pipeline.server.job_changes.UNDER_WAY", 5)
    for _ in range(12):
        served.post("/jobs", IN_AN_HOUR)
    eventually(lambda: served.get("/jobs/count").json()["count"] == 12)
    change = served.services.actions.change_jobs

    async def given_up() -> None:
        wanted = JobsWanted(handler="email.send")
        changing = asyncio.ensure_future(change(LOCAL, "cancel", wanted=wanted, wait="1s"))
        while len(store.commands) < 5:
            await asyncio.sleep(0.005)
        changing.cancel()
        await asyncio.wait([changing])
        assert changing.cancelled()

    served.run(given_up())
    eventually(lambda: noted(served, "jobs.cancel"))
    ((outcome, detail),) = noted(served, "jobs.cancel")
    assert (outcome, detail["count"]) == ("broken_off", "12")
    eventually(lambda: served.services.store._slow._free._value == SLOW)
    assert len(store.commands) == 5


def test_a_store_that_goes_away_meanwhile_is_told_with_what_was_done(
    serve: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.server.job_changes.UNDER_WAY", 2)
    served = serve()
    ids = [served.post("/jobs", IN_AN_HOUR).json()["id"] for _ in range(6)]
    store.owner = lambda command: {"outcome": "cancelled", "job_id": command.job_id}
    waits = served.services.store.connected.wait
    heard: list[Any] = []

    def away(delivery: Any) -> None:
        heard.append(delivery)
        if len(heard) == 3:
            raise StoreUnreachable("away")
        waits(delivery)

    monkeypatch.setattr(served.services.store.connected, "wait", away)
    detail = problem(served.post("/jobs/bulk", {"verb": "cancel", "ids": ids}), 503, "store-unreachable")[
        "detail"
    ]
    assert detail == "away; of 6: 2 cancelled, 2 unknown, 2 left"


# -- dead letters ------------------------------------------------------------------------------------------------


def test_letters_that_were_not_come_to_are_told(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        dead_job(served, store)
    store.owner = lambda command: {"outcome": "requeued", "job_id": command.job_id, "run": 2}
    looking(monkeypatch, failure_actions, 1)
    told = served.post("/dead/requeue", {"everything": True}).json()
    assert (told["matched"], told["requeued"], told["left"]) == (3, 1, 2)
    ((outcome, detail),) = noted(served, "dead.requeue")
    assert (outcome, detail["left"]) == ("in_part", "2")


def test_nobody_waits_for_answers_with_the_reader_in_their_hands(served: Any, store: Any) -> None:
    dead_job(served, store)
    held: list[bool] = []

    def owner(command: Any) -> Any:
        held.append(served.services.store.connected._reads.locked())
        return {"outcome": "requeued", "job_id": command.job_id, "run": 2}

    store.owner = owner
    assert served.post("/dead/requeue", {"everything": True}).json()["requeued"] == 1
    assert held == [False]


# -- replays -------------------------------------------------------------------------------------------------------


def test_a_replay_that_nobody_waits_for_any_more_does_not_begin(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    dead_job(served, store)
    store.clock.advance(1_000)
    surveyed, choose = threading.Event(), replay_changes.choose

    def slow(*args: Any) -> Any:
        surveyed.wait(20)
        return choose(*args)

    monkeypatch.setattr(replay_changes, "choose", slow)
    monkeypatch.setattr(failure_actions, "SURVEY_S", 0.05)
    answers = [served.post("/replays", SINCE) for _ in range(3)]
    assert [each.status_code for each in answers] == [503, 503, 409], (
        "two at once, however they are asked for"
    )
    free = served.services.store._slow._free._value
    assert free == SLOW, "none of the threads that others need is kept"
    surveyed.set()
    eventually(lambda: served.services.actions.replayer._free._value == replay_changes.AT_ONCE)
    assert served.get("/replays").json()["items"] == []
    assert noted(served, "replay.start") == []


def test_a_replay_is_audited_before_anything_of_it_runs(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_job(served, store)
    store.clock.advance(1_000)
    audited: list[Any] = []

    def carry_out(*_: Any, **__: Any) -> Any:
        audited.extend(noted(served, "replay.start"))
        raise StoreUnreachable("away")

    monkeypatch.setattr(replay_changes.Replays, "carry_out", carry_out)
    id_ = served.post("/replays", SINCE).json()["id"]
    ((outcome, detail),) = noted(served, "replay.start")
    assert (outcome, detail["replay"], detail["requested_by"]) == ("started", id_, "local")
    resumed = served.post(f"/replays/{id_}/resume")
    assert resumed.status_code == 202
    assert [each["replay"] for _, each in noted(served, "replay.resume")] == [id_]


# -- threads -------------------------------------------------------------------------------------------------------


def test_when_all_threads_are_taken_that_is_told(
    serve: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr(stores, "LONG_WAIT_S", 0.02)
    served = serve()
    served.post("/jobs", IN_AN_HOUR)
    end, slowly = threading.Event(), served.services.store.slowly
    taken = [asyncio.run_coroutine_threadsafe(slowly(end.wait, 20), served.loop) for _ in range(SLOW)]
    eventually(lambda: served.services.store._slow._free.locked())
    for each in taken[1:]:
        each.cancel()  # whoever gives up leaves a thread behind that is taken all the same
    answer = served.post("/replays", {**SINCE, "dry_run": True})
    assert "ask again" in problem(answer, 503, "busy")["detail"]
    assert answer.headers["retry-after"]
    assert served.services.store.problem is None
    end.set()
    assert taken[0].result(10)
    eventually(lambda: served.post("/replays", {**SINCE, "dry_run": True}).status_code == 200)


# -- outcomes that nobody heard of -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"key": "k"}])
def test_a_job_of_which_nobody_knows_is_audited_all_the_same(
    serve: Any, store: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any, more: Any
) -> None:
    served = serve()
    before = served.post("/jobs", IN_AN_HOUR).json()["id"]
    monkeypatch.setattr("pipeline.client.connection.DELIVERY_S", 0.2)
    served.hurry()
    (appender,) = store.appenders
    appender.silent = True
    problem(served.post("/jobs", {**IN_AN_HOUR, **more}), 503, "store-unreachable")
    appender.silent = False
    eventually(lambda: "unknown" in [outcome for outcome, _ in noted(served, "job.create")])
    (unknown,) = [each for each in served.audits() if each.outcome == "unknown"]
    made = {each.job_id for each in served.audits() if each.outcome == "created"} - {before}
    assert {unknown.job_id} == ({keyed_id("k")} if more else made)


def test_a_change_of_which_nobody_knows_is_audited_and_lost_ones_are_told(
    serve: Any, store: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    served = serve()
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    monkeypatch.setattr("pipeline.client.connection.DELIVERY_S", 0.2)
    (appender,) = store.appenders
    appender.silent = True
    problem(served.post(f"/jobs/{id_}/cancel"), 503, "store-unreachable")
    appender.silent = False
    eventually(lambda: [outcome for outcome, _ in noted(served, "job.cancel")] == ["unknown"])
    eventually(lambda: served.services.store.problem is None)
    appender.refused = StoreUnreachable("full")
    problem(served.post(f"/jobs/{id_}/cancel"), 503, "store-unreachable")
    eventually(lambda: [told["verb"] for action, told in served.events.lines if action == "audit_lost"])


def test_what_is_not_even_asked_for_is_not_audited(serve: Any, store: Any, eventually: Any) -> None:
    served = serve()
    id_ = served.post("/jobs", IN_AN_HOUR).json()["id"]
    served.hurry()
    (appender,) = store.appenders
    appender.silent, store.cluster.reachable = True, False
    problem(served.post("/jobs", IN_AN_HOUR), 503, "store-unreachable")
    problem(served.post(f"/jobs/{id_}/cancel"), 503, "store-unreachable")
    appender.silent, store.cluster.reachable = False, True
    eventually(lambda: served.services.store.problem is None)
    assert noted(served, "job.cancel") == []


def test_a_change_of_many_is_noted_before_anything_of_it_is_asked_for(served: Any, store: Any) -> None:
    """A server that is killed meanwhile leaves no other word of it."""
    ids = [served.post("/jobs", IN_AN_HOUR).json()["id"] for _ in range(3)]
    noted: list[list[Any]] = []

    def owner(command: Any) -> Any:
        noted.append(served.audits(begun=True))
        return {"outcome": "cancelled", "job_id": command.job_id}

    store.owner = owner
    served.post("/jobs/bulk", {"verb": "cancel", "ids": ids})
    assert len(noted) == 3
    ((first,), *_) = noted
    assert (first.detail["verb"], first.detail["count"]) == ("jobs.cancel", "3")
    (ended,) = (each for each in served.audits() if each.detail["verb"] == "jobs.cancel")
    assert ended.outcome == "done"
