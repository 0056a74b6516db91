"""What strikes the dispatchers of a storm."""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from nemesis.storm_proxy import Wire

ROOT = Path(__file__).parents[2]
UNREACHABLE = 5
"""Exit code of a process that cannot reach the store when it starts: it may give up."""
FAULTS = {
    "kill": 5,
    "term": 2,
    "freeze": 5,
    "freeze long": 3,
    "wipe index": 2,
    "old index": 2,
    "kill child": 2,
    "kill all": 0.7,
    "freeze all": 0.7,
    "clone": 0.7,
}
WIRE_FAULTS = {"hang": 4, "hang answers": 5, "hang requests": 3, "cut": 4}
"""Where the wires of dispatchers can be touched."""


def run_cli(
    env: dict[str, str], *argv: str, stdin: bytes | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *argv],
        env=env,
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        timeout=timeout,
    )


@dataclass(slots=True)
class Dispatcher:
    """A dispatcher process of the storm, started again and again."""

    name: str
    env: dict[str, str]
    log: Path
    argv: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    frozen: bool = False
    asked: bool = False
    """Whether we ended it, or asked it to end."""
    wire: Wire | None = None

    @property
    def state(self) -> Path:
        return Path(self.env["DUELINE_STATE_DIR"])

    def start(self) -> None:
        if self.alive():
            return
        self.asked = False
        with self.log.open("ab") as out:
            out.write(b"--- start %s %r\n" % (datetime.now(UTC).isoformat().encode(), self.argv))
            out.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "dispatcher", *self.argv],
                env=self.env,
                cwd=ROOT,
                stdout=out,
                stderr=out,
            )

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def children(self) -> list[int]:
        if not self.alive():
            return []
        assert self.process is not None
        pid = self.process.pid
        try:
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    def signal(self, number: int) -> None:
        """To the process and its children."""
        self.asked = self.asked or number in (signal.SIGKILL, signal.SIGTERM)
        if not self.alive():
            return
        assert self.process is not None
        for pid in [self.process.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(20)
        self.frozen = False


class Nemesis:
    """Strikes by chance, from one seed."""

    def __init__(
        self, dispatchers: list[Dispatcher], random: Random, faults: dict[str, float], pace: float
    ) -> None:
        self.dispatchers, self.random, self.faults, self.pace = dispatchers, random, faults, pace
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.desertions: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0
        self._clones: list[Dispatcher] = []

    def rage(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        strike = time.monotonic() + 2
        while time.monotonic() < end:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self.watch()
            if now >= strike:
                self._strike()
                strike = now + self.random.uniform(0.3, 2 * self.pace)
            time.sleep(0.02)

    def calm(self) -> None:
        """Everybody runs again."""
        self._due.clear()
        for clone in self._clones:
            clone.kill()
        for dispatcher in self.dispatchers:
            if dispatcher.wire is not None:
                dispatcher.wire.flow()
            dispatcher.signal(signal.SIGCONT)
            dispatcher.frozen = False
            dispatcher.start()

    def watch(self) -> None:
        """A dispatcher that ended though nobody asked it to has failed, and is started again."""
        for one in self.dispatchers:
            self._deserted(one)

    def _deserted(self, one: Dispatcher) -> None:
        if one.process is None or one.asked or (code := one.process.poll()) is None:
            return
        if code != UNREACHABLE:
            last = one.log.read_text("utf-8", "replace").splitlines()[-1:]
            self.desertions.append(f"{one.name} ended by itself, code {code}: {last}")
        one.start()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._turn, action))

    def _strike(self) -> None:
        fault = self.random.choices(list(self.faults), list(self.faults.values()))[0]
        standing = [one for one in self.dispatchers if one.alive() and not one.frozen]
        if not standing:
            return
        victim = self.random.choice(standing)
        if fault == "kill child":
            standing = [one for one in standing if one.children()]
            if not standing:
                return
            victim = standing[0]
        self.counts[fault] += 1
        self.history.append(f"{datetime.now(UTC).isoformat()} {fault} {victim.name}")
        getattr(self, "_" + fault.replace(" ", "_"))(victim)

    def _again(self, victim: Dispatcher, longest: float = 5) -> None:
        self._later(self.random.choice((0, 0.3, self.random.uniform(0, longest))), victim.start)

    def _kill(self, victim: Dispatcher) -> None:
        victim.kill()
        self._again(victim)

    def _kill_all(self, _victim: Dispatcher) -> None:
        for one in self.dispatchers:
            self._kill(one)

    def _term(self, victim: Dispatcher) -> None:
        assert victim.process is not None
        victim.asked = True
        os.kill(victim.process.pid, signal.SIGTERM)
        process, asked = victim.process, time.monotonic()

        def look() -> None:
            if process.poll() is None:
                if time.monotonic() - asked > 45 and not victim.frozen:
                    self.counts["SIGTERM ignored"] += 1
                    victim.kill()
                self._later(0.1, look)
            else:
                self._again(victim, 2)

        look()

    def _freeze(self, victim: Dispatcher, seconds: float | None = None) -> None:
        victim.frozen = True
        victim.signal(signal.SIGSTOP)
        process = victim.process

        def thaw() -> None:
            if victim.process is process:
                victim.signal(signal.SIGCONT)
                victim.frozen = False

        self._later(self.random.choice((0.5, 3.5, 5, 7)) if seconds is None else seconds, thaw)

    def _freeze_long(self, victim: Dispatcher) -> None:
        self._freeze(victim, self.random.uniform(10.2, 13))

    def _freeze_all(self, _victim: Dispatcher) -> None:
        for one in self.dispatchers:
            if one.alive() and not one.frozen:
                self._freeze(one, self.random.uniform(3, 7))

    def _hang(self, victim: Dispatcher, *, requests: bool = True, answers: bool = True) -> None:
        """The broker seems to stand still; then what was held back arrives, or is lost with the connections."""
        wire = victim.wire
        assert wire is not None
        wire.hang(requests=requests, answers=answers)
        self._later(self.random.choice((0.5, 3.5, 7, 12)), wire.flow)
        if self.random.random() < 0.6:
            self._later(self.random.choice((0.2, 2, 5)), wire.cut)

    def _hang_answers(self, victim: Dispatcher) -> None:
        self._hang(victim, requests=False)

    def _hang_requests(self, victim: Dispatcher) -> None:
        self._hang(victim, answers=False)

    def _cut(self, victim: Dispatcher) -> None:
        assert victim.wire is not None
        victim.wire.cut()

    def _kill_child(self, victim: Dispatcher) -> None:
        os.kill(self.random.choice(victim.children()), signal.SIGKILL)

    def _indexes(self, victim: Dispatcher) -> list[Path]:
        return [path for path in victim.state.glob("dispatcher/*/index") if path.is_dir()]

    def _wipe_index(self, victim: Dispatcher) -> None:
        for one in self.dispatchers:
            if one.state == victim.state:
                one.kill()
                self._again(one, 2)
        for index in self._indexes(victim):
            shutil.rmtree(index)

    def _old_index(self, victim: Dispatcher) -> None:
        """Put back what was kept the last time, keep what is there now."""
        for one in self.dispatchers:
            if one.state == victim.state:
                one.kill()
                self._again(one, 2)
        for index in self._indexes(victim):
            kept, now = index.with_name("kept"), index.with_name("now")
            shutil.rmtree(now, ignore_errors=True)
            shutil.copytree(index, now)
            if kept.exists():
                shutil.rmtree(index)
                kept.rename(index)
                self.counts["old index put back"] += 1
            now.rename(kept)

    def _clone(self, victim: Dispatcher) -> None:
        """The same state directory twice, as after copying a machine."""
        victim.kill()
        if not victim.state.exists():
            victim.start()
            return
        copy = victim.state.with_name(f"{victim.state.name}-clone{len(self._clones)}")
        shutil.copytree(victim.state, copy)
        clone = Dispatcher(
            f"{victim.name}-clone",
            victim.env | {"DUELINE_STATE_DIR": str(copy)},
            victim.log.with_suffix(".clone.log"),
            ("--slot", "0"),
        )
        self._clones.append(clone)
        victim.start()
        clone.start()
        self._later(self.random.uniform(6, 15), clone.kill)
