"""A job that is followed: a look costs what has come since the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.adapters.memory import MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.core.errors import DuelineError, NotFound, StoreUnreachable
from pipeline.core.job import AckState, JobStatus
from pipeline.follower import Follower, Watch
from pipeline.ports import Record


class CountingReader(MemoryReader):
    """Counts the records that it hands out."""

    count = 0

    def read(self, *place: Any, **more: Any) -> Iterator[Record]:
        for record in super().read(*place, **more):
            self.count += 1
            yield record


def test_no_record_is_read_twice(store: Any, app: Any) -> None:
    ref = app.schedule("h", in_="0s")
    (run,) = store.runs()
    reader = CountingReader(store.cluster)
    watch = Watch(reader=reader, names=store.names, layout=store.layout, job_id=ref.id)
    seen = []
    for change in (
        lambda: None,
        lambda: store.fire(run),
        lambda: store.ack(run, AckState.STARTED),
        lambda: None,
        lambda: store.ack(run, AckState.SUCCEEDED, result=b"1"),
        lambda: None,
    ):
        change()
        sight = watch.look()
        assert sight is not None
        seen.append((str(sight.status), reader.count))
    assert seen == [
        ("pending", 1),
        ("queued", 2),
        ("running", 3),
        ("running", 3),
        ("succeeded", 4),
        ("succeeded", 4),
    ]
    assert watch.run() == run


def test_nothing_is_nothing_until_it_comes(store: Any) -> None:
    id_ = "j" + "0" * 26
    watch = Watch(reader=MemoryReader(store.cluster), names=store.names, layout=store.layout, job_id=id_)
    assert (watch.look(), watch.run()) == (None, None)


def test_a_forged_place_is_no_place(store: Any, app: Any) -> None:
    ref = app.schedule("h", in_="0s")
    (run,) = store.runs()
    store.end(run, "fired", place="nowhere/3")
    watch = Watch(reader=MemoryReader(store.cluster), names=store.names, layout=store.layout, job_id=ref.id)
    sight = watch.look()
    assert sight is not None
    assert (sight.status, watch.run()) == (JobStatus.QUEUED, None)


# -- a store that is away, or coming back -------------------------------------------------------------------


class FalteringReader(MemoryReader):
    """`fail` says what becomes of a read of a topic: the error, and after how many records."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        self.fail: dict[str, tuple[DuelineError, int]] = {}
        self.undecided = False

    def read(self, topic: str, *place: Any, **more: Any) -> Iterator[Record]:
        error, count = self.fail.get(topic, (None, 0))
        for number, record in enumerate(super().read(topic, *place, **more)):
            if error is not None and number == count:
                raise error
            yield record
        if error is not None:
            raise error

    def decided(self, topic: str, partition: int, timeout_ms: int) -> None:
        if self.undecided:
            raise StoreUnreachable("hidden")


@pytest.fixture
def reader(store: Any) -> FalteringReader:
    return FalteringReader(store.cluster)


def asked(store: Any, reader: FalteringReader, job_id: str) -> list[Callable[[], Any]]:
    """All who ask for one job."""
    follower = Follower(reader=reader, names=store.names, layout=store.layout)
    watch = Watch(reader=reader, names=store.names, layout=store.layout, job_id=job_id)
    return [
        lambda: follower.job(job_id),
        lambda: follower.run_of(job_id),
        lambda: follower.why(job_id, 0),
        watch.look,
    ]


@pytest.mark.parametrize("topic", ["jobs", "work", "acks"])
def test_a_store_that_does_not_know_its_topics_yet_says_nothing_of_a_job(
    store: Any, app: Any, reader: FalteringReader, topic: str
) -> None:
    """It is coming back. "Not found" would be a lie, and so would be that a job that has ended is queued."""
    app.schedule("h", in_="0s")
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.SUCCEEDED)
    names = {
        "jobs": store.names.jobs,
        "work": store.names.work("default"),
        "acks": store.names.acks("default"),
    }
    reader.fail = {names[topic]: (NotFound("Unknown partition"), 0)}
    everybody = asked(store, reader, run.job_id)
    for ask in everybody[:3] if topic == "work" else everybody:  # a watch does not need the run
        with pytest.raises(StoreUnreachable, match="though the layout names it"):
            ask()


def test_what_may_be_hidden_is_not_said_not_to_be_there(store: Any, reader: FalteringReader) -> None:
    reader.undecided = True
    for ask in asked(store, reader, "j" + "0" * 26):
        with pytest.raises(StoreUnreachable, match="hidden"):
            ask()
    reader.undecided = False
    for ask in asked(store, reader, "j" + "0" * 26)[:3]:
        with pytest.raises(NotFound):
            ask()


def test_what_was_read_before_the_store_went_away_is_kept(
    store: Any, app: Any, reader: FalteringReader
) -> None:
    app.schedule("h", in_="0s")
    (run,) = store.runs()
    store.fire(run)
    store.ack(run, AckState.STARTED)
    store.ack(run, AckState.SUCCEEDED, result=b"1")
    watch = Watch(reader=reader, names=store.names, layout=store.layout, job_id=run.job_id)
    for topic, count in ((store.names.jobs, 1), (store.names.acks("default"), 2)):
        reader.fail = {topic: (StoreUnreachable("away"), count)}
        with pytest.raises(StoreUnreachable):
            watch.look()
    reader.fail = {}
    sight = watch.look()
    assert sight is not None
    assert (sight.status, sight.result) == (JobStatus.SUCCEEDED, 1)
