"""The 24 cases: each step of the dispatcher's loop, the process killed or frozen there; and which to play today."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from history import Anomaly
from nemesis.stage import Actor, Stage, now_ms, stage, until

from pipeline.dev.killpoints import ACTIONS, IN_TAKEOVER, OPEN, STEPS

TURN = 6
"""Cases of one turn of the rotation."""
SESSION_MS = 3_000
TAKEOVER_MS = 6_000
"""It takes one or two; a transaction that nobody ends would take ten."""
FROZEN_INSIDE_MS = 20_000
"""What DESIGN's promises allow when a transaction stays open: its time-out, and the coordinator's look for it."""
INSIDE_TAKEOVER_MS = 10_000
"""Whose takeover record is not committed is known by its heartbeat alone: fenced once that is stale. It takes six
seconds on an idle machine."""
JOBS, APART_MS = 400, 25
PASSING = 10


@dataclass(frozen=True, slots=True, order=True)
class Case:
    step: str
    action: str

    def __str__(self) -> str:
        return f"{self.step}-{self.action}"

    @property
    def joins_late(self) -> bool:
        """The victim takes partitions from a survivor that is firing them: its first takeover is what is struck."""
        return self.step.startswith("takeover")

    @property
    def limit_ms(self) -> int:
        """Worst lateness allowed."""
        if self.step in IN_TAKEOVER[:-1]:
            return INSIDE_TAKEOVER_MS
        inside = self.action == "stop" and self.step in OPEN
        return FROZEN_INSIDE_MS if inside else SESSION_MS + TAKEOVER_MS


ALL = [Case(step, action) for step in STEPS for action in ACTIONS]
MORE = [Case(step, action) for step in IN_TAKEOVER for action in ACTIONS]
"""Inside the transaction of a takeover, which holds no job but is as much in the way of others."""


def turn(number: int) -> list[Case]:
    """Six of the cases. Four turns in a row are all of them, each a mixture."""
    mixed = sorted(ALL, key=lambda case: hashlib.sha256(str(case).encode()).digest())
    start = number * TURN % len(mixed)
    return mixed[start : start + TURN]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    case: Case
    found: list[Anomaly]
    worst_ms: int
    jobs: int


def play(case: Case, bootstrap: str, home: Path) -> Played:
    """Jobs come due twenty-five ms apart; the victim is struck among them, the survivor takes over, a frozen victim
    thaws and takes its share back, and every job is accounted for."""
    with stage(bootstrap, home) as scene:
        passing = 1 if case.joins_late else PASSING
        point = f"{case.step}:{case.action}:{passing}"
        survivor = scene.dispatcher("survivor")
        if case.joins_late:
            until(lambda: scene.covered(survivor), "the survivor runs everything")
            victim = scene.dispatcher("victim", point=point)
        else:
            victim = scene.dispatcher("victim", point=point)
            until(lambda: scene.covered(survivor, victim), "both run their share")
        scene.create(JOBS, first_in_ms=500, apart_ms=APART_MS)
        if case.action == "kill":
            until(victim.killed, "the victim is dead")
        else:
            until(victim.frozen, "the victim is frozen")
            _thaw(scene, victim, survivor)
        until(scene.seen, "every job was seen")
        scene.finish()
        assert survivor.process.returncode == 0
        return Played(
            case=case, found=scene.anomalies(), worst_ms=scene.worst_lateness(), jobs=len(scene.created)
        )


def _thaw(scene: Stage, victim: Actor, survivor: Actor) -> None:
    struck_at = now_ms()
    until(lambda: scene.seen(struck_at + 200), "the survivor fired what the victim had in hand")
    victim.thaw()
    until(lambda: scene.covered(survivor, victim), "the victim has its share back")
