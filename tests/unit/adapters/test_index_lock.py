"""The index of a process that gives its partitions up and gets them back, over and over (H25)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.errors import Refused
from tests.unit.test_dispatcher import LAYOUT, House, steps

EVERY = tuple(range(LAYOUT.partitions))


def test_h25_a_hundred_rebalances_leave_no_lock_and_no_file_open(tmp_path: Path) -> None:
    house, index = House(), RocksIndex(tmp_path)
    dispatcher = house.dispatcher("d", index)  # type: ignore[arg-type]
    steps(dispatcher)
    jobs = [house.job(due_in=1_000) for _ in range(50)]
    steps(dispatcher)
    for _ in range(100):
        dispatcher.revoked(EVERY)
        starts = dispatcher.assigned(EVERY)
        assert max(starts.values()) > 0  # from where its index stands
    with pytest.raises(Refused):
        RocksIndex(tmp_path)
    house.clock.advance(1_000)
    steps(dispatcher)
    assert {run.job_id for run in house.fired()} == {run.job_id for run in jobs}
    dispatcher.close()
    index.close()
    RocksIndex(tmp_path).close()
