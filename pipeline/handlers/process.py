"""Running one program to its end or ours, with its whole process group, and the end of what it printed."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LAUNCHER = Path(__file__).with_name("launch.py")
OUTPUT_KEPT = 16 * 1024
LOOK_S = 0.1
"""How often the worker's wish to end is looked at."""
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of each process of the group: seconds of CPU, bytes of address space, open files."""

    cpu_s: int
    memory: int
    files: int


class Ended(NamedTuple):
    """`code` as `subprocess` has it: negative = killed by that signal. `stopped`: because we wished so."""

    code: int
    output: bytes
    stopped: bool


def run_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: bytes,
    limits: Limits,
    stop: Callable[[], bool],
) -> Ended:
    """Run `argv` in a new session, in a directory that is removed afterwards, until it ends or `stop()` is true.

    When the program has ended, whatever it left behind in its group is killed, and who still holds its output is not
    waited for. What leaves the group (setsid) gets away.
    """
    with tempfile.TemporaryDirectory(prefix="dueline-", ignore_cleanup_errors=True) as directory:
        own = {"HOME": directory, "TMPDIR": directory}
        with _started(argv, {**environment, **own}, directory, stdin, limits) as process:
            return _watched(process, stop)


@contextmanager
def _started(
    argv: Sequence[str], environment: Mapping[str, str], directory: str, stdin: bytes, limits: Limits
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, its group killed and reaped at the end, whatever happens meanwhile."""
    bounds = [str(number) for number in (os.getpid(), limits.cpu_s, limits.memory, limits.files)]
    # A file rather than a pipe: a program that reads none of it holds up nobody.
    with tempfile.TemporaryFile(dir=directory) as source:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(  # noqa: S603 - the program was checked, and no shell sees the arguments
            [sys.executable, "-I", "-S", str(LAUNCHER), *bounds, *argv],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            _signal(process, signal.SIGKILL)


def _watched(process: subprocess.Popen[bytes], stop: Callable[[], bool]) -> Ended:
    assert process.stdout is not None
    pipe, tail = process.stdout.fileno(), bytearray()
    os.set_blocking(pipe, False)
    ended = os.pidfd_open(process.pid)
    deadline: float | None = None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(LOOK_S)}
                if pipe in ready and not _read(pipe, tail):
                    selector.unregister(pipe)
                if ended in ready:
                    break
                deadline = _end(process, stop, deadline)
    finally:
        os.close(ended)
    # Not reaped yet, so its number, which is the group's, is nobody else's.
    _signal(process, signal.SIGKILL)
    code = process.wait()
    _read(pipe, tail)
    return Ended(code, bytes(tail), deadline is not None)


def _end(process: subprocess.Popen[bytes], stop: Callable[[], bool], deadline: float | None) -> float | None:
    """Ask the group to end once `stop()` is true, and make it when the grace is over. Returns when that is."""
    if deadline is None:
        if not stop():
            return None
        _signal(process, signal.SIGTERM)
        return time.monotonic() + GRACE_S
    if time.monotonic() >= deadline:
        _signal(process, signal.SIGKILL)
    return deadline


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.returncode is None:  # once it is reaped its number may be another group's
        with suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(process.pid, number)


def _read(pipe: int, tail: bytearray) -> bool:
    """Take what is there and keep its end; False at the end of the file."""
    for _ in range(256):  # a program that prints without end must not keep us from looking at the clock
        try:
            chunk = os.read(pipe, 65_536)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        tail += chunk
        del tail[:-OUTPUT_KEPT]
    return True
