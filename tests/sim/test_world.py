"""Seeded simulation: a failing seed is a plain test case, `pytest -k 'seed17'` repeats it."""

from __future__ import annotations

import os

import pytest
from sim.world import World

SEEDS = int(os.environ.get("DUELINE_SIM_SEEDS", "20"))
EVENTS = 250


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda n: f"seed{n}")
def test_promises_hold_under_faults(seed: int) -> None:
    world = World(seed, dispatchers=1 + seed % 3, workers=1 + seed % 2)
    for _ in range(EVENTS):
        world.happen()
        world.check_always()
    world.settle()
    world.check_end()
