"""Following partitions over memory and the real broker: from where it was told, each record once, nothing undecided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.adapters.kafka_follow import KafkaFollow
from pipeline.adapters.memory_follow import MemoryFollow
from pipeline.core.errors import RebuildPartition

Eventually = Callable[..., None]
BEGINNING = -1


@pytest.fixture
def follow(world: Any) -> Iterator[Any]:
    built: Any = KafkaFollow(world.bootstrap) if hasattr(world, "bootstrap") else MemoryFollow(world.cluster)
    yield built
    built.close()


def taken(follow: Any, eventually: Eventually, count: int) -> list[tuple[str, int, int, bytes]]:
    """The next so many records, and that nothing is left behind them."""
    found: list[Any] = []

    def more() -> bool:
        found.extend(follow.poll(100, 50))
        return len(found) >= count and not follow.left()

    eventually(more, timeout=12.0)
    return [(r.topic(), r.partition(), r.offset(), r.value()) for r in found]


def test_from_the_beginning_and_from_an_offset(world: Any, follow: Any, eventually: Eventually) -> None:
    world.append(*(world.put(0, "k", b"%d" % n) for n in range(4)), world.put(1, "k", b"one"))
    follow.follow({(world.topic, 0): (2, None), (world.topic, 1): (BEGINNING, None)})
    found = taken(follow, eventually, 3)
    assert sorted(found) == [
        (world.topic, 0, 2, b"2"), (world.topic, 0, 3, b"3"), (world.topic, 1, 0, b"one"),
    ]  # fmt: skip
    assert dict(follow.positions()) == {(world.topic, 0): 4, (world.topic, 1): 1}


def test_topics_that_are_followed_later(world: Any, follow: Any, eventually: Eventually) -> None:
    world.append(world.put(0, "k", b"a"), world.put(1, "k", b"b", topic=world.other))
    follow.follow({(world.topic, 0): (BEGINNING, None)})
    assert len(taken(follow, eventually, 1)) == 1
    follow.follow({(world.other, 1): (BEGINNING, None)})
    assert taken(follow, eventually, 1) == [(world.other, 1, 0, b"b")]
    world.append(world.put(0, "k", b"c"))
    assert taken(follow, eventually, 1) == [(world.topic, 0, 1, b"c")]


def test_what_is_committed_comes_and_markers_are_passed(
    world: Any, follow: Any, eventually: Eventually
) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "k", b"in")], world.at(0), log.membership())
    world.abort(log, world.put(0, "k", b"out"))
    follow.follow({(world.topic, 0): (BEGINNING, None)})
    assert [value for *_, value in taken(follow, eventually, 1)] == [b"in"]
    eventually(lambda: follow.poll(1, 20) or follow.positions()[world.topic, 0] >= 2)


def test_an_offset_beyond_the_end_is_told(world: Any, follow: Any, eventually: Eventually) -> None:
    world.append(world.put(0, "k", b"a"))
    follow.follow({(world.topic, 0): (7, None)})
    with pytest.raises(RebuildPartition, match=world.topic):
        eventually(lambda: follow.poll(10, 50) and False, timeout=12.0)


def test_since_an_instant(world: Any, follow: Any) -> None:
    world.append(world.put(0, "k", b"old"))
    world.append(world.put(0, "k", b"new"))
    at, later = (r.timestamp()[1] for r in world.reader().read(world.topic, 0))
    assert follow.since(world.topic, 0, at) == 0
    assert follow.since(world.topic, 0, later + 1) == 2


def test_how_many_partitions_there_are(world: Any, follow: Any) -> None:
    assert follow.partitions(world.topic) == 4
    assert follow.partitions(f"{world.prefix}.nothing") == 0
