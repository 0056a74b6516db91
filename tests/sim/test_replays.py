"""Replays in the seeded simulation. DUELINE_SIM_SEED=17 repeats one."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sim.replay_script import play

from pipeline.view import View

SEEDS = [int(seed) for seed in os.environ.get("DUELINE_SIM_SEED", "").split(",") if seed] or range(20)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda n: f"seed{n}")
def test_an_occurrence_has_one_run_of_a_replay(seed: int) -> None:
    play(seed)


def test_the_scripts_do_what_they_are_for() -> None:
    counts = Counter[str]()
    for seed in range(10):
        counts += play(seed).watch.counts
    assert set(counts) >= {"replayed", "brought_forward", "superseded", "stopped", "key_taken"}


def test_a_rule_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that does not remember the highest run."""
    monkeypatch.setattr(View, "highest_run", lambda self, occurrence: 1)
    assert any(_fails(seed) for seed in range(5))


def _fails(seed: int) -> bool:
    try:
        play(seed)
    except AssertionError:
        return True
    return False
