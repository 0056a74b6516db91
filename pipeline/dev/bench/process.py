"""A dispatcher or a worker as an operator starts it, and what its log lines say it has reached, to the millisecond."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

import pipeline
from pipeline.config import Settings
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.dev.bench.observer import wall_ms
from pipeline.dev.demo.cast import environment
from pipeline.dev.process import describe_exit, spawn, sweep

STOP_TIMEOUT_S = 20.0
POLL_S = 0.005
LAST_LINES = 5


class Moment(NamedTuple):
    """A log line: when it arrived here (epoch ms) and what it says."""

    at: int
    action: str
    partitions: frozenset[int]
    process: str = ""


class OwnerProcess:
    """One `dueline dispatcher` or `dueline worker`. Start it from the main thread: it dies with that. `more`:
    variables beside those of the settings."""

    role: ClassVar[str]

    def __init__(
        self, settings: Settings, state: Path, log: Path, *options: str, more: Mapping[str, str] | None = None
    ) -> None:
        env = {**environment(settings, os.environ), "DUELINE_STATE_DIR": str(state), **(more or {})}
        self.log = log
        self.started_at = wall_ms()
        # As `python -m` puts the directory first, ours: a directory `pipeline` where the user stands must not win.
        self._process = spawn(
            [sys.executable, "-m", "pipeline", self.role, *options],
            env=env,
            cwd=Path(pipeline.__file__).parents[1],
            stderr=subprocess.PIPE,
        )
        self.moments: list[Moment] = []
        """Grows in the reading thread only."""
        self._reader = threading.Thread(target=self._read, name=f"log of {self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; of one that a signal ended, its negative."""
        return self._process.poll()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self.log.open("wb") as log:
            for line in self._process.stderr:
                moment = read_moment(line, wall_ms())
                if moment is not None:
                    self.moments.append(moment)
                log.write(line)
                log.flush()

    # -- what it has reached --------------------------------------------------------------------------------

    def check(self) -> None:
        """DuelineError if it has ended."""
        if self._process.poll() is not None:
            self._reader.join(1.0)
            lines = self.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:]
            told = "".join(f"\n  {line}" for line in lines)
            raise DuelineError(f"a {self.role} ended ({describe_exit(self._process.returncode)}){told}")

    def running(self) -> frozenset[int]:
        """Partitions it runs now."""
        return running_after(self.moments)

    def wait_running(self, partitions: int, timeout_s: float) -> int:
        """Until it runs so many; when it came to that (epoch ms). StoreUnreachable if not in time."""
        deadline = time.monotonic() + timeout_s
        while len(self.running()) < partitions:
            self.check()
            if time.monotonic() > deadline:
                raise StoreUnreachable(
                    f"a {self.role} runs {len(self.running())} of {partitions} partitions after {timeout_s:.0f} s"
                )
            time.sleep(POLL_S)
        return next(moment.at for moment in reversed(self.moments) if moment.action == "running")

    def first(self, action: str) -> int:
        """When it first said so; epoch ms."""
        return next(moment.at for moment in self.moments if moment.action == action)

    @property
    def name(self) -> str:
        """Its process id in the store's records."""
        return next(moment.process for moment in self.moments if moment.action == "started")

    def memory_mb(self) -> dict[str, float]:
        """Resident now and at most, MB; empty where /proc does not tell."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return {}
        return read_memory(status)

    # -- faults ---------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> int:
        """Send it; when that was (epoch ms)."""
        at = wall_ms()
        self._process.send_signal(number)
        return at

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL if it takes too long."""
        self._process.terminate()
        self._wait()

    def kill(self) -> int:
        at = self.signal(signal.SIGKILL)
        self._wait()
        return at

    def end(self) -> None:
        """However it stands: nothing of it is left."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        self._wait()

    def _wait(self) -> None:
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        sweep(self._process)
        self._reader.join(1.0)
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()


class DispatcherProcess(OwnerProcess):
    role = "dispatcher"


class WorkerProcess(OwnerProcess):
    role = "worker"


class ServerProcess(OwnerProcess):
    """One `dueline server`, on a port of its own choice."""

    role = "server"

    def port(self, timeout_s: float) -> int:
        """Where it serves. StoreUnreachable if it does not within the time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.check()
            port = read_port(self.log.read_bytes()) if self.log.exists() else None
            if port is not None:
                return port
            time.sleep(POLL_S)
        raise StoreUnreachable(f"a {self.role} does not serve after {timeout_s:.0f} s")


def read_port(log: bytes) -> int | None:
    """Of a server that says in its log where it serves."""
    for line in log.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            event: Any = json.loads(line)
            if event["action"] == "started":
                return urlsplit(str(event["url"])).port
    return None


def read_moment(line: bytes, at: int) -> Moment | None:
    """None for a line that is no event."""
    try:
        event: Any = json.loads(line)
        action = event["action"]
        return Moment(at, action, frozenset(event.get("partitions") or ()), event.get("process") or "")
    except (ValueError, KeyError, TypeError):
        return None


def running_after(moments: list[Moment]) -> frozenset[int]:
    """The partitions that run after these events."""
    running: frozenset[int] = frozenset()
    for moment in moments:
        match moment.action:
            case "running":
                running |= moment.partitions
            case "assigned" | "revoked" | "lost":
                running -= moment.partitions
    return running


def read_memory(status: str) -> dict[str, float]:
    """`rss_mb` and `rss_peak_mb` from the text of /proc/<pid>/status."""
    names = {"VmRSS": "rss_mb", "VmHWM": "rss_peak_mb"}
    found = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[names[name]] = int(value.split()[0]) / 1024
    return found
