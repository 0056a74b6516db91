"""A job that is followed: a look costs what has come since the last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.adapters.memory import MemoryReader
from pipeline.core.job import AckState, JobStatus
from pipeline.follower import Watch
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
