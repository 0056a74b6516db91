"""The processes of the night: one dispatcher and two workers, as an operator would start them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pipeline
from pipeline import codec
from pipeline.config import KAFKA_PREFIX, PREFIX, Settings
from pipeline.core.errors import DuelineError, StoreUnreachable
from pipeline.core.job import Heartbeat
from pipeline.core.layout import Layout
from pipeline.core.states import PartitionState
from pipeline.dev.demo.handlers import STAGE_VARIABLE
from pipeline.dev.process import describe_exit, spawn, sweep
from pipeline.ports import Reader

APP = "pipeline.dev.demo.handlers:app"
WORKERS = ("worker 1", "worker 2")
READY_TIMEOUT_S = 30.0
POLL_S = 0.2
STOP_TIMEOUT_S = 5.0
LAST_LINES = 5


class Cast:
    """Child processes by name; what they log goes to files in `directory`. Use from the main thread."""

    def __init__(self, settings: Settings, directory: Path, stage_file: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._environment = environment(settings, os.environ) | {STAGE_VARIABLE: str(stage_file)}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.names: dict[int, str] = {}
        """Of every process that was started, by pid; also of those that ended."""

    def start(self) -> None:
        self._spawn("dispatcher", "dispatcher")
        for name in WORKERS:
            self._spawn(name, "worker", "--app", APP)

    def __str__(self) -> str:
        return ", ".join(f"{name} (pid {child.pid})" for name, child in self._children.items())

    def name_of(self, pid: int) -> str:
        """DuelineError if that process is none of ours."""
        for name, child in self._children.items():
            if child.pid == pid:
                return name
        raise DuelineError(f"process {pid} is none of the demo's")

    def wait_until_ready(self, reader: Reader, layout: Layout) -> None:
        """Until every partition is owned by a process that runs it, by what the processes say on `fleet`.

        DuelineError if one ended, StoreUnreachable if it takes longer than READY_TIMEOUT_S.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._ready(self._heartbeats(reader), layout):
            self.check()
            if time.monotonic() > deadline:
                told = self._logged(*self._children)
                raise StoreUnreachable(f"not ready after {READY_TIMEOUT_S:.0f} s{told}")
            time.sleep(POLL_S)

    def check(self) -> None:
        """DuelineError if a process ended that nobody killed here."""
        for name, child in self._children.items():
            if child.poll() is not None:
                raise DuelineError(f"{name} ended ({describe_exit(child.returncode)}){self._logged(name)}")

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for its end."""
        child = self._children.pop(name)
        child.kill()
        child.wait()
        sweep(child)

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL to what still runs after STOP_TIMEOUT_S. One SIGTERM each: a second one says
        that there is no time to leave in order."""
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            sweep(child)
        self._children.clear()

    def _spawn(self, name: str, *command: str) -> None:
        # As `python -m` puts the directory first, ours: a directory `pipeline` where the user stands must not
        # win.
        root = Path(pipeline.__file__).parents[1]
        with self._log(name).open("wb") as log:
            self._children[name] = spawn(
                [sys.executable, "-m", "pipeline", *command], env=self._environment, cwd=root, stderr=log
            )
        self.names[self._children[name].pid] = name

    def _log(self, name: str) -> Path:
        return self._directory / f"{name.replace(' ', '_')}.log"

    def _logged(self, *names: str) -> str:
        """The last lines of what these processes logged, for an error's text."""
        logs = {name: self._log(name).read_text("utf-8", "replace").splitlines() for name in names}
        return "".join(f"\n  {name}: {line}" for name, log in logs.items() for line in log[-LAST_LINES:])

    def _heartbeats(self, reader: Reader) -> Mapping[int, Heartbeat]:
        """The last one of each of our processes, by pid."""
        fleet = self._settings.names.fleet
        pids = {child.pid for child in self._children.values()}
        found: dict[int, Heartbeat] = {}
        for partition in range(reader.partitions(fleet)):
            for record in reader.read(fleet, partition):
                value = record.value()
                beat = codec.HEARTBEAT.decode(value) if value is not None else None
                if beat is not None and beat.pid in pids:
                    found[beat.pid] = beat
        return found

    def _ready(self, beats: Mapping[int, Heartbeat], layout: Layout) -> bool:
        owned = {pid: _running(beat) for pid, beat in beats.items()}
        if not all(owned.get(child.pid) for child in self._children.values()):
            return False
        names, queue = self._settings.names, self._settings.queue
        wanted = {(names.jobs, n) for n in range(layout.partitions)}
        wanted |= {(names.work(queue), n) for n in range(layout.queues[queue])}
        return set().union(*owned.values()) >= wanted


def _running(beat: Heartbeat) -> set[tuple[str, int]]:
    running = PartitionState.RUNNING.name.lower()
    return {(own.topic, own.partition) for own in beat.owned if own.state == running}


def environment(settings: Settings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Of a child: this installation, and nothing else that the shell says about one."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(PREFIX) or (settings.kafka and name.startswith(KAFKA_PREFIX))
    }
    return kept | {
        "DUELINE_BOOTSTRAP_SERVERS": settings.require_bootstrap(),
        "DUELINE_PREFIX": settings.prefix,
        "DUELINE_STATE_DIR": str(settings.state_dir),
        "PYTHONUNBUFFERED": "1",
    }
