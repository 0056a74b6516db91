"""The `Clock` port over memory and the real broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.adapters.store_clock import kafka_clock
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.ports import Clock

NOWHERE = "127.0.0.1:9"


def clock_of(world: Any) -> Clock:
    """The world's clock; the real one by probes on the test's own topic, which has LogAppendTime."""
    if hasattr(world, "clock"):
        return world.clock  # type: ignore[no-any-return]
    return kafka_clock(world.bootstrap, world.topic)


@pytest.fixture
def clock(world: Any) -> Iterator[Clock]:
    built = clock_of(world)
    yield built
    built.close()


def stamp(world: Any) -> int:
    """LogAppendTime of a record appended now."""
    stamps: list[int] = []
    appender = world.appender()
    appender.append(world.put(1, "k"), lambda _error, _offset, at: stamps.append(at))
    appender.flush(10_000)
    return stamps[0]


def test_the_clock_is_never_ahead_of_the_store(world: Any, clock: Clock) -> None:
    for _ in range(5):
        before = clock.now()
        assert before <= stamp(world)


def test_the_clock_is_behind_the_store_by_its_error_at_most(
    world: Any, clock: Clock, eventually: Callable[..., None]
) -> None:
    """And by a round trip, which is a second on a machine that does much else."""
    eventually(lambda: 0 <= clock.error() < 1_000)  # of the best probe by now
    appended = stamp(world)
    error, now = clock.error(), clock.now()  # in this order: a better probe may come between them
    assert now + error >= appended


def test_the_clock_goes_forward_only_and_on_after_it_is_closed(world: Any, clock: Clock) -> None:
    readings = [clock.now() for _ in range(1_000)]
    assert readings == sorted(readings)
    clock.close()
    last, at = clock.now(), clock.monotonic()
    while clock.monotonic() < at + 20:
        if hasattr(world, "clock"):
            world.clock.advance(1)
    assert clock.now() >= last + 18


@pytest.mark.broker
def test_probes_come_back_each_second_whatever_the_owner_does(kafka: Any, eventually: Any) -> None:
    clock = kafka_clock(kafka.bootstrap, kafka.topic)
    clock.now()

    def stamps() -> list[int]:
        return [record.timestamp()[1] for record in kafka.reader().read(kafka.topic, 0)]

    eventually(lambda: stamps()[-1] - stamps()[0] >= 1_900)  # and nothing here polls for the clock
    assert clock.error() < 1_000
    clock.close()


@pytest.mark.broker
def test_probes_are_tombstones_of_no_process(kafka: Any) -> None:
    clock = kafka_clock(kafka.bootstrap, kafka.topic)
    clock.now()
    clock.close()
    keys = {(record.key(), record.value()) for record in kafka.reader().read(kafka.topic, 0)}
    assert keys == {(b"probe", None)}


@pytest.mark.broker
def test_a_topic_that_does_not_exist(kafka: Any) -> None:
    clock = kafka_clock(kafka.bootstrap, f"{kafka.prefix}.nowhere")
    with pytest.raises(NotFound, match="nowhere"):
        clock.now()
    clock.close()


def test_without_a_broker_the_first_reading_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.adapters.store_clock.FIRST_MS", 300)
    monkeypatch.setattr("pipeline.adapters.kafka_probe.METADATA_TIMEOUT_S", 0.1)
    before = set(threading.enumerate())  # other tests' clocks may not have ended yet
    clock = kafka_clock(NOWHERE, "t.fleet")
    with pytest.raises(StoreUnreachable):
        clock.now()
    clock.close()
    assert not {thread for thread in threading.enumerate() if thread.name == "dueline-clock"} - before


def test_settings_of_the_users_producers_hold_no_probe_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are dropped; one that the library refuses is named."""
    monkeypatch.setattr("pipeline.adapters.kafka_probe.METADATA_TIMEOUT_S", 0.1)
    kafka_clock(NOWHERE, "t.fleet", {"linger.ms": "900", "acks": "all"}).close()
    with pytest.raises(InvalidInput, match="SOCKET_TIMEOUT_MS"):
        kafka_clock(NOWHERE, "t.fleet", {"socket.timeout.ms": "long"})
