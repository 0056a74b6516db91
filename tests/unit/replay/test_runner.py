"""Which process carries a replay out: told apart from every other, and known to be gone only where that is certain."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from pipeline.replay.runner import Runner


def test_each_time_is_another_one() -> None:
    one, two = Runner.here(), Runner.here()
    assert one != two
    assert (one.host, one.pid) == (two.host, os.getpid())
    assert Runner.of(one.text) == one
    assert str(one) == f"{one.host} (process {os.getpid()})"


@pytest.mark.parametrize("text", ["", "engine", "engine (process 7)", "engine x boot n1", "a 1 b c d"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        Runner.of(text)


def test_a_process_is_gone_if_it_was_here_and_is_not_any_more() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    me, dead = Runner.here(), replace(Runner.here(), pid=child.pid)
    assert not me.gone()
    assert dead.gone()
    for unsure in ({"host": "elsewhere"}, {"place": "another boot"}, {"place": ""}, {"pid": 0}, {"pid": -1}):
        assert not replace(dead, **unsure).gone()


def test_a_process_of_somebody_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    assert not Runner.here().gone()


def test_where_nobody_can_tell_it_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", nowhere)
    assert Runner.here().place == ""
    assert not Runner.here().gone()
