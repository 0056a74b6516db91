"""Schedules in the seeded simulation; `make sim` plays more of them. DUELINE_SIM_SEED=17 repeats one."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sim.schedule_script import SchedulePlay, ScheduleWatch, failure, write

from pipeline import recurring
from pipeline.core import series
from pipeline.core.schedule import Schedule
from pipeline.core.series import Step
from pipeline.emission import Emission

SEEDS = [int(seed) for seed in os.environ.get("DUELINE_SIM_SEED", "").split(",") if seed] or range(25)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda n: f"seed{n}")
def test_what_fired_is_what_the_grid_enumerates_less_what_was_told(seed: int) -> None:
    found = failure(seed)
    assert found is None, found


def test_the_scripts_do_what_they_are_for() -> None:
    outcomes, counts = Counter[str](), Counter[str]()
    for seed in range(25):
        play = SchedulePlay(1 + seed % 3)
        for name, salt in write(seed):
            play.happen(name, salt)
        play.finish()
        assert isinstance(play.watch, ScheduleWatch)
        outcomes.update(each.outcome or "" for each in play.watch.answers.values())
        for state in play.watch.gone.values():
            counts.update(dict(state.counts))
    assert set(outcomes) >= {
        "created",
        "existing",
        "updated",
        "paused",
        "resumed",
        "fired",
        "started",
        "deleted",
    }
    assert set(counts) >= {
        "fired", "triggered", "backfilled", "succeeded", "dead", "cancelled", "skipped.misfire", "skipped.overlap",
        "skipped.paused", "skipped.buffer_full",
    }  # fmt: skip
    assert counts["fired"] > 300


def _from_now(patch: pytest.MonkeyPatch) -> None:
    """The next instant is told from when one fires, not from its nominal time: what is late is lost."""
    plain = series.advance

    def advance(state: Schedule, now: int, room: int = series.SLICE) -> Step:
        step = plain(state, now, room)
        moved = replace(step.state, last_nominal=max(now, step.state.last_nominal))
        return replace(step, state=moved) if step.fire else step

    patch.setattr(series, "advance", advance)


def _apart(patch: pytest.MonkeyPatch) -> None:
    """Runs are emitted, and the next state is not of the same transaction."""
    plain = recurring.write_all

    def write_all(emission: Emission) -> None:
        if emission.fired:
            emission.schedules.clear()
        plain(emission)

    patch.setattr(recurring, "write_all", write_all)


@pytest.mark.parametrize("mutate", [_from_now, _apart])
def test_rules_that_are_left_out_are_caught(mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    assert any(failure(seed) is not None for seed in range(10))
