"""A newer version comes to a store that runs: what it writes is left to it by a worker that was started before its
schema was announced, and the doctor says who must be deployed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import topic_admin
from pipeline.adapters.kafka_checkup import Checkup
from pipeline.adapters.kafka_lag import group_progress
from pipeline.core.layout import Layout
from pipeline.doctor import Severity, examine

LATER = "00000000000000ff"
APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx):
    return 1
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def announced(layout: Layout | None) -> Layout:
    assert layout is not None
    return replace(layout, fingerprints=(*layout.fingerprints, LATER), product_version="9.0.0")


@pytest.mark.timeout(200)
def test_a_run_of_a_version_announced_later_waits_for_a_worker_that_knows_it(
    shop: Fleet, eventually: Eventually, broker: str
) -> None:
    names = shop.settings.names
    shop.dispatcher()
    shop.worker()
    first = shop.client.schedule("count", in_="10ms")
    eventually(lambda: shop.client.get(first.id)["status"] == "succeeded", timeout=60)

    topic_admin(shop.settings).meta.update(announced)
    producer = Producer({"bootstrap.servers": broker})
    newer: dict[int | None, int] = {}

    def stored(error: KafkaError | None, message: Message) -> None:
        assert error is None
        newer[message.partition()] = message.offset() or 0

    value = b"\xc3\x01" + bytes.fromhex(LATER)[::-1] + b"what comes next"
    for partition in range(12):
        producer.produce(names.work("default"), value, b"newer", partition, on_delivery=stored)
    assert producer.flush(20) == 0
    eventually(lambda: shop.log().count('"schema_unknown"') >= 12, timeout=60)

    jobs = list(shop.client.schedule_many({"handler": "count", "in_": "10ms"} for _ in range(24)))
    eventually(lambda: shop.outcomes()["succeeded"] == len(jobs) + 1, timeout=60)
    assert shop.records(names.dead) == []
    progress = group_progress(broker, {}, names.worker_group("default"), names.work("default"), 12)
    assert all(one.committed is None or one.committed <= newer[n] for n, one in enumerate(progress))
    assert any(one.committed is not None for one in progress)

    with Checkup(shop.settings) as checkup:
        told = [found for name, found in examine(checkup.facts()) if name == "versions"]
    assert [(found.severity, found.subject) for found in told] == [(Severity.ERROR, "version 0.1.0")]
    assert told[0].remedy.startswith("deploy version 9.0.0 ")
