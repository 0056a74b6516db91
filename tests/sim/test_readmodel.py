"""The read model beside the follower, over the histories of the simulations. DUELINE_SIM_SEED=17 repeats one."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from sim import replay_script, schedule_script
from sim.mirror import Mirror
from sim.script import Play, crew, script

from pipeline.core.job import JobStatus

SEEDS = [int(seed) for seed in os.environ.get("DUELINE_SIM_SEED", "").split(",") if seed] or range(6)
WORKERS = [seed for seed in range(60) if crew(seed)[1] > 0][:3]
EVERY = 25
"""Events between two looks."""


def follow(
    play: Play, events: list[tuple[str, int]], path: Path, seed: int, *, workers: bool = False
) -> Counter[str]:
    mirror = Mirror(path, play.world.cluster, seed=seed, workers=workers)
    try:
        for n, (name, salt) in enumerate(events):
            play.happen(name, salt)
            if n % 5 == 0:
                mirror.catch_up()
            if n % EVERY == 0:
                mirror.check()
        play.finish()
        mirror.check()
    finally:
        mirror.close()
    return mirror.statuses


@pytest.mark.parametrize("seed", SEEDS, ids=lambda n: f"seed{n}")
def test_it_says_of_jobs_what_the_follower_says(seed: int, tmp_path: Path) -> None:
    follow(Play(*crew(seed)), script(seed), tmp_path / "rows", seed)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda n: f"seed{n}")
def test_of_occurrences_of_schedules(seed: int, tmp_path: Path) -> None:
    play = schedule_script.SchedulePlay(1 + seed % 3)
    follow(play, schedule_script.write(seed), tmp_path / "rows", seed)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda n: f"seed{n}")
def test_of_what_is_replayed(seed: int, tmp_path: Path) -> None:
    follow(replay_script.ReplayPlay(2), replay_script.write(seed), tmp_path / "rows", seed)


def test_the_histories_come_to_every_status(tmp_path: Path) -> None:
    """Else a rule could be wrong and nobody would see it."""
    seen = Counter[str]()
    for seed in (3, *WORKERS):
        seen += follow(
            Play(*crew(seed)), script(seed), tmp_path / f"jobs-{seed}", seed, workers=seed in WORKERS
        )
    for seed in range(3):
        play = schedule_script.SchedulePlay(1 + seed % 3)
        seen += follow(play, schedule_script.write(seed), tmp_path / f"schedules-{seed}", seed)
    assert set(seen) == {str(status) for status in JobStatus}, seen


@pytest.mark.parametrize(
    "rule", ["tale.fold_ack", "tale.fold_run", "plain.fired", "sheet.Sheet._remove", "sheet.Sheet._stand"]
)
def test_a_rule_left_out_is_caught(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"plain.fired": lambda row, *_: row}.get(rule, lambda *_: False)
    monkeypatch.setattr(f"pipeline.readmodel.{rule}", wrong)
    assert any(_fails(seed, tmp_path / f"rows-{seed}") for seed in WORKERS)


def _fails(seed: int, path: Path) -> bool:
    try:
        follow(Play(*crew(seed)), script(seed), path, seed, workers=True)
    except AssertionError:
        return True
    return False
