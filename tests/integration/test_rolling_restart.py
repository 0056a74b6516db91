"""A deploy: two dispatchers are restarted one after the other while 200 jobs a second come due. Nothing is lost,
doubled or early, and no job is later than two seconds (docs/versions.md)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from nemesis.stage import Actor, Stage, now_ms, stage, until

BATCH, APART_MS, AHEAD_MS = 400, 5, 2_000
WORST_MS = 2_900
"""Two seconds are promised, of a machine that is not busy; one that did not leave in order costs its session, three."""
SPARE = 500
"""Jobs that come due before the first restart and after the last one."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@contextmanager
def load(scene: Stage) -> Iterator[None]:
    """Inside, jobs come due without a break, however long that is."""
    over = threading.Event()

    def create() -> None:
        first = 0
        while not over.is_set():
            first = max(first, now_ms() + AHEAD_MS // 2)  # a job that is made late is not late
            scene.create(BATCH, first_in_ms=first - now_ms(), apart_ms=APART_MS)
            first += BATCH * APART_MS
            over.wait(max(0, first - AHEAD_MS - now_ms()) / 1000)

    with ThreadPoolExecutor(1) as pool:
        creating = pool.submit(create)
        try:
            yield
        finally:
            over.set()
        creating.result()


def restarted(scene: Stage, name: str, leaving: Actor, staying: Actor) -> Actor:
    """As a supervisor does it: SIGTERM, wait for the end, start anew, wait until all partitions run."""
    leaving.process.terminate()
    assert leaving.process.wait(60) == 0
    arriving = scene.dispatcher(name)
    until(lambda: scene.covered(staying, arriving), f"{name} runs its share")
    return arriving


def test_a_rolling_restart_under_load_makes_no_job_later_than_two_seconds(
    broker: str, tmp_path: Path
) -> None:
    with stage(broker, tmp_path) as scene:
        one, two = scene.dispatcher("one"), scene.dispatcher("two")
        until(lambda: scene.covered(one, two), "both run their share")
        with load(scene):
            until(lambda: len(scene.committed.seen) > SPARE, "jobs are being fired")
            three = restarted(scene, "three", one, two)
            four = restarted(scene, "four", two, three)
            seen = len(scene.committed.seen)
            until(lambda: len(scene.committed.seen) > seen + SPARE, "and after the last restart")
        until(scene.seen, "every job was seen")
        scene.finish()
        assert scene.covered(three, four)
        assert scene.anomalies() == []
        assert scene.worst_lateness() <= WORST_MS
