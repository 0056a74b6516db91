"""The short way and the long way of folding a plain job, whatever is read first: the same row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.readmodel.test_jobs import run_of

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.job import AckState, Failure, Run
from pipeline.readmodel.body import unpack
from pipeline.readmodel.folding import Folding
from pipeline.readmodel.plain import JSON, PLAIN, WAITING
from pipeline.readmodel.processes import Processes
from pipeline.readmodel.rows import head_of
from pipeline.readmodel.sheet import Sheet

Steps = Callable[[Any, Run], None]


def waiting(store: Any, run: Run) -> None:
    store.put(run)


def fired(store: Any, run: Run) -> None:
    store.put(run)
    store.clock.advance(60_000)
    store.fire(run)


def ended(state: AckState, **more: Any) -> Steps:
    def steps(store: Any, run: Run) -> None:
        fired(store, run)
        store.ack(run, AckState.STARTED)
        store.clock.advance(100)
        store.ack(run, state, started_at=store.clock.now(), **more)

    return steps


def late(store: Any, run: Run) -> None:
    store.put(run)
    store.clock.advance(100_000)
    store.fire(run)
    store.ack(run, AckState.STARTED)


def acked_twice(store: Any, run: Run) -> None:
    fired(store, run)
    for _ in range(2):
        store.ack(run, AckState.SUCCEEDED)
    store.ack(run, AckState.STARTED)


CASES: dict[str, tuple[Steps, int]] = {
    "waiting": (waiting, WAITING),
    "fired": (fired, PLAIN),
    "late": (late, PLAIN),
    "succeeded": (ended(AckState.SUCCEEDED), PLAIN),
    "with a result": (ended(AckState.SUCCEEDED, result=b'{"a":[1]}'), PLAIN),
    "released": (ended(AckState.RELEASED), PLAIN),
    "acked twice": (acked_twice, PLAIN),
    "failed": (ended(AckState.DEAD, error=Failure(type="E", message="no")), JSON),
    "with a log": (ended(AckState.SUCCEEDED, log_tail="line"), JSON),
}


def shuffled(store: Any, chance: Random) -> list[Any]:
    """All records, those of a partition in order."""
    names = store.names
    logs = [
        store.cluster.partition(topic, number).read(0, 1_000)[0]
        for topic in (names.jobs, names.work("default"), names.acks("default"))
        for number in range(store.cluster.partitions(topic))
    ]
    found = []
    while logs := [log for log in logs if log]:
        found.append(chance.choice(logs).pop(0))
    return found


@pytest.mark.parametrize("name", CASES)
def test_both_ways_come_to_the_same_row(store: Any, tmp_path: Path, name: str) -> None:
    steps, form = CASES[name]
    run = run_of(1)
    steps(store, run)
    told = store.follower.job(run.job_id)
    for seed in range(4):
        records, seen = shuffled(store, Random(seed)), []
        for quick in (True, False):
            rows = RocksRows(tmp_path / f"{seed}-{quick}")
            sheet = Sheet(rows)
            folding = Folding(store.names, store.layout, sheet, Processes())
            folding.quick = quick
            for record in records:
                folding.take([record])
                sheet.write()
            row = rows.get(b"R" + run.job_id.encode()) or b""
            seen.append((head_of(row).form, unpack(run.job_id, row, sheet.words), sheet.recent.minutes))
            rows.close()
        assert seen[0] == seen[1]
        assert seen[0][0] == form
        assert seen[0][1].status() == told["status"]
