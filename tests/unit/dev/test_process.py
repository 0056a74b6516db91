"""Stopping children within a deadline, and saying how they ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.dev.process import describe_exit, spawn, stop, sweep

READY_THEN = "import signal,sys,time; {}; print('up', flush=True); time.sleep(600)"


def start(first: str) -> subprocess.Popen[bytes]:
    process = spawn([sys.executable, "-c", READY_THEN.format(first)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_a_polite_child_is_terminated() -> None:
    with start("pass") as process:
        assert stop(process, 10) == -15


def test_a_deaf_child_is_killed_at_the_deadline() -> None:
    with start("signal.signal(signal.SIGTERM, signal.SIG_IGN)") as process:
        assert stop(process, 0.01) == -9


def test_sweep_ends_what_a_child_left(eventually: Callable[..., None], ended: Callable[[int], bool]) -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    with spawn([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        process.wait()
        assert not ended(grandchild)
        sweep(process)
        eventually(lambda: ended(grandchild))
    sweep(process)  # nothing left: no error


def test_child_writes_private_files(tmp_path: Path) -> None:
    with spawn([sys.executable, "-c", "open('x', 'w')"], cwd=tmp_path) as process:
        assert process.wait() == 0
    assert (tmp_path / "x").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("code", "words"), [(0, "code 0"), (3, "code 3"), (-9, "SIGKILL"), (-40, "signal 40")]
)
def test_describe_exit(code: int, words: str) -> None:
    assert describe_exit(code) == words
