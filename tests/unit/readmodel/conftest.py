"""A read model over the store in memory of the other unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.readmodel import Position, ReadModel, session
from pipeline.readmodel.memory import memory_connector


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks up often, so that it also ends soon."""
    monkeypatch.setattr(session, "POLL_MS", 10)


@pytest.fixture
def connect(store: Any) -> Any:
    for topic in (store.names.dead, store.names.meta):
        store.cluster.create_topic(topic, 1)
    return memory_connector(store.cluster, store.names, lambda: store.layout, store.clock)


@pytest.fixture
def model(connect: Any, tmp_path: Path) -> Iterator[ReadModel]:
    model = ReadModel(tmp_path / "readmodel", connect)
    yield model
    model.close()


@pytest.fixture
def settled(store: Any, model: ReadModel) -> Callable[[], ReadModel]:
    """The model once it has folded all that is there."""

    def settle() -> ReadModel:
        wait_settled(store, model)
        return model

    return settle


def wait_settled(store: Any, model: ReadModel) -> None:
    queues = [of(queue) for queue in store.layout.queues for of in (store.names.work, store.names.acks)]
    for topic in (store.names.jobs, store.names.events, store.names.dead, store.names.meta, *queues):
        for partition in range(store.cluster.partitions(topic)):
            end = store.cluster.partition(topic, partition).last_stable
            assert model.wait_for(Position(topic, partition, end - 1), 10_000), model.freshness()
