"""The group of the workers is deleted on the real broker: nothing runs again unnoticed, and tokens grow on (H20)."""

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


@pytest.mark.timeout(150)
def test_a_deleted_group_of_workers_is_refused_until_an_era_is_begun_h20(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    first = shop.worker()
    job = shop.client.schedule("count", in_="10ms")
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=40)
    first.terminate()
    assert first.wait(30) == 0
    admin, group = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap()}), shop.settings.names
    admin.delete_consumer_groups([group.worker_group("default")])[group.worker_group("default")].result(20)
    refused = shop.worker()
    assert refused.wait(40) == 4
    assert "has no offset for partition" in shop.log()
    assert "dueline era bump" in shop.log()
    assert [ack.attempt for ack in shop.acks(b"t/")] == [1]
    bump_era(shop.settings)
    shop.worker()
    later = shop.client.schedule("count", in_="10ms")
    eventually(lambda: shop.client.get(later.id)["status"] == "succeeded", timeout=40)

    def tokens() -> list[int]:
        return sorted(ack.token for ack in shop.acks(b"s/") if ack.occurrence_id == job.id)

    # What the topic still holds runs again, as was said, with a larger token.
    eventually(lambda: len(tokens()) == 2, timeout=40)
    assert [token >> 55 for token in tokens()] == [1, 2]
