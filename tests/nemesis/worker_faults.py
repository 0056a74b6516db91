"""The worker processes of a storm and what strikes them: kills, freezes, restarts, scaling."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from nemesis.worker_effects import now_ms

TESTS = Path(__file__).parents[1]
SESSION_MS = 3_000
PLACES = 4
"""Workers at the same time, at most."""
FAULTS = {
    "freeze long": 5,
    "kill": 3,
    "freeze": 2,
    "freeze with children": 2,
    "kill child": 2,
    "term": 2,
    "scale": 3,
}
STANDING = 1
"""So many are left alone, to take over what the others lose."""
DRAIN_S = 40


@dataclass(slots=True)
class Life:
    """One process, from its start to its end, and what was done to it. Times in ms since the epoch."""

    pid: int
    log: Path
    killed_at: int | None = None
    asked_at: int | None = None
    """For SIGTERM."""
    freezes: list[tuple[int, int | None]] = field(default_factory=list)
    ended: int | None = None
    """Its exit code."""

    def struck(self, since: int) -> bool:
        """Whether it was killed, or frozen for long enough to lose what it had, at `since` or later."""
        lost = [at for at, to in self.freezes if (to or now_ms()) - at >= SESSION_MS // 2]
        return any(at is not None and at >= since for at in (self.killed_at, *lost))

    def thawed(self, at: int, within_ms: int) -> bool:
        """Whether it came out of a freeze shortly before `at`."""
        return any(to is not None and to - 20 <= at <= to + within_ms for _, to in self.freezes)

    def left_well(self) -> bool:
        """After SIGTERM, which ends a process at once that has not begun to listen for it."""
        return self.ended == 0 or (self.ended == -signal.SIGTERM and self.process_id() is None)

    def process_id(self) -> str | None:
        """Its name in the records."""
        for line in self.log.read_text("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("action") == "started" and "process" in event:
                    return str(event["process"])
        return None


class Place:
    """Where one worker after the other runs."""

    def __init__(self, name: str, env: dict[str, str], home: Path) -> None:
        self.name, self.env, self.home = name, env, home
        self.lives: list[Life] = []
        self.frozen = False
        self.wanted = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.wanted = True
        if self.alive():
            return
        path = self.home / f"{self.name}-{len(self.lives)}.log"
        words = ("worker", "--app", "nemesis.worker_app:app", "--concurrency", "8")
        with path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", *words], env=self.env, cwd=TESTS, stdout=log, stderr=log
            )
        self.lives.append(Life(self._process.pid, path))
        self.frozen = False

    def children(self) -> list[int]:
        """Those of its process pool."""
        found: list[int] = []
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self.life.pid}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        return found

    def send(self, number: int, *others: int) -> None:
        for pid in (self.life.pid, *others):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        if self.alive():
            assert self._process is not None
            self.life.killed_at = now_ms()
            self._process.kill()
            self._process.wait(20)
        self._note_end()

    def freeze(self, *others: int) -> None:
        self.frozen = True
        self.life.freezes.append((now_ms(), None))
        self.send(signal.SIGSTOP, *others)

    def thaw(self, *others: int) -> None:
        if self.frozen:
            self.frozen = False
            self.send(signal.SIGCONT, *others)
            self.life.freezes[-1] = (self.life.freezes[-1][0], now_ms())

    def terminate(self) -> None:
        self.wanted = False
        if self.alive():
            self.life.asked_at = now_ms()
            self.send(signal.SIGTERM)

    def ended(self) -> bool:
        self._note_end()
        return not self.alive()

    def _note_end(self) -> None:
        if self._process is not None and self.lives and self.life.ended is None:
            self.life.ended = self._process.poll()


class Nemesis:
    """Strikes by chance, from one seed, until it is told to be calm."""

    def __init__(self, places: list[Place], random: Random, faults: dict[str, int], pace: float) -> None:
        self.places, self._random, self._pace = places, random, pace
        self._faults = [fault for fault, weight in faults.items() for _ in range(weight)]
        self._deck: list[str] = []
        """What is to come, so that a short storm has its share of each fault."""
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []
        self.wrong: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0

    def rage(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        end, strike = time.monotonic() + seconds, time.monotonic() + 2
        while (now := time.monotonic()) < end and not enough():
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self.watch()
            if now >= strike:
                self._strike()
                strike = now + self._random.uniform(0.5, 1.5) * self._pace
            time.sleep(0.02)

    def calm(self) -> None:
        """All thaw, and two at least run, or start again when they have drained."""
        self._due.clear()
        for place in self.places:
            if place.frozen:
                place.thaw(*place.children())
        for place in self.places[:2]:
            place.start()

    def watch(self) -> None:
        """A worker that ended though nobody asked it to has failed, and is started again."""
        for place in self.places:
            if not place.lives or not place.ended() or not place.wanted or place.life.killed_at:
                continue
            if place.life.asked_at is None:
                last = place.life.log.read_text("utf-8", "replace").splitlines()[-3:]
                self.wrong.append(f"{place.name} ended by itself, code {place.life.ended}: {last}")
            place.start()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._turn, action))

    def _strike(self) -> None:
        standing = [
            place for place in self.places if place.alive() and not place.frozen and not place.life.asked_at
        ]
        if len(standing) <= STANDING:
            return
        if not self._deck:
            self._deck = self._random.sample(self._faults, len(self._faults))
        fault, victim = self._deck[-1], self._random.choice(standing)
        if not getattr(self, "_" + fault.replace(" ", "_"))(victim):
            self._random.shuffle(self._deck)
            return
        self._deck.pop()
        self.counts[fault] += 1
        self.history.append(f"{now_ms()} {fault} {victim.name} {victim.life.pid}")

    def _kill(self, victim: Place) -> bool:
        victim.kill()
        self._later(self._random.choice((0, 0.5, 4)), victim.start)
        return True

    def _kill_child(self, victim: Place) -> bool:
        children = victim.children()
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._random.choice(children), signal.SIGKILL)
        return bool(children)

    def _freeze(self, victim: Place) -> bool:
        victim.freeze()
        return self._thaw(victim, (), self._random.uniform(0.5, 4))

    def _freeze_long(self, victim: Place) -> bool:
        """Long enough for its runs to end elsewhere."""
        victim.freeze()
        return self._thaw(victim, (), self._random.uniform(10, 13))

    def _freeze_with_children(self, victim: Place) -> bool:
        children = victim.children()
        victim.freeze(*children)
        return self._thaw(victim, children, self._random.uniform(6, 11))

    def _thaw(self, victim: Place, children: list[int] | tuple[()], seconds: float) -> bool:
        life = victim.life
        self._later(seconds, lambda: victim.thaw(*children) if victim.life is life else None)
        return True

    def _term(self, victim: Place) -> bool:
        victim.terminate()
        asked = time.monotonic()

        def look() -> None:
            if not victim.ended():
                if time.monotonic() - asked > DRAIN_S:
                    self.wrong.append(f"{victim.name} did not end within {DRAIN_S} s of SIGTERM")
                    victim.kill()
                self._later(0.1, look)
            else:
                if victim.life.ended != 0:
                    self.wrong.append(
                        f"{victim.name} {victim.life.pid} drained with code {victim.life.ended}"
                    )
                victim.start()

        look()
        return True

    def _scale(self, victim: Place) -> bool:
        """One more, or one less."""
        idle = [place for place in self.places if not place.alive()]
        if idle:
            self._random.choice(idle).start()
        else:
            victim.terminate()
            self._later(self._random.uniform(4, 8), victim.start)
        return True
