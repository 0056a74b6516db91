"""What a process shows of itself: looked at between two steps, once a second, on the owner's thread."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.adapters.memory import MemoryClock
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.config import Settings, load_settings
from pipeline.core.clock import Reading
from pipeline.core.errors import InvalidInput, RetryStep
from pipeline.core.states import PartitionState
from pipeline.metrics import DispatcherMetrics, Metrics, WorkerMetrics
from pipeline.ports import Delta, GroupLog, Position
from pipeline.service import observe
from pipeline.service.counted import CountedExecutor
from pipeline.service.health import Health
from pipeline.service.loop import Stop
from pipeline.service.observe import Observer, observing

T0 = 1_800_000_000_000


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))


class FakeOwner:
    def __init__(self, states: Mapping[int, PartitionState]) -> None:
        self.states = states


class FakeLog:
    member = True

    def membership(self) -> None:
        if not self.member:
            raise RetryStep("not a member")


class Clock(MemoryClock):
    readings: Mapping[int, Reading] = {1: Reading(0, 2, False), 2: Reading(9_000, 2, True)}

    def error(self) -> int:
        return 4


class House:
    def __init__(self, metrics: type[DispatcherMetrics] | type[WorkerMetrics] = DispatcherMetrics) -> None:
        self.told = Told()
        self.metrics: Metrics = metrics(slot=0, version="1", librdkafka="2", forward=self.told)
        self.health = Health(role="dispatcher", hang_s=30, stopping=lambda: False)
        self.observer = Observer(self.metrics, self.health).of_clock(Clock(T0))
        self.log = FakeLog()
        self.index = MemoryIndex()

    def own(self, queue: str, **states: PartitionState) -> None:
        owner = FakeOwner({int(number.lstrip("p")): state for number, state in states.items()})
        opened = self.observer.watching(queue, lambda listener: self.log, self.index)  # type: ignore[arg-type, return-value]
        log: GroupLog = opened(owner)  # type: ignore[arg-type]
        assert log is self.log

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"dueline_{name}", labels)


@pytest.fixture
def house() -> House:
    return House()


def settings(tmp_path: Path, **more: Any) -> Settings:
    return load_settings(bootstrap_servers="127.0.0.1:1", state_dir=str(tmp_path), **more)


def test_partitions_membership_and_clock_are_looked_at_after_a_step(house: House) -> None:
    house.own("", p1=PartitionState.RUNNING, p2=PartitionState.RESTORING)
    assert house.health.unready() == "starting"
    assert house.observer.around(lambda patience: patience + 1)(6) == 7
    assert house.health.unready() is None
    assert house.value("partition_state", queue="", state="running") == 1
    assert house.value("partition_state", queue="", state="restoring") == 1
    assert house.value("clock_error_seconds") == pytest.approx(0.004)
    assert house.value("clock_brokers_outside") == 1


def test_they_are_looked_at_once_a_second_however_many_steps_there_are(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(house.observer, "look", lambda: looks.append(1))
    now = [100.0]
    monkeypatch.setattr(observe.time, "monotonic", lambda: now[0])
    step = house.observer.around(lambda patience: 0)
    for _ in range(250):
        step(0)
        now[0] += 0.01
    assert len(looks) == 3


def test_h26_a_process_whose_log_has_no_membership_is_not_ready(house: House) -> None:
    house.log.member = False
    house.own("", p1=PartitionState.RUNNING)
    house.observer.look()
    assert house.health.unready() == "not a member of the group of dispatchers"


def test_an_owner_built_anew_takes_the_place_of_the_one_before(house: House) -> None:
    house.own("", p1=PartitionState.RUNNING, p2=PartitionState.RUNNING)
    house.own("", p3=PartitionState.ASSIGNED)
    house.observer.look()
    assert house.value("partition_state", queue="", state="running") == 0
    assert house.value("partition_state", queue="", state="assigned") == 1


def test_the_index_is_as_old_as_its_oldest_partition(house: House) -> None:
    for number, synced_at in ((1, T0 + 5_000), (2, T0 + 3_000), (9, T0)):
        delta = Delta()
        delta.position = Position("c", "t", "l", 0, 0, synced_at)
        house.index.apply(number, delta)
    house.own("", p1=PartitionState.RUNNING, p2=PartitionState.RUNNING, p3=PartitionState.RUNNING)
    house.observer.look()
    assert house.value("index_synced_timestamp_seconds") == (T0 + 3_000) / 1000


def test_a_workers_calls_are_counted_and_a_dispatchers_executor_is_left_alone() -> None:
    executor: Any = object()
    assert House().observer.counted("q", executor) is executor
    assert isinstance(House(WorkerMetrics).observer.counted("q", executor), CountedExecutor)


# -- served --------------------------------------------------------------------------------------------------


def test_metrics_and_health_are_served_on_loopback_where_the_log_says(tmp_path: Path) -> None:
    told, stop = Told(), Stop()
    with observing(settings(tmp_path), "dispatcher", 2, stop, told) as observer:
        ((action, fields),) = told.lines
        assert action == "serving"
        assert fields["metrics"].startswith("http://127.0.0.1:")
        observer.metrics.on("fencing")
        with urllib.request.urlopen(fields["metrics"], timeout=5) as page:
            assert b'dueline_events_total{action="fencing"} 1.0' in page.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(fields["metrics"], timeout=5)


@pytest.mark.parametrize(
    ("role", "slot", "port", "first"),
    [
        ("dispatcher", 0, None, 9464),
        ("dispatcher", 3, None, 9467),
        ("worker", 1, None, 9565),
        ("worker", 2, 7000, 7002),
    ],
)
def test_the_port_is_the_roles_or_the_one_asked_for_plus_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str, slot: int, port: int | None, first: int
) -> None:
    tried: list[int] = []

    class Server:
        address = "a:1"

        def __init__(self, host: str, ports: Any, routes: Any) -> None:
            tried.extend(ports)
            assert sorted(routes) == ["/healthz", "/metrics", "/readyz"]

        def close(self) -> None:
            pass

    monkeypatch.setattr(observe, "HttpServer", Server)
    with observing(settings(tmp_path, metrics_port=port), role, slot, Stop(), Told()):
        pass
    assert tried[0] == first
    assert (tried[-1] == 0) == (port is None), "nobody asked for that port, so any will do in the end"


def test_port_zero_serves_nothing_and_probes_nothing(tmp_path: Path) -> None:
    told = Told()
    off = settings(tmp_path, metrics_port=0)
    with observing(off, "dispatcher", 0, Stop(), told) as observer:
        observer.of_clock(MemoryClock(T0))
        with observer.probing(off, lambda: pytest.fail("asked for queues")):
            pass
    assert told.lines == []


@pytest.mark.parametrize("host", ["*", "a b", "1.2.3.4:80", "*.example", ""])
def test_a_malformed_address_is_refused_by_the_setting(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings(metrics_host=host)
    assert error.value.field == "metrics_host"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::]", "0.0.0.0", "localhost", "node-1.example"])
def test_an_address_or_a_host_name_is_taken(host: str) -> None:
    assert load_settings(metrics_host=host).metrics_host == host.strip("[]")
