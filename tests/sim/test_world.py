"""Seeded simulation: a failing seed is a plain test case, `pytest tests/sim/test_world.py -k seed17` repeats it, and
so does DUELINE_SIM_SEED=17 for one beyond the short run. `make sim` plays thousands (`python -m sim`)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from sim.script import Play, crew, failure, report, script
from sim.world import World

from pipeline.adapters.rocks_index import RocksIndex

SHORT, ON_DISK = 20, 6
SEEDS = [int(seed) for seed in os.environ.get("DUELINE_SIM_SEED", "").split(",") if seed]
DISPATCHERS = [seed for seed in range(3 * SHORT) if crew(seed)[1] == 0][:SHORT]
WORKERS = [seed for seed in range(11 * SHORT) if crew(seed)[1] > 0][:SHORT]


@pytest.mark.parametrize("seed", SEEDS or DISPATCHERS + WORKERS, ids=lambda n: f"seed{n}")
def test_promises_hold_under_faults(seed: int) -> None:
    found = failure(script(seed), *crew(seed))
    if found is not None:
        pytest.fail(report(seed, found), pytrace=False)


@pytest.mark.parametrize("seed", DISPATCHERS[:ON_DISK], ids=lambda n: f"seed{n}")
def test_promises_hold_with_the_index_on_disk(seed: int, tmp_path: Path) -> None:
    """What the twin in memory does not have: generations of the memory, marks, rows that are swept."""
    numbers = itertools.count()

    class OnDisk(World):
        def new_index(self) -> RocksIndex:
            return RocksIndex(tmp_path / f"{next(numbers)}")

        def lose_index(self) -> None:
            """Not here: a directory is not emptied while it is open."""

        save_index = old_index = lose_index

    found = failure(script(seed), *crew(seed), OnDisk)
    assert found is None, found


def test_a_script_played_twice_goes_the_same_way() -> None:
    """Else a failing seed could not be repeated."""
    logs = []
    for _ in range(2):
        play = Play(*crew(7))
        for name, salt in script(7):
            play.happen(name, salt)
        play.finish()
        jobs = [play.world.cluster.partition("sim.jobs", number) for number in range(4)]
        entries = [entry for log in jobs for entry in log.entries]
        logs.append([None if entry is None else (entry.key(), entry.value()) for entry in entries])
    assert logs[0] == logs[1]


def test_the_scripts_do_what_they_are_for() -> None:
    """Faults strike, commands meet every outcome: a simulation in which nothing happens finds nothing."""
    outcomes, actions = set(), set()
    for seed in range(30):
        play = Play(*crew(seed))
        for name, salt in script(seed):
            play.happen(name, salt)
        play.finish()
        outcomes |= {answer.outcome for answer in play.watch.answers.values()}
        actions |= {action for action, _ in play.world.told.lines}
    assert outcomes >= {
        "created", "existing", "replaced", "debounced", "rejected", "refused", "cancelled", "stopped", "fired",
        "not_found", "rescheduled", "updated", "requeued", "brought_forward", "pending", "released",
        "stopping", "not_allowed",
    }  # fmt: skip
    assert actions >= {"revoked", "lost", "outcome_unknown", "step_refused", "takeover_refused", "fencing"}
