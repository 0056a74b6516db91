"""How what a replay has emitted stands now."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.readmodel.conftest import wait_settled
from unit.readmodel.test_jobs import run_of

from pipeline import codec
from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.job import AckState, Run
from pipeline.portion import REPLAY_HEADER
from pipeline.ports import Put
from pipeline.readmodel import ReadModel, replayed
from pipeline.readmodel.forgetting import Retention
from pipeline.readmodel.replayed import outcomes_of
from pipeline.readmodel.rows import REPLAYED, REPLAYS, after

Settled = Callable[[], ReadModel]
FIRST, SECOND = (str(uuid.UUID(int=n)) for n in (1, 2))


def emit(store: Any, run: Run, replay: str, number: int = 2) -> Run:
    """A further run, as a replay or a retry of its run makes it."""
    again = replace(run, run=number, headers={**run.headers, REPLAY_HEADER: replay})
    work = store.names.work(run.queue)
    store.cluster.append(Put(work, store._work(run), run.occurrence_id.encode(), codec.RUN.encode(again)))
    return again


def dead(store: Any, n: int, **fields: Any) -> Run:
    run = run_of(n, **fields)
    store.put(run)
    store.fire(run)
    store.ack(run, AckState.DEAD)
    return run


def counted(model: ReadModel, replay: str) -> dict[str, int]:
    told = outcomes_of(model._rows, replay)
    assert not told["capped"]
    counts: dict[str, int] = told["counts"]
    return counts


def test_what_a_replay_has_emitted_is_counted_as_it_stands(store: Any, settled: Settled) -> None:
    runs = [dead(store, n) for n in range(5)]
    assert counted(settled(), FIRST) == {}
    again = [emit(store, run, FIRST) for run in runs[:4]]
    assert counted(settled(), FIRST) == {"queued": 4}
    store.ack(again[0], AckState.SUCCEEDED)
    store.ack(again[1], AckState.STARTED)
    store.ack(again[2], AckState.DEAD)
    assert counted(settled(), FIRST) == {"succeeded": 1, "running": 1, "dead": 1, "queued": 1}
    emit(store, again[2], FIRST, 3)  # the header goes with a retry, which is no further occurrence
    assert counted(settled(), FIRST) == {"succeeded": 1, "running": 1, "queued": 2}
    emit(store, again[0], SECOND, 3)
    assert counted(settled(), SECOND) == {"queued": 1}
    assert counted(settled(), FIRST) == {"running": 1, "queued": 3}


@pytest.mark.parametrize("header", ["", "x", FIRST + "x", FIRST[:-1]], ids=str.__len__)
def test_what_is_no_replay_is_counted_as_none(store: Any, settled: Settled, header: str) -> None:
    emit(store, dead(store, 1), header)
    dead(store, 2, headers={REPLAY_HEADER: FIRST})  # whoever makes a job may give it any header
    model = settled()
    assert counted(model, FIRST) == counted(model, header) == {}
    assert _kept(model._rows, REPLAYED) == _kept(model._rows, REPLAYS) == []


def test_no_more_are_counted_than_there_is_time_for(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        emit(store, dead(store, n), FIRST)
    rows = settled()._rows
    monkeypatch.setattr(replayed, "AT_ONCE", 2)
    monkeypatch.setattr(replayed, "COUNTED", 4)
    assert outcomes_of(rows, FIRST) == {"counts": {"queued": 4}, "capped": True}
    monkeypatch.setattr(replayed, "COUNTED", 5)
    assert outcomes_of(rows, FIRST) == {"counts": {"queued": 5}, "capped": False}
    monkeypatch.setattr(replayed, "COUNTED_S", -1.0)
    assert outcomes_of(rows, FIRST) == {"counts": {"queued": 2}, "capped": True}


def test_it_is_forgotten_with_its_job(store: Any, connect: Any, tmp_path: Path, eventually: Any) -> None:
    again = emit(store, emit(store, dead(store, 1), FIRST), SECOND, 3)
    other = emit(store, dead(store, 2), FIRST)
    model = ReadModel(tmp_path / "forgetful", connect, Retention(ended_most=0))
    try:
        wait_settled(store, model)
        store.ack(again, AckState.SUCCEEDED)
        wait_settled(store, model)
        eventually(lambda: _kept(model._rows, REPLAYED) == [FIRST.encode() + other.job_id.encode()])
        assert _kept(model._rows, REPLAYS) == [other.job_id.encode()]
    finally:
        model.close()


def _kept(rows: RocksRows, kind: bytes) -> list[bytes]:
    return [key[1:] for key, _ in rows.scan(kind, after(kind))]
