"""A process that is fenced again and again has a copied state directory: it takes another instance id."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipeline.config import load_settings
from pipeline.core.errors import DuelineError, RebuildClients, StoreUnreachable
from pipeline.service import loop, run
from pipeline.service.loop import Stop, rebuilding
from pipeline.service.run import COPY_S, Plant, Tenant
from pipeline.service.slots import Slot, claimed_slot, renamed


class Told:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def fenced() -> RebuildClients:
    error = RebuildClients("fenced")
    error.__cause__ = KafkaException(KafkaError(KafkaError._FENCED))
    return error


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    with claimed_slot(tmp_path, "dispatcher", 3) as claimed:
        yield claimed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    built = Clock()
    monkeypatch.setattr(run, "time", built)
    return built


@pytest.fixture
def tenant(slot: Slot, tmp_path: Path, clock: Clock) -> Tenant:
    settings = load_settings(state_dir=tmp_path, bootstrap_servers="127.0.0.1:1", producers=2)
    nothing: Any = None
    identity: Any = type("Identity", (), {"process": slot.process})()
    told: Any = Told()
    plant = Plant(
        **{name: nothing for name in Plant.__dataclass_fields__ if name != "sessions"}
        | {"settings": settings, "slot": slot, "identity": identity, "events": told}
    )
    return Tenant(plant)


def test_fenced_twice_within_a_minute_makes_a_new_instance_and_says_why(
    tenant: Tenant, slot: Slot, clock: Clock
) -> None:
    tenant.dismissed(fenced())
    clock.now += COPY_S - 1
    tenant.dismissed(fenced())
    assert tenant.plant.slot.instance != slot.instance
    assert (tenant.plant.slot.number, tenant.plant.slot.path) == (slot.number, slot.path)
    ((action, fields),) = tenant.plant.events.lines  # type: ignore[attr-defined]
    assert (action, fields["old"], fields["new"]) == (
        "instance_renamed",
        slot.instance,
        tenant.plant.slot.instance,
    )
    assert "was copied" in fields["reason"]


def test_fenced_now_and_then_or_dead_of_something_else_changes_nothing(
    tenant: Tenant, slot: Slot, clock: Clock
) -> None:
    tenant.dismissed(fenced())
    tenant.dismissed(RebuildClients("fatal"))
    clock.now += COPY_S
    tenant.dismissed(fenced())
    tenant.dismissed(StoreUnreachable("gone"))
    assert tenant.plant.slot == slot


def test_what_starts_afterwards_in_this_directory_has_the_new_instance(slot: Slot, tmp_path: Path) -> None:
    other = renamed(slot, tmp_path)
    with claimed_slot(tmp_path, "dispatcher", None) as later:
        assert later.instance == other.instance != slot.instance


def test_processes_of_one_directory_agree_on_its_new_instance(slot: Slot, tmp_path: Path) -> None:
    with claimed_slot(tmp_path, "dispatcher", 4) as neighbour:
        assert renamed(slot, tmp_path).instance == renamed(neighbour, tmp_path).instance


def test_every_rebuild_tells_what_it_died_of_and_an_unreachable_store_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    outcomes: Iterator[DuelineError | None] = iter([RebuildClients("fenced"), StoreUnreachable("gone"), None])
    died: list[DuelineError] = []

    def run_once() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    rebuilding(run_once, Stop(), Told(), died.append)
    assert [str(error) for error in died] == ["fenced", "gone"]


def test_producers_of_a_ring_have_ids_of_their_own(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, ...]] = []

    class Build:
        checkpoint = producer = staticmethod(lambda *_: None)

        @staticmethod
        def log(*_: Any, transactional_ids: Any, **__: Any) -> None:
            opened.append(tuple(transactional_ids))

    build: Any = Build()
    object.__setattr__(tenant.plant, "build", build)
    for n in (0, 1):
        listener: Any = None
        tenant.plant.open_log("worker", "topic", "group", n, 3_000)(listener)
    instance = tenant.plant.slot.instance
    assert opened == [
        (f"dueline.worker.{instance}.3.0", f"dueline.worker.{instance}.3.1"),
        (f"dueline.worker.{instance}.3.2", f"dueline.worker.{instance}.3.3"),
    ]
