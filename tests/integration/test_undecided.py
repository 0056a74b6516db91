"""A job is found right after it was created, though a transaction that is still open hides the end of its partition."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pipeline import Dueline, NotFound, StoreUnreachable
from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.config import load_settings
from pipeline.core.ids import anonymous_id


@pytest.fixture
def app(broker: str, prefix: str, tmp_path: Path) -> Any:
    settings = load_settings(
        bootstrap_servers=broker, prefix=prefix, state_dir=tmp_path, store_timeout_ms=20_000
    )
    ensure_topics(settings)
    made = Dueline(bootstrap_servers=broker, prefix=prefix, state_dir=str(tmp_path))
    yield made
    made.close()


def open_transaction(broker: str, prefix: str, partitions: int) -> Callable[[], None]:
    """Somebody's transaction on all partitions of `jobs`; call what comes back to abort it."""
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{prefix}-foreign"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in range(partitions):
        producer.produce(f"{prefix}.jobs", b"x", b"foreign", number)
    assert producer.flush(20) == 0
    return lambda: producer.abort_transaction(20)


def test_a_job_behind_an_open_transaction_is_found_when_that_is_decided(app: Dueline, broker: str) -> None:
    abort = open_transaction(broker, app.settings.prefix, 24)
    job = app.schedule("later", {}, in_="1h")
    timer = threading.Timer(0.5, abort)
    timer.start()
    try:
        assert app.get(job.id)["status"] == "pending"
    finally:
        timer.join()


def test_of_what_stays_hidden_nobody_says_that_it_is_not_there(
    app: Dueline, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("model", "watch"):
        monkeypatch.setattr(f"pipeline.follower.{place}.DECIDED_MS", 300)
    abort = open_transaction(broker, app.settings.prefix, 24)
    job = app.schedule("later", {}, in_="1h")
    with pytest.raises(StoreUnreachable, match="a transaction that stays open hides"):
        app.get(job.id)
    with pytest.raises(StoreUnreachable, match="a transaction that stays open hides"):
        app.result(job.id, wait=0)
    abort()
    monkeypatch.undo()  # the markers follow: it is waited for as long as ever
    assert app.get(job.id)["status"] == "pending"
    with pytest.raises(TimeoutError, match="still pending"):
        app.result(job.id, wait=0)


def test_what_is_not_there_is_not_found(app: Dueline) -> None:
    unknown = anonymous_id(1_800_000_000_000, 1)
    with pytest.raises(NotFound):
        app.get(unknown)
    with pytest.raises(NotFound):
        app.result(unknown, wait=0)
