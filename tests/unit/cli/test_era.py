"""`dueline era bump` over a store in memory."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.adapters import kafka_admin
from pipeline.adapters.kafka_meta import EraBump


@pytest.fixture
def bumps(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The settings of each bump that was made."""
    made: list[object] = []

    def bump(settings: object) -> EraBump:
        made.append(settings)
        return EraBump(old=3, new=4, guards=24)

    monkeypatch.setattr(kafka_admin, "bump_era", bump)
    return made


def test_old_and_new_era_are_told_and_that_processes_must_be_restarted(
    dueline: Any, bumps: list[object]
) -> None:
    ran = dueline("era", "bump", "--json")
    assert (ran.code, ran.json("era_bump")) == (0, {"old": 3, "new": 4, "guards_removed": 24})
    assert "restart all workers and dispatchers" in ran.err
    assert "era 3 is over, era 4 has begun; 24 guards removed" in dueline("era", "bump").out
    assert len(bumps) == 2


def test_nothing_is_bumped_under_running_processes_unless_it_is_confirmed(
    dueline: Any, store: Any, bumps: list[object]
) -> None:
    store.beat("d1", role="dispatcher")
    store.beat("w1", queues=("default",))
    store.beat("w1", queues=("mail",))
    store.beat("w2", queues=("default",))
    ran = dueline("era", "bump")
    assert ran.code == 4
    assert "there runs 1 dispatcher and 2 workers" in ran.err
    assert bumps == []
    assert dueline("era", "bump", "--yes").code == 0
    assert len(bumps) == 1
