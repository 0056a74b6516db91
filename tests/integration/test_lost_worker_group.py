"""The workers' group is deleted on the real broker: what was acked does not run again, and tokens grow on (H20)."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import bump_era

APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx):
    return str(ctx.token)
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


@pytest.mark.timeout(240)
def test_a_deleted_group_of_workers_is_refused_until_an_era_is_begun_h20(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    first = shop.worker()
    job = shop.client.schedule("count", in_="10ms")
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    first.terminate()
    assert first.wait(60) == 0
    admin, group = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap()}), shop.settings.names
    admin.delete_consumer_groups([group.worker_group("default")])[group.worker_group("default")].result(20)
    refused = shop.worker()
    assert refused.wait(60) == 4
    assert "has no offset for partition" in shop.log()
    assert "dueline era bump" in shop.log()
    assert [ack.attempt for ack in shop.acks(b"t/")] == [1]
    bump_era(shop.settings)
    later = shop.client.schedule("count", in_="10ms")
    eventually(lambda: len(shop.work()) == 2, timeout=60)
    assert shop.worker("--burst").wait(60) == 0
    # Everything on the topic was read, and it still holds the first run: that one was acked.
    tokens = {ack.occurrence_id: ack.token for ack in shop.acks(b"s/")}
    assert {id_: token >> 55 for id_, token in tokens.items()} == {job.id: 1, later.id: 2}
    assert len(shop.acks(b"s/")) == 2
    assert shop.outcomes() == {"succeeded": 2}
