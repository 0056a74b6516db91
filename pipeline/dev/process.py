"""Child processes that never outlive this one, and stopping them within a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

LAUNCHER = Path(__file__).with_name("die_with_parent.py")


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start `argv`, to be killed by the kernel when the calling thread ends (call it from the main thread).

    It gets a process group of its own: a Ctrl-C in the terminal reaches only us, and we stop in order.
    """
    return subprocess.Popen(  # noqa: S603 - argv is ours, no shell
        [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        umask=0o077,
    )


def stop(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """SIGTERM, then SIGKILL after `timeout_s`; its return code."""
    process.terminate()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def sweep(process: subprocess.Popen[bytes]) -> None:
    """Kill what an ended child left behind in its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing left; macOS says so differently
        os.killpg(process.pid, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """`code 3` or `SIGKILL`, from a Popen return code."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
