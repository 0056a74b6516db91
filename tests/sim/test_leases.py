"""The seeded simulation of the worker's leases: a failing seed is a plain test case. `pytest tests/sim/test_leases.py
-k seed17` repeats it, and so does DUELINE_LEASE_SEED=17 for one beyond the short run. `make sim` plays a thousand."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sim.lease_script import Play, crew, failure, play, report, script
from sim.lease_watch import ACKS, WORK

SHORT = 32
SEEDS = [int(seed) for seed in os.environ.get("DUELINE_LEASE_SEED", "").split(",") if seed]


@pytest.mark.parametrize("seed", SEEDS or range(SHORT), ids=lambda n: f"seed{n}")
def test_leases_hold_under_faults(seed: int) -> None:
    found = failure(script(seed), seed)
    if found is not None:
        pytest.fail(report(seed, found), pytrace=False)


def test_a_script_played_twice_goes_the_same_way() -> None:
    """Else a failing seed could not be repeated."""
    logs = []
    for _ in range(2):
        cluster, count = play(script(7), 7).world.cluster, crew(7)[1]
        entries = [
            e for topic in (WORK, ACKS) for n in range(count) for e in cluster.partition(topic, n).entries
        ]
        logs.append([None if entry is None else (entry.key(), entry.value()) for entry in entries])
    assert logs[0] == logs[1]


def test_the_scripts_do_what_they_are_for() -> None:
    """Leases move in every way that there is: a simulation in which nothing happens finds nothing."""
    counted: Counter[str] = Counter()
    for seed in range(24):
        here: Play = play(script(seed), seed)
        counted += here.watch.counted
        counted.update(action for action, _ in here.world.told.lines)
    assert counted.keys() >= {
        "succeeded", "retrying", "dead", "cancelled", "released", "offered", "again",
        "offer_taken", "offer_ignored", "adopted", "reclaimed", "stopping", "unreadable", "unknown_handler",
        "outcome_unknown", "ack_refused", "revoked", "lost", "closed", "left", "rebuild",
        "handed_over",
    }, counted  # fmt: skip
