"""Ctrl-C: what a person is told, and that programs are told as ever."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

from pipeline.service.log import LogEvents
from pipeline.service.person import Spoken, spoken


@pytest.mark.parametrize(
    ("action", "fields", "sentence"),
    [
        ("draining", {"in_flight": 3}, "draining: 3 runs in flight; press Ctrl-C again to leave at once"),
        ("draining", {"in_flight": 1}, "draining: 1 run in flight; press Ctrl-C again to leave at once"),
        (
            "handed_over",
            {"queue": "mail", "partitions": [1]},
            "another worker goes on with queue mail; what runs here is finished here",
        ),
        ("drained", {"unfinished": 0, "drain_timeout_ms": 30_000}, "drained: nothing is left running"),
        (
            "drained",
            {"unfinished": 2, "drain_timeout_ms": 2_500},
            "drained: 2 runs did not finish within 2.5 s and may start elsewhere, unspent",
        ),
        (
            "not_given_back",
            {"attempts": 1},
            "1 run could not be given back: it starts again once this worker counts as gone",
        ),
    ],
)
def test_a_person_is_told_how_it_ends(
    capsys: pytest.CaptureFixture[str], action: str, fields: dict[str, Any], sentence: str
) -> None:
    Spoken(LogEvents("worker")).on(action, process="p", **fields)
    assert capsys.readouterr() == ("", f"dueline: {sentence}\n")


def test_everything_else_stays_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    Spoken(LogEvents("worker")).on("started", process="p")
    assert json.loads(capsys.readouterr().err)["action"] == "started"


def test_a_program_gets_nothing_but_json() -> None:
    events = LogEvents("worker")
    assert spoken(events) is events, "stderr is no terminal here"


def test_nobody_is_told_where_nothing_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """`dueline worker 2>&-`."""
    monkeypatch.setattr(sys, "stderr", None)
    events = LogEvents("worker")
    assert spoken(events) is events
    events.on("started", process="p")


STOPPED_TWICE = """
import os, signal, sys
from pipeline.service import loop
stop = loop.Stop()
stop.listen()
loop.SAME_SIGNAL_S = -1.0
os.kill(os.getpid(), signal.SIGINT)
assert stop.requested
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_second_ctrl_c_leaves_at_once_and_says_so_to_a_person(terminal: bool) -> None:
    reading, writing = pty.openpty() if terminal else os.pipe()
    done = subprocess.run([sys.executable, "-c", STOPPED_TWICE], stderr=writing, timeout=50, check=False)
    os.set_blocking(reading, False)
    try:
        said = os.read(reading, 1_000).decode()
    except BlockingIOError:
        said = ""
    os.close(writing)
    os.close(reading)
    assert done.returncode == 130
    assert said == ("left at once: runs in flight start again on another worker\r\n" if terminal else "")
