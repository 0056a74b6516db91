"""A deploy: two dispatchers are restarted one after the other while 200 jobs a second come due. Nothing is lost,
doubled or early, and no job is later than two seconds (docs/versions.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from nemesis.stage import Actor, Stage, stage, until

JOBS, APART_MS = 5_000, 5
WORST_MS = 2_000
SPARE = 500
"""Jobs that must come due after the last restart, else it was not under load to its end."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def restarted(scene: Stage, name: str, leaving: Actor, staying: Actor) -> Actor:
    """As a supervisor does it: SIGTERM, wait for the end, start anew, wait until all partitions run."""
    leaving.process.terminate()
    assert leaving.process.wait(30) == 0
    arriving = scene.dispatcher(name)
    until(lambda: scene.covered(staying, arriving), f"{name} runs its share")
    return arriving


def test_a_rolling_restart_under_load_makes_no_job_later_than_two_seconds(
    broker: str, tmp_path: Path
) -> None:
    with stage(broker, tmp_path) as scene:
        one, two = scene.dispatcher("one"), scene.dispatcher("two")
        until(lambda: scene.covered(one, two), "both run their share")
        scene.create(JOBS, first_in_ms=1_000, apart_ms=APART_MS)
        until(lambda: len(scene.committed.seen) > JOBS // 20, "jobs are being fired")
        three = restarted(scene, "three", one, two)
        four = restarted(scene, "four", two, three)
        left = JOBS - len(scene.committed.seen)
        until(scene.seen, "every job was seen")
        scene.finish()
        assert scene.covered(three, four)
        assert scene.anomalies() == []
        assert left >= SPARE, "the restarts took longer than the load"
        assert scene.worst_lateness() <= WORST_MS
