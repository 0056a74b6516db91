"""A transactional id that the broker forgot costs a moment, no process (H31)."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.dev import settings
from pipeline.dev.broker import EmbeddedBroker

pytestmark = pytest.mark.slow

STATE = "__transaction_state"
SHORT = {
    "transactional.id.expiration.ms": "3000",  # 7 days
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


def forgotten(shop: Fleet, role: str) -> int:
    """How many transactional ids of `role` the coordinator has dropped: it leaves a tombstone for each."""
    mark = f"{shop.settings.prefix}.{role}.".encode()
    return len({r.key() for r in shop.records(STATE) if r.value() is None and mark in (r.key() or b"")})


@pytest.mark.timeout(240)
def test_a_dispatcher_idle_for_longer_than_its_transactional_ids_live_goes_on_h31(
    prefix: str, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "FIXED", settings.FIXED | SHORT)
    with EmbeddedBroker(tmp_path / "store") as store, fleet(store.bootstrap, prefix, tmp_path, "") as shop:
        owner = shop.dispatcher()
        shop.client.schedule("any", {}, in_="100ms")
        eventually(lambda: len(shop.work()) == 1, timeout=60)
        eventually(lambda: forgotten(shop, "dispatcher") == shop.settings.producers, timeout=60)
        jobs = [shop.client.schedule("any", {}, in_="100ms") for _ in range(5)]
        eventually(lambda: len(shop.work()) == 1 + len(jobs), timeout=60)
        assert owner.poll() is None
