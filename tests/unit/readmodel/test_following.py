"""The thread: where it begins, what stops it, and how it goes on."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.readmodel.conftest import wait_settled
from unit.readmodel.test_jobs import DUE, run_of

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryPartition
from pipeline.core.errors import NotFound, Refused, StoreUnreachable
from pipeline.core.job import AckState, Heartbeat
from pipeline.core.keys import LAYOUT_KEY
from pipeline.ports import Put
from pipeline.readmodel import JobsWanted, Position, ReadModel, Retention, folding, following
from pipeline.readmodel.rows import FORMAT

Settled = Callable[[], ReadModel]
Eventually = Callable[..., None]
DAY = 86_400_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "AGAIN_S", 0.01)
    monkeypatch.setattr(following, "LONGEST_S", 0.02)


@pytest.fixture
def opened(connect: Any, tmp_path: Path) -> Iterator[Callable[..., ReadModel]]:
    """Models of one directory, one after the other."""
    models: list[ReadModel] = []

    def open_(**retention: int) -> ReadModel:
        for model in models:
            model.close()
        models[:] = [ReadModel(tmp_path / "mine", connect, Retention(**retention))]
        return models[0]

    yield open_
    for model in models:
        model.close()


def count(model: ReadModel) -> int:
    return model.count(JobsWanted()).number


def test_while_it_does_not_follow_what_it_shows_grows_old(
    store: Any, settled: Settled, eventually: Eventually
) -> None:
    """Whatever was left when it broke off: what has been written since nobody knows."""
    model = settled()
    assert model.freshness().age_ms == 0
    store.cluster.reachable = False
    eventually(lambda: model.freshness().problem is not None)
    before = model.freshness().age_ms
    eventually(lambda: model.freshness().age_ms > before + 50)
    store.cluster.reachable = True
    eventually(lambda: model.freshness()[:] == (0, 0, True, None))


def test_its_directory_is_private_and_its_own(opened: Any, connect: Any, tmp_path: Path) -> None:
    opened()
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    with pytest.raises(Refused, match="cannot be opened"):
        ReadModel(tmp_path / "mine", connect)


def test_it_goes_on_where_it_was(
    store: Any, opened: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run_of(n) for n in range(5)]
    for run in runs[:3]:
        store.put(run)
    model = opened()
    wait_settled(store, model)
    folded: list[bytes] = []
    plain = folding.Folding._job

    def counted(self: Any, record: Any, key: bytes) -> None:
        folded.append(key)
        plain(self, record, key)

    monkeypatch.setattr(folding.Folding, "_job", counted)
    nonce = model._following.nonce
    model = opened()
    for run in runs[3:]:
        store.put(run)
    wait_settled(store, model)
    assert (count(model), len(folded)) == (5, 2)
    assert model._following.nonce == nonce
    eventually(lambda: model.freshness() == (0, 0, True, None))


def test_a_store_that_goes_away_is_told_and_found_again(
    store: Any, settled: Settled, eventually: Eventually
) -> None:
    store.put(run_of(1))
    model = settled()
    store.cluster.reachable = False
    eventually(lambda: "no broker" in (model.freshness().problem or ""))
    assert count(model) == 1  # what is known is answered all the same
    with pytest.raises(StoreUnreachable):
        model.why(run_of(1).job_id)
    store.cluster.reachable = True
    store.put(run_of(2))
    wait_settled(store, model)
    assert (count(model), model.freshness().problem) == (2, None)


def test_without_a_store_it_is_not_ready(store: Any, connect: Any, tmp_path: Path) -> None:
    store.cluster.reachable = False
    model = ReadModel(tmp_path / "readmodel", connect)
    try:
        assert not model.freshness().ready
        assert model.jobs(JobsWanted()).rows == []
        with pytest.raises(StoreUnreachable):
            model.queues()
        with pytest.raises(NotFound):
            model.job(run_of(1).job_id)
    finally:
        model.close()


def test_what_nobody_expected_is_told_and_tried_again(
    store: Any, settled: Settled, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a batch is folded, and nothing of it counts."""
    model = settled()
    plain = folding.Folding._plain_job

    def broken(self: Any, record: Any, id_: bytes) -> bool:
        if id_ == run_of(2).job_id.encode():
            raise ZeroDivisionError("on purpose")
        return plain(self, record, id_)

    with monkeypatch.context() as patch:
        patch.setattr(folding.Folding, "_plain_job", broken)
        store.put(run_of(1))
        store.put(run_of(2))
        eventually(lambda: "ZeroDivisionError: on purpose" in (model.freshness().problem or ""))
        assert count(model) <= 1
    wait_settled(store, model)
    assert count(model) == 2


def test_a_log_that_lost_its_tail_is_folded_anew(
    store: Any, settled: Settled, eventually: Eventually
) -> None:
    runs = [run_of(n) for n in range(3)]
    for run in runs:
        store.put(run)
    model = settled()
    nonce = model._following.nonce
    home = store.cluster.partition(store.names.jobs, store.layout.home(runs[2].job_id))
    del home.entries[-1]
    eventually(lambda: model._following.nonce != nonce)
    wait_settled(store, model)
    assert count(model) == 2


def test_a_log_whose_beginning_is_gone_is_folded_anew(
    store: Any, opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(1)
    store.put(run)
    model = opened()
    wait_settled(store, model)
    model.close()
    for n in range(2, 5):
        store.put(run_of(n))
    log = store.cluster.partition(store.names.events, 0)
    store.tell(0, "c1")
    log.start = log.end
    model = opened()
    wait_settled(store, model)
    assert count(model) == 4
    assert "folded anew" in caplog.text


def test_rows_of_another_version_are_folded_anew(store: Any, opened: Any) -> None:
    store.put(run_of(1))
    model = opened()
    wait_settled(store, model)
    told = json.loads(model._rows.get(FORMAT) or b"")
    model._following.close()
    model._rows.write({FORMAT: json.dumps({**told, "version": 0}).encode(), b"Rgarbage": b"?"})
    model = opened()
    wait_settled(store, model)
    assert (count(model), model._rows.get(b"Rgarbage")) == (1, None)


def test_a_topic_that_was_made_anew(store: Any, opened: Any) -> None:
    store.put(run_of(1))
    model = opened()
    wait_settled(store, model)
    model.close()
    del store.cluster._topics[store.names.jobs]
    store.cluster.create_topic(store.names.jobs, store.layout.partitions)
    store.put(run_of(2))
    model = opened()
    wait_settled(store, model)
    assert [row["id"] for row in model.jobs(JobsWanted()).rows] == [run_of(2).job_id]


def test_a_queue_that_is_new(store: Any, settled: Settled) -> None:
    model = settled()
    store.add_queues({"mail": 2})
    store.cluster.append(Put(store.names.meta, 0, LAYOUT_KEY, codec.LAYOUT.encode(store.layout)))
    run = run_of(1, queue="mail")
    store.put(run)
    store.fire(run)
    wait_settled(store, model)
    view = model.job(run.job_id)
    assert (view["status"], view["queue"], len(view["runs"])) == ("queued", "mail", 1)


def test_a_broker_that_is_new(
    store: Any, settled: Settled, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "CHECK_S", 0.0)
    model = settled()
    store.cluster._topics[store.names.fleet].append(MemoryPartition())
    beat = Heartbeat(process="w9", role="worker", version="0", host="h", pid=1, started_at=0, generation=1)
    store.cluster.append(Put(store.names.fleet, 2, b"w9", codec.HEARTBEAT.encode(beat)))
    eventually(lambda: [each["process"] for each in model.fleet()["processes"]] == ["w9"])


def test_nobody_waits_longer_than_asked(store: Any, settled: Settled) -> None:
    model = settled()
    assert not model.wait_for(Position(store.names.jobs, 0, 1_000), 10)
    assert not model.wait_for(Position("no.such.topic", 0, 0), 10)


@pytest.mark.parametrize("retention", [{"ended_ms": 30 * DAY}, {"ended_most": 2}])
def test_what_has_ended_is_forgotten(
    store: Any,
    opened: Any,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    retention: dict[str, int],
) -> None:
    monkeypatch.setattr(following, "FORGET_S", 0.0)
    runs = [run_of(n, due_at=DUE + n) for n in range(6)]
    for run in runs:
        store.put(run)
    for run in runs[:4]:
        store.fire(run)
        store.ack(run, AckState.SUCCEEDED)
    if "ended_ms" in retention:
        store.clock.advance(31 * DAY)
    for run in runs[4:5]:
        store.fire(run)
        store.ack(run, AckState.SUCCEEDED)
    model = opened(**retention)
    left = [5, 4] if "ended_ms" in retention else [5, 4, 3]
    eventually(lambda: count(model) == len(left))
    store.put(run_of(9))
    wait_settled(store, model)
    kept = [row["id"] for row in model.jobs(JobsWanted()).rows]
    assert sorted(kept) == sorted([*(runs[n].job_id for n in left), run_of(9).job_id])
    with pytest.raises(NotFound):
        model.job(runs[0].job_id)
    assert model._sheet.totals.ended == len(left) - 1
    buckets = model.buckets(DUE - DUE % 3_600_000, DUE + 7_200_000, 3_600_000)
    assert sum(sum(bucket["counts"].values()) for bucket in buckets) == len(kept)


def test_questions_of_many_threads_while_it_folds(store: Any, settled: Settled) -> None:
    model, failed, done = settled(), list[BaseException](), threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                rows = model.jobs(JobsWanted(), limit=20).rows
                model.overview(), model.count(JobsWanted(due_from=DUE)), model.freshness()
                for row in rows[:3]:
                    model.job(row["id"])
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the test fails for it
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(1_000):
        run = run_of(n, due_at=DUE + n, handler=f"h{n % 50}")
        store.put(run)
        if n % 2:
            store.fire(run)
            store.ack(run, AckState.STARTED)
            store.ack(run, AckState.SUCCEEDED)
    wait_settled(store, model)
    done.set()
    for thread in threads:
        thread.join(10.0)
    assert not failed
    assert count(model) == 1_000


def test_acks_of_what_nobody_knows_are_forgotten_too(
    store: Any, opened: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FORGET_S", 0.0)
    store.ack(run_of(1), AckState.STARTED)
    model = opened()
    wait_settled(store, model)
    with pytest.raises(NotFound):
        model.job(run_of(1).job_id)
    assert count(model) == 0
    assert model._rows.get(b"R" + run_of(1).job_id.encode()) is not None
    store.clock.advance(31 * DAY)
    store.put(run_of(2, created_at=store.clock.now()))
    eventually(lambda: model._rows.get(b"R" + run_of(1).job_id.encode()) is None)
