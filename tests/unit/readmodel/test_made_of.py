"""What jobs are made of, many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipeline.core.ids import anonymous_id
from pipeline.core.job import Run
from pipeline.readmodel import ReadModel, made_of
from pipeline.readmodel.made_of import Wanted, stretches
from pipeline.readmodel.questions import Position

T0 = 1_800_000_000_000
DUE = T0 + 60_000
Settled = Callable[[], ReadModel]


def run_of(n: int = 0, **fields: Any) -> Run:
    id_ = anonymous_id(DUE, n)
    values: dict[str, Any] = {
        "job_id": id_,
        "occurrence_id": id_,
        "due_at": DUE,
        "run": 1,
        "queue": "default",
        "handler": "email.send",
        "created_at": T0,
        "nominal_at": DUE,
        "idempotency_key": f"i{n}",
        "payload": b'{"n":%d}' % n,
        "headers": {"h": str(n)},
    }
    return Run(**{**values, **fields})


def test_runs_are_told_whole(store: Any, settled: Settled) -> None:
    """Payload, headers and all, wherever they stand; what nobody has heard of is left out."""
    runs = [run_of(n) for n in range(120)]
    for run in runs:
        store.put(run)
    for run in runs[::2]:
        store.fire(run)
    nobody = anonymous_id(DUE, 10**6)
    found = {made.id: made for made in settled().runs_of([nobody, *(run.job_id for run in runs)])}
    assert found.keys() == {run.job_id for run in runs}
    for n, run in enumerate(runs):
        made = found[run.job_id]
        assert made.highest == (1 if n % 2 == 0 else 0)
        told = store.follower.run_of(run.job_id)
        assert (made.run, made.highest) == told


def test_what_is_gone_from_its_home_is_read_where_it_ran(store: Any, settled: Settled) -> None:
    """The log is compacted, so offsets that were near a wanted one may be missing."""
    runs = [run_of(n) for n in range(60)]
    for run in runs:
        store.put(run)
    for run in runs[::3]:
        store.fire(run)
    again = replace(runs[0], run=2, due_at=DUE + 5_000)
    store.put(again)
    store.fire(again)
    model = settled()
    for partition in range(store.layout.partitions):
        store.cluster.partition(store.names.jobs, partition).compact(drop_tombstones=True)
    found = {made.id: made for made in model.runs_of(run.job_id for run in runs)}
    for run in runs[1:]:
        assert found[run.job_id].run is not None
        assert (found[run.job_id].run.payload, found[run.job_id].run.headers) == (run.payload, run.headers)
    assert (found[runs[0].job_id].run, found[runs[0].job_id].highest) == (again, 2)


def test_what_is_kept_nowhere_is_known_all_the_same(
    store: Any, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of()
    store.put(run)
    store.fire(run)
    model = settled()
    monkeypatch.setattr(made_of, "readable_run", lambda _: None)
    ((id_, made, highest),) = model.runs_of([run.job_id])
    assert (id_, made, highest) == (run.job_id, None, 1)


@pytest.mark.parametrize("size", [10, 20_000])
def test_a_requeue_may_give_a_job_another_payload(store: Any, settled: Settled, size: int) -> None:
    """That is shown, and runs when it is requeued once more, whichever topic was read first; else whoever requeues it
    takes a correction back without a word. Long ones are not kept, but read where they stand."""
    first = run_of(payload=b'{"x":"%s"}' % (b"a" * size))
    again = replace(first, run=2, due_at=DUE + 5_000, payload=b'{"y":"%s"}' % (b"b" * size))
    store.put(first)
    store.fire(first)
    settled()
    store.fire(again)
    for model in (settled(), store.follower):
        assert model.job(first.job_id)["payload"] == again.payload.decode()
    ((_, made, highest),) = settled().runs_of([first.job_id])
    assert (made, highest) == (again, 2) == store.follower.run_of(first.job_id)
    later = replace(first, payload=b"{}")
    store.put(later)  # what stands at home says nothing any more
    assert settled().job(first.job_id)["payload"] == again.payload.decode()


def test_stretches_are_of_one_partition_near_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_of, "AT_ONCE", 3)
    monkeypatch.setattr(made_of, "NEAR", 10)

    def wanted(topic: str, partition: int, offset: int) -> Wanted:
        name = f"{topic}/{partition}/{offset}"
        return Wanted(name, name, 1, (Position(topic, partition, offset),))

    places = [("b", 0, 5), ("a", 1, 0), ("a", 0, 30), ("a", 0, 0), ("a", 0, 10), ("a", 0, 9), ("a", 0, 12)]
    found = [[one.id for one in stretch] for stretch in stretches(wanted(*place) for place in places)]
    assert found == [["a/0/0", "a/0/9", "a/0/10"], ["a/0/12"], ["a/0/30"], ["a/1/0"], ["b/0/5"]]
    assert list(stretches([])) == []
