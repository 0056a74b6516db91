"""With one rule of the protocol left out, the same freeze must fire a job twice and the history checker must see
it: else neither proves anything. Without the fault, the very same freeze does no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from history import Anomaly, Kind
from nemesis.stage import stage, until

FREEZES = 20
"""The fault must show within so many."""
JOBS = 60
RULES = {
    # The victim has sent its offsets and may still commit: only an undecided record in the way holds the next
    # owner back (H1) …
    "watermark_barrier": "offsets_sent",
    # … and there is one only if the records stood in the log before the offsets were checked (H5).
    "offsets_before_flush": "offsets_sent",
    # The victim holds jobs that are somebody else's by the time it appends anything (H2).
    "late_metadata": "snapshot",
}


def freeze(bootstrap: str, home: Path, step: str, control: str) -> list[Anomaly]:
    """The victim freezes with all jobs in its hand; the next owner takes over and fires them; the victim thaws."""
    with stage(bootstrap, home) as scene:
        victim = scene.dispatcher("victim", point=f"{step}:stop", control=control)
        until(lambda: scene.covered(victim), "the victim runs everything")
        scene.create(JOBS, first_in_ms=700, apart_ms=0)
        until(victim.frozen, "the victim is frozen")
        in_hand = scene.in_hand()
        survivor = scene.dispatcher("survivor", control=control)
        until(lambda: scene.appended.records >= in_hand + JOBS, "the next owner fired every job")
        victim.thaw()
        until(lambda: scene.covered(survivor, victim), "the victim is back")
        scene.finish()
        return scene.anomalies()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", RULES)
def test_h1_h2_h5_a_rule_left_out_is_caught_as_a_double(
    rule: str, broker: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    for number in range(1, FREEZES + 1):
        found = freeze(broker, tmp_path / str(number), RULES[rule], rule)
        if found:
            break
    doubled = sum(anomaly.kind is Kind.DOUBLED for anomaly in found)
    report(f"without {rule:<21} freeze {number} at {RULES[rule]}: {doubled} of {JOBS} jobs doubled")
    assert doubled > 0
    assert {anomaly.kind for anomaly in found} == {Kind.DOUBLED}


@pytest.mark.timeout(120)
def test_h1_a_zombie_that_commits_after_the_partitions_moved_is_seen_by_the_next_owner(
    broker: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    """H1 itself: the barrier, not a fence, is what keeps the next owner from firing the same jobs."""
    with stage(broker, tmp_path) as scene:
        victim = scene.dispatcher("victim", point="offsets_sent:stop")
        until(lambda: scene.covered(victim), "the victim runs everything")
        scene.create(JOBS, first_in_ms=700, apart_ms=0)
        until(victim.frozen, "the victim is frozen")
        survivor = scene.dispatcher("survivor")
        until(survivor.assigned, "the partitions moved")
        victim.thaw()
        until(lambda: scene.covered(survivor, victim), "the victim is back")
        until(scene.seen, "every job was seen")
        scene.finish()
        again = scene.appended.records - JOBS
        report(f"the product                   thawed as the partitions moved: {again} of {JOBS} fired anew")
        assert scene.anomalies() == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("step", sorted({*RULES.values()}))
def test_h1_h2_h5_the_same_freeze_does_no_harm_to_the_product(
    step: str, broker: str, tmp_path: Path, report: Callable[[str], None]
) -> None:
    found = freeze(broker, tmp_path, step, "")
    report(f"the product                   freeze at {step}: {len(found)} of {JOBS} jobs wrong")
    assert found == []
