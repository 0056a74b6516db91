"""What the read model says of jobs, beside what the follower says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pipeline.core.ids import anonymous_id
from pipeline.core.job import AckState, Failure, JobStatus, Run
from pipeline.readmodel import JobsWanted, ReadModel

T0 = 1_800_000_000_000
DUE = T0 + 60_000
Settled = Callable[[], ReadModel]


def run_of(n: int = 0, *, due_at: int = DUE, **fields: Any) -> Run:
    id_ = anonymous_id(due_at, n)
    values: dict[str, Any] = {
        "job_id": id_,
        "occurrence_id": id_,
        "due_at": due_at,
        "run": 1,
        "queue": "default",
        "handler": "email.send",
        "created_at": T0,
        "nominal_at": due_at,
        "idempotency_key": id_,
        "payload": b'{"n":123456789012345678901234567890}',
    }
    return Run(**{**values, **fields})


def test_a_pending_job(store: Any, settled: Settled) -> None:
    run = run_of(labels={"team": "a"})
    store.put(run)
    view = settled().job(run.job_id)
    told = store.follower.job(run.job_id)
    assert {name: view[name] for name in told} == told
    assert view["payload"] == '{"n":123456789012345678901234567890}'
    assert (view["kept"], view["labels"], view["schedule"]) == (True, {"team": "a"}, None)


def test_from_firing_to_the_end(store: Any, settled: Settled) -> None:
    run = run_of()
    again = replace(run, run=2, due_at=DUE + 5_000, failures=1)
    steps: list[Callable[[], None]] = [
        lambda: store.put(run),
        lambda: store.fire(run),
        lambda: store.ack(run, AckState.STARTED),
        lambda: store.ack(run, AckState.RETRYING, error=Failure(type="E", message="no\nmore")),
        lambda: store.put(again),
        lambda: store.fire(again),
        lambda: store.ack(again, AckState.STARTED),
        lambda: store.ack(again, AckState.SUCCEEDED, result=b'{"ok":1}'),
    ]
    for step in steps:
        step()
        store.clock.advance(1_000)
        told = store.follower.job(run.job_id)
        view = settled().job(run.job_id)
        assert {name: view[name] for name in told} == told
    (row,) = settled().jobs(JobsWanted()).rows
    assert (row["status"], row["error"]) == ("succeeded", None)


def test_a_list_in_pages(store: Any, settled: Settled) -> None:
    runs = [run_of(n, due_at=DUE + n * 1_000, handler=f"h{n % 3}") for n in range(10)]
    for run in runs:
        store.put(run)
    model, wanted = settled(), JobsWanted(statuses=frozenset({JobStatus.PENDING}))
    found, cursor = [], None
    while True:
        page = model.jobs(wanted, limit=3, cursor=cursor)
        found += [row["id"] for row in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert found == [run.job_id for run in runs]
    backwards = model.jobs(JobsWanted(order="-due"), limit=10)
    assert [row["id"] for row in backwards.rows] == found[::-1]
    assert model.count(JobsWanted(handler="h1")) == (3, False)


def test_of_many_attempts_the_latest_are_kept(store: Any, settled: Settled) -> None:
    """And what they come to stays true."""
    first = run_of()
    store.put(first)
    for n in range(1, 80):
        run = replace(first, run=n, failures=n - 1)
        if n > 1:
            store.put(run)
        store.fire(run)
        store.ack(run, AckState.STARTED)
        error = Failure(type="E", message=f"{n} " + "x" * 2_000, trace="t" * 10_000)
        store.ack(run, AckState.RETRYING, error=error, log_tail="l" * 10_000)
    view = settled().job(first.job_id)
    assert view["status"] == store.follower.job(first.job_id)["status"] == "retrying"
    assert [each["run"] for each in view["runs"]] == list(range(60, 80))
    attempts = [run["attempts"][0] for run in view["runs"]]
    assert [bool(each["error"]["trace"]) for each in attempts] == [False] * 15 + [True] * 5
    row = settled()._rows.get(b"R" + first.job_id.encode())
    assert row is not None
    assert len(row) < 100_000
