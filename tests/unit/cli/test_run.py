"""`dueline dispatcher` and `dueline worker`: what their options come to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.cli import reload, several
from pipeline.dev.supervisor import Role


@pytest.fixture
def roles(monkeypatch: pytest.MonkeyPatch) -> list[Role]:
    """What would have been run; it ends as if a process had refused."""
    asked: list[Role] = []

    class Supervisor:
        def __init__(self, given: list[Role], printer: object, *, together: bool) -> None:
            assert together
            asked.extend(given)

        def run(self) -> int:
            return 4

    monkeypatch.setattr(several, "Supervisor", Supervisor)
    return asked


def test_several_processes_are_one_command_each_and_a_refusal_is_the_exit_code(
    dueline: Any, roles: list[Role]
) -> None:
    assert dueline("dispatcher", "--processes", "3").code == 4
    assert [role.name for role in roles] == ["dispatcher/0", "dispatcher/1", "dispatcher/2"]
    assert {role.last_codes for role in roles} == {frozenset({4})}
    argv = roles[0].start.args[0]  # type: ignore[attr-defined]
    assert argv == [sys.executable, "-P", "-m", "pipeline", "dispatcher"]


def test_a_slot_is_for_one_process(dueline: Any, roles: list[Role]) -> None:
    ran = dueline("dispatcher", "--slot", "1", "--processes", "2")
    assert (ran.code, roles) == (2, [])
    assert "--slot" in ran.err


@pytest.mark.parametrize("count", ["0", "65", "many"])
def test_a_number_of_processes_is_between_1_and_64(dueline: Any, count: str) -> None:
    assert dueline("dispatcher", "--processes", count).code == 2


# -- workers -------------------------------------------------------------------------------------------------

APP = "pipeline.dev.handlers:app"


class Worker:
    """Stands for `run_worker`: how it was called, and what it answers."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.handlers: tuple[str, ...] = ()
        self.clean = True
        self.finished, self.left = 0, 0

    def __call__(self, settings: Any, app: Any, **asked: Any) -> bool:
        self.asked, self.handlers = asked, app.registry.names()
        if asked["burst"] is not None:
            asked["burst"].finished, asked["burst"].left = self.finished, self.left
        return self.clean


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    fake = Worker()
    monkeypatch.setattr("pipeline.service.run_worker", fake)
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    return fake


def test_a_worker_takes_the_settings_where_nothing_is_said(dueline: Any, worker: Worker) -> None:
    assert dueline("worker", "--app", APP) == (0, "", "")
    assert worker.asked == {"queues": {"default": 1}, "concurrency": 32, "burst": None, "target": APP}
    assert "demo.echo" in worker.handlers


def test_queues_carry_weights_and_concurrency_is_for_all(dueline: Any, worker: Worker) -> None:
    dueline("worker", "--app", APP, "--queue", "mail:3", "--queue", "media", "--concurrency", "8")
    assert (worker.asked["queues"], worker.asked["concurrency"]) == ({"mail": 3, "media": 1}, 8)


def test_without_an_application_it_runs_what_is_built_in(dueline: Any, worker: Worker) -> None:
    assert dueline("worker").code == 0
    assert "demo.echo" not in worker.handlers


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--queue", "mail:x"), "--queue: 'mail:x': a weight is a whole number"),
        (("--queue", "Mail"), "--queue: 'Mail' does not match"),
        (("--app", "nowhere"), "app: importing nowhere failed: there is no module nowhere"),
        (("--app", f"{APP}s"), "app: pipeline.dev.handlers has no 'apps'; did you mean 'app'?"),
        (("--burst", "--reload"), "--burst: does not go with --reload"),
        (("--burst", "--processes", "2"), "--burst: does not go with --processes"),
        (("--reload", "--processes", "2"), "--reload: does not go with --processes"),
        (("--concurrency", "0"), "--concurrency"),
    ],
)
def test_nonsense_is_one_line_and_starts_nothing(
    dueline: Any, worker: Worker, words: Sequence[str], problem: str
) -> None:
    ran = dueline("worker", *words)
    assert (ran.code, ran.out, worker.asked) == (2, "", {})
    assert problem in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_burst_says_how_many_runs_it_finished(dueline: Any, worker: Worker) -> None:
    worker.finished = 12
    assert dueline("worker", "--burst", "--json").json("worker_burst") == {"finished": 12, "left": 0}
    worker.left = 3
    assert dueline("worker", "--burst") == (
        0,
        "12 runs finished, 3 left: nobody here knows their handlers\n",
        "",
    )


def test_several_workers_are_told_all_but_their_number(
    dueline: Any, worker: Worker, roles: list[Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUELINE_DRAIN_TIMEOUT_MS", "60000")
    words = ("--app", APP, "--queue", "mail:3", "--queue", "media", "--concurrency", "8")
    assert dueline("worker", *words, "--processes", "2").code == 4
    assert [role.name for role in roles] == ["worker/0", "worker/1"]
    argv = roles[0].start.args[0]  # type: ignore[attr-defined]
    assert argv == [sys.executable, "-P", "-m", "pipeline", "worker", *words]
    assert {role.stop_timeout_s for role in roles} == {70.0}, "longer than it drains"


def test_reloading_runs_the_same_worker_as_a_child(
    dueline: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(reload, "run_reloading", lambda *given: asked.append(given) or 0)
    assert dueline("worker", "--reload", "--app", APP).code == 0
    assert asked == [(["worker", "--app", APP], APP, 40.0)]


def test_a_worker_whose_handlers_go_on_ends_at_once_threads_and_all(
    dueline: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do would run beside the next attempt of their runs."""
    ended: list[int] = []
    worker.clean = False
    monkeypatch.setattr("os._exit", ended.append)
    dueline("worker", "--app", "pipeline.dev.handlers:app")
    assert ended == [0]
