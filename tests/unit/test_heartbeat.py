"""Heartbeats on `fleet`: when they are sent, and what readers make of them (DESIGN §7)."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.core.errors import StoreUnreachable
from pipeline.core.hashing import text_hash
from pipeline.core.job import Heartbeat
from pipeline.heartbeat import INTERVAL_MS, Pulse, read_fleet
from pipeline.ports import Put

FLEET = "t.fleet"


class Fleet:
    def __init__(self) -> None:
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        self.cluster.create_topic(FLEET, 3)
        self.appender = MemoryAppender(self.cluster)

    def pulse(self, process: str) -> Pulse:
        return Pulse(appender=self.appender, fleet=FLEET, partitions=3, process=process)

    def alive(self, since: int = 0) -> list[str]:
        return sorted(seen.heartbeat.process for seen in read_fleet(MemoryReader(self.cluster), FLEET, since))


def beat(process: str, **fields: Any) -> Heartbeat:
    return Heartbeat(
        process=process, role="worker", host="h", pid=1, version="0", started_at=0, generation=0, **fields
    )


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_a_heartbeat_is_due_at_first_and_then_a_second_after_the_last(fleet: Fleet) -> None:
    pulse = fleet.pulse("a")
    assert pulse.due(0)
    pulse.beat(beat("a"), 50)
    assert not pulse.due(50 + INTERVAL_MS - 1)
    assert pulse.due(50 + INTERVAL_MS)


def test_a_lost_heartbeat_is_no_error(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(put: Put) -> Any:
        raise StoreUnreachable("timed out")

    monkeypatch.setattr(fleet.cluster, "append", lost)
    pulse = fleet.pulse("a")
    pulse.beat(beat("a"), 0)
    pulse.take_report()
    assert fleet.alive() == []


def test_who_beat_lately_and_has_not_left_is_alive(fleet: Fleet) -> None:
    fleet.pulse("old").beat(beat("old"), 0)
    fleet.clock.advance(5_000)
    for process in ("here", "left"):
        fleet.pulse(process).beat(beat(process), 0)
    fleet.pulse("left").leave()
    assert fleet.alive(fleet.clock.now() - 4_999) == ["here"]
    assert fleet.alive() == ["here", "old"]


def test_a_worker_on_two_queues_beats_for_each(fleet: Fleet) -> None:
    pulse = fleet.pulse("a")
    for queue in ("mail", "sms", "mail"):
        pulse.beat(beat("a", queues=(queue,)), 0)
    assert fleet.alive() == ["a", "a"]
    pulse.leave()
    assert fleet.alive() == []


def test_clock_probes_and_heartbeats_of_later_versions_are_passed_over(fleet: Fleet) -> None:
    fleet.pulse("a").beat(beat("a"), 0)
    for partition in range(3):
        fleet.appender.append(Put(FLEET, partition, b"probe", None))
        fleet.appender.append(Put(FLEET, partition, b"later", codec.HEARTBEAT.encode(beat("later"))[:-1]))
    assert fleet.alive() == ["a"]


def test_the_last_heartbeat_is_repeated_only_while_its_loop_is_late(fleet: Fleet) -> None:
    pulse, log = fleet.pulse("w"), fleet.cluster.partition(FLEET, text_hash("w") % 3)
    pulse.repeat(0)  # nothing was said yet
    pulse.beat(beat("w"), 0)
    pulse.repeat(INTERVAL_MS)
    assert log.end == 1
    pulse.repeat(2 * INTERVAL_MS)
    assert log.end == 2
    pulse.leave()
    pulse.repeat(9 * INTERVAL_MS)
    assert log.end == 3
