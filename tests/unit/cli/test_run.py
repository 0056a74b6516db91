"""`dueline dispatcher --processes`."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pipeline.cli import several
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


def test_a_worker_whose_handlers_go_on_ends_at_once_threads_and_all(
    dueline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do would run beside the next attempt of their runs."""
    ended: list[int] = []
    monkeypatch.setattr("pipeline.service.run_worker", lambda *_, **__: False)
    monkeypatch.setattr("os._exit", ended.append)
    dueline("worker", "--app", "pipeline.dev.handlers:app")
    assert ended == [0]
