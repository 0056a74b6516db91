"""Signals mean a drain to the worker, and nothing of that to the processes that its handlers fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import multiprocessing, signal, threading
from pipeline.service.loop import Stop, listen
{listen}
fork = multiprocessing.get_context("fork")

def handler():
    with fork.Pool(2) as pool:                       # leaving it ends its processes by SIGTERM
        assert pool.map(abs, [-1, 2]) == [1, 2]
    begun = fork.Event()
    alone = fork.Process(target=lambda: (begun.set(), threading.Event().wait()), daemon=True)
    alone.start()
    begun.wait(30)
    alone.terminate()
    alone.join(30)
    print(alone.exitcode)

thread = threading.Thread(target=handler, daemon=True)
thread.start()
thread.join(40)
print(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)
"""


@pytest.mark.parametrize(
    "listening", ["Stop().listen()", "listen(lambda number, frame: None)"], ids=["worker", "pool"]
)
def test_a_handler_ends_what_it_has_forked(listening: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(listen=listening)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode) == ("-15\nTrue\n", 0), ran.stderr
