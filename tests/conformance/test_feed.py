"""The feed of a topic over memory and the real broker: nothing that comes after it is ready is missed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline.adapters.kafka_feed import KafkaFeed
from pipeline.adapters.memory_feed import MemoryFeed

DEADLINE_S = 30.0


@pytest.fixture
def feed(world: Any) -> Iterator[Any]:
    if hasattr(world, "bootstrap"):
        built: Any = KafkaFeed(world.bootstrap, world.topic)
    else:
        built = MemoryFeed(world.cluster, world.topic)
    yield built
    built.close()


def follow(feed: Any, *partitions: int) -> None:
    feed.follow(frozenset(partitions))
    deadline = time.monotonic() + DEADLINE_S
    while not feed.following >= set(partitions):
        assert feed.poll(20) == []
        assert time.monotonic() < deadline, f"only {feed.following} is followed"


def news(feed: Any, count: int) -> set[tuple[int, bytes]]:
    found: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} came"
        found += feed.poll(20)
    return {(record.partition(), record.key()) for record in found}


def test_what_stood_there_before_does_not_come_and_what_follows_does(world: Any, feed: Any) -> None:
    world.append(world.put(0, "old"), world.put(1, "old"))
    follow(feed, 0)
    world.append(world.put(0, "new"), world.put(1, "elsewhere"))
    assert news(feed, 1) == {(0, b"new")}


def test_partitions_are_added_and_the_others_go_on(world: Any, feed: Any) -> None:
    follow(feed, 0)
    world.append(world.put(0, "a"))
    follow(feed, 1, 2) if news(feed, 1) else None
    world.append(*(world.put(n, "b") for n in range(4)))
    assert news(feed, 3) == {(0, b"b"), (1, b"b"), (2, b"b")}
    assert feed.following == {0, 1, 2}


def test_what_a_transaction_left_open_comes_when_it_commits(world: Any, feed: Any) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "old")], world.at(0), log.membership())
    world.decided(0)
    follow(feed, 0)
    world.abort(log, world.put(0, "aborted"))
    log.commit([world.put(0, "answer")], world.at(0), log.membership())
    assert news(feed, 1) == {(0, b"answer")}


def test_nothing_is_an_answer_too(world: Any, feed: Any) -> None:
    follow(feed, 3)
    assert feed.poll(5) == []


@pytest.mark.broker
def test_a_topic_that_is_not_there_is_never_ready(kafka: Any) -> None:
    feed = KafkaFeed(kafka.bootstrap, f"{kafka.prefix}.nowhere")
    feed.follow(frozenset({0}))
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert feed.poll(50) == []
    assert feed.following == frozenset()
    feed.close()
