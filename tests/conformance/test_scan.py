"""Reading in bulk over memory and the real broker: what is committed, in order, and nothing of what is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.adapters.kafka_scan import KafkaScan
from pipeline.adapters.memory_scan import MemoryScan
from pipeline.core.errors import NotFound
from pipeline.ports import CommittedOffset, Span


@pytest.fixture
def scan(world: Any) -> Iterator[Any]:
    built: Any = KafkaScan(world.bootstrap) if hasattr(world, "bootstrap") else MemoryScan(world.cluster)
    yield built
    built.close()


def read(scan: Any, topic: str, partition: int, start: int, end: int) -> list[tuple[int, bytes]]:
    found = [record for batch in scan.batches(topic, partition, start, end) for record in batch]
    return [(record.offset(), record.value()) for record in found]


def test_a_span_ends_where_the_log_does_now(world: Any, scan: Any) -> None:
    assert scan.span(world.topic, 1) == Span(0, 0, 0)
    world.append(*(world.put(1, "k", b"%d" % n) for n in range(5)))
    assert scan.span(world.topic, 1) == Span(0, 0, 5)


def test_a_span_since_an_instant(world: Any, scan: Any) -> None:
    world.append(world.put(0, "k", b"old"))
    world.append(world.put(0, "k", b"new"))
    (at, later) = (r.timestamp()[1] for r in world.reader().read(world.topic, 0))
    assert scan.span(world.topic, 0, at) == Span(0, 0, 2)
    assert scan.span(world.topic, 0, later + 1) == Span(0, 2, 2)
    assert scan.span(world.topic, 2, at) == Span(0, 0, 0)


def test_records_between_two_offsets(world: Any, scan: Any) -> None:
    world.append(*(world.put(0, "k", b"%d" % n) for n in range(20)))
    assert read(scan, world.topic, 0, 3, 6) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert read(scan, world.topic, 0, 18, 20) == [(18, b"18"), (19, b"19")]
    assert read(scan, world.topic, 0, 6, 6) == []


def test_one_reading_after_the_other_each_from_its_own_beginning(world: Any, scan: Any) -> None:
    world.append(*(world.put(n % 3, "k", b"%d" % n) for n in range(9)))
    for _ in range(2):
        for n in range(3):
            assert read(scan, world.topic, n, 0, 3) == [(i, b"%d" % (n + 3 * i)) for i in range(3)]


def test_a_reading_that_was_given_up_leaves_nothing_behind(world: Any, scan: Any) -> None:
    world.append(*(world.put(0, "k", b"%d" % n) for n in range(20)))
    unfinished = scan.batches(world.topic, 0, 0, 20)
    next(unfinished)
    unfinished.close()
    assert read(scan, world.topic, 1, 0, 0) == []
    assert read(scan, world.topic, 0, 19, 20) == [(19, b"19")]


def test_h22_what_is_committed_is_read_and_the_end_passes_markers(world: Any, scan: Any) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "k", b"in")], world.at(0), log.membership())
    world.abort(log, world.put(0, "k", b"out"))
    log.commit([world.put(0, "k", b"last")], world.at(0), log.membership())
    scan.decided(world.topic, 0)
    span = scan.span(world.topic, 0)
    assert [value for _, value in read(scan, world.topic, 0, span.start, span.end)] == [b"in", b"last"]


def test_what_a_group_has_committed(world: Any, scan: Any) -> None:
    log = world.joined(world.log())
    log.commit([], {0: CommittedOffset(3, "1;0;;;"), 2: CommittedOffset(0, "")}, log.membership())
    group = f"{world.prefix}.group" if hasattr(world, "bootstrap") else "group"
    assert log.committed([0, 2], 20_000).keys() == {0, 2}  # stable: what a scan reads may be not yet
    assert dict(scan.committed(group, world.topic, 4)) == {
        0: CommittedOffset(3, "1;0;;;"),
        2: CommittedOffset(0, ""),
    }
    assert dict(scan.committed(f"{world.prefix}.nobody", world.topic, 4)) == {}


def test_what_does_not_exist(world: Any, scan: Any) -> None:
    assert scan.partitions(world.topic) == 4
    assert scan.partitions(f"{world.prefix}.nowhere") == 0
    with pytest.raises(NotFound):
        scan.span(f"{world.prefix}.nowhere", 0)
