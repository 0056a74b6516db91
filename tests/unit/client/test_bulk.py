"""schedule_many: order, bounds, and what a bad item leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from pipeline.client import bulk
from pipeline.client import connection as client_connection
from pipeline.core.errors import InvalidInput, StoreUnreachable


def items(count: int) -> Iterator[dict[str, Any]]:
    return ({"handler": "h", "payload": {"n": n}, "in_": n} for n in range(count))


def test_references_come_in_order_and_all_jobs_are_stored(store: Any, app: Any) -> None:
    refs = list(app.schedule_many(items(2_500)))
    assert [ref.due_at for ref in refs] == sorted(ref.due_at for ref in refs)
    assert {ref.id for ref in refs} == {run.job_id for run in store.runs()}
    assert len(set(refs)) == 2_500


def test_nothing_is_created_before_the_iterator_is_consumed(store: Any, app: Any) -> None:
    app.schedule_many(items(3))
    assert store.jobs() == []


def test_no_items_no_references(app: Any) -> None:
    assert list(app.schedule_many([])) == []


@pytest.mark.parametrize("bad", [1, 2, 1_001, 2_345])
def test_what_stands_before_a_bad_item_is_stored_and_told(store: Any, app: Any, bad: int) -> None:
    jobs = list(items(3_000))
    jobs[bad - 1]["in_"] = "soon"
    told: list[Any] = []
    with pytest.raises(InvalidInput, match=rf"^item {bad}: in_: 'soon'") as caught:
        told.extend(app.schedule_many(jobs))
    assert caught.value.field == f"item {bad}: in_"
    assert len(told) == bad - 1
    assert {ref.id for ref in told} == {run.job_id for run in store.runs()}


def test_an_error_of_the_source_comes_after_what_it_gave(app: Any) -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield from items(5)
        raise OSError("disk")

    refs = app.schedule_many(source())
    assert len(list(islice(refs, 5))) == 5
    with pytest.raises(OSError, match="disk"):
        next(refs)


def test_a_source_is_not_read_far_ahead(app: Any) -> None:
    read = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal read
        for item in items(1_000_000):
            read += 1
            yield item

    next(app.schedule_many(source()))
    assert read <= (bulk.IN_FLIGHT + 1) * bulk.CHUNK_JOBS


def test_large_jobs_make_small_chunks(app: Any) -> None:
    read = 0

    def source() -> Iterator[dict[str, Any]]:
        nonlocal read
        for item in items(1_000):
            read += 1
            yield {**item, "payload": {"x": "y" * 500_000}}

    next(app.schedule_many(source()))
    assert read * 500_000 <= (bulk.IN_FLIGHT + 2) * bulk.CHUNK_BYTES


def test_a_slow_source_sees_its_references_soon(
    store: Any, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "IN_FLIGHT", 0)
    told: list[str] = []

    def source() -> Iterator[dict[str, Any]]:
        for n, item in enumerate(items(10)):
            assert len(told) == n
            store.clock.advance(bulk.CHUNK_AGE_MS)
            yield item

    told.extend(ref.id for ref in app.schedule_many(source()))
    assert len(told) == 10


def test_jobs_of_every_kind_keep_their_order(store: Any, app: Any) -> None:
    """One that asks for more goes another way to the same log."""
    jobs = [{"handler": f"h{n}", "in_": 60, **({"spread": "5s"} if n % 3 else {})} for n in range(20)]
    refs = list(app.schedule_many(jobs))
    handlers = {run.job_id: run.handler for run in store.runs()}
    assert [handlers[ref.id] for ref in refs] == [job["handler"] for job in jobs]


def test_every_record_stands_at_its_home_under_its_key(store: Any, app: Any) -> None:
    refs = {ref.id for ref in app.schedule_many(items(1_500))}
    for record in store.jobs():
        job_id = record.key().removeprefix(b"j/").decode()
        assert job_id in refs
        assert record.partition() == store.layout.home(job_id)


def test_a_delay_counts_from_when_the_source_gives_the_job(store: Any, app: Any) -> None:
    began = store.clock.now()

    def source() -> Iterator[dict[str, Any]]:
        for _ in range(3):
            store.clock.advance(30_000)
            yield {"handler": "h", "in_": 60}

    refs = list(app.schedule_many(source()))
    assert [ref.due_at.timestamp() * 1000 - began for ref in refs] == [90_000, 120_000, 150_000]


def test_a_queue_made_meanwhile_is_found_and_an_unknown_one_named(store: Any, app: Any) -> None:
    job = {"handler": "h", "in_": 1, "queue": "mail"}
    with pytest.raises(InvalidInput, match=r"^item 1: queue: 'mail' is unknown"):
        list(app.schedule_many([job]))
    store.add_queues({"mail": 2})
    assert len(list(app.schedule_many([job, job]))) == 2


def test_a_record_that_was_refused_ends_it(store: Any, app: Any) -> None:
    app.schedule("h", in_="1s")
    store.appenders[0].refused = StoreUnreachable("gone")
    with pytest.raises(StoreUnreachable, match="gone"):
        list(app.schedule_many(items(10)))


def test_silence_ends_it(store: Any, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app.schedule("h", in_="1s")
    monkeypatch.setattr(client_connection, "DELIVERY_S", 0.01)
    store.appenders[0].silent = True
    with pytest.raises(StoreUnreachable, match="did not confirm"):
        list(app.schedule_many(items(10)))
    store.appenders[0].silent = False
