"""A thread that a handler left does not keep its worker from ending."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEFT = {
    "a thread": "threading.Thread(target=threading.Event().wait, name='forgotten').start()",
    "a pool": "ThreadPoolExecutor(1, 'forgotten').submit(threading.Event().wait)",
    "what it registered for the exit": "atexit.register(threading.Event().wait)",
    "nothing": "",
}
SCRIPT = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
from pipeline.service.ending import end_soon
from pipeline.service.log import LogEvents
atexit.register(print, "flushed", flush=True)
{left}
print("done", flush=True)
end_soon(LogEvents("worker"), {seconds})
"""


@pytest.mark.parametrize("what", LEFT)
def test_a_process_ends_whatever_was_left_in_it(what: str) -> None:
    seconds = 60 if what == "nothing" else 0.2
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(left=LEFT[what], seconds=seconds)],
        capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert ran.returncode == 0
    assert ran.stdout.startswith("done\n")
    assert ("left_behind" in ran.stderr) == (what != "nothing")
    if what in ("a thread", "nothing"):
        assert ("forgotten" in ran.stderr) == (what == "a thread")
    if what == "nothing":
        assert ran.stdout == "done\nflushed\n"
