"""Handlers that block, each kind in its own way, for a minute on the real broker; what ten minutes of it write is in
`tests/unit/test_worker_blocked.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline.core.offset_metadata import WINDOW_LIMIT, decode

SECONDS = 60
APP = """
import asyncio, pathlib, time
from pipeline import Dueline

app = Dueline()

@app.job("blocked.thread")
def thread(ctx, gate):
    while not pathlib.Path(gate).exists():
        time.sleep(0.1)

@app.job("blocked.task")
async def task(ctx, gate):
    while not pathlib.Path(gate).exists():
        await asyncio.sleep(0.1)

@app.job("blocked.process", pool="process")
def process(ctx, gate):
    while not pathlib.Path(gate).exists():
        time.sleep(0.1)

@app.job("quick")
def quick(ctx):
    pass
"""
BLOCKED = ("blocked.thread", "blocked.task", "blocked.process")


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


class Group:
    """What the group of the workers has committed, and who is in it."""

    def __init__(self, shop: Fleet) -> None:
        self._admin = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap(), "log_level": 0})
        self._name = shop.settings.names.worker_group("default")

    def committed(self) -> list[Any]:
        asked = ConsumerGroupTopicPartitions(self._name)
        (future,) = self._admin.list_consumer_group_offsets([asked]).values()
        return list(future.result(20).topic_partitions)

    def members(self) -> set[str]:
        (future,) = self._admin.describe_consumer_groups([self._name]).values()
        return {member.member_id for member in future.result(20).members}


@pytest.mark.timeout(180)
def test_beside_blocked_handlers_all_others_finish_and_commit_and_nothing_is_rebalanced(
    shop: Fleet, eventually: Eventually, report: Callable[[str], None]
) -> None:
    shop.dispatcher()
    worker, gate = shop.worker("--concurrency", "8"), shop.home / "gate"
    stuck = [shop.client.schedule(name, {"gate": str(gate)}, in_=0) for name in BLOCKED for _ in range(2)]
    eventually(lambda: len(shop.acks(b"s/")) == len(stuck), timeout=40)
    group, fired, longest = Group(shop), 0, 0
    members = group.members()
    assert len(members) == 1
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        list(shop.client.schedule_many({"handler": "quick", "in_": 0} for _ in range(200)))
        fired += 200
        eventually(lambda count=fired: len(shop.acks(b"t/")) == count)
        longest = max(longest, *(len(place.metadata or "") for place in group.committed()))
    assert group.members() == members
    assert worker.poll() is None
    assert longest < WINDOW_LIMIT
    above = {p.partition: decode(p.offset, p.metadata or "") for p in group.committed() if p.offset >= 0}
    kept = [above[ack_at[0]] for ack_at in _places(shop, stuck)]
    assert all(metadata.started for metadata in kept)
    report(f"blocked for {SECONDS} s: {fired} other runs finished; offset metadata {longest} bytes at most")
    _killed_and_taken_over(shop, eventually, worker, fired, len(stuck))
    gate.touch()
    eventually(lambda: all(shop.client.get(ref.id)["status"] == "succeeded" for ref in stuck), timeout=30)


def _places(shop: Fleet, stuck: list[Any]) -> list[tuple[int, str]]:
    """Partition and job of the runs that block."""
    wanted = {ref.id for ref in stuck}
    records = shop.records(shop.settings.names.work("default"))
    return [
        (record.partition(), key) for record in records if (key := (record.key() or b"").decode()) in wanted
    ]


def _killed_and_taken_over(
    shop: Fleet, eventually: Eventually, worker: Any, fired: int, blocked: int
) -> None:
    """The next worker starts what was blocked, and none of what had finished above it."""
    worker.kill()
    worker.wait(10)
    shop.worker("--concurrency", "8")
    eventually(lambda: len(shop.acks(b"s/")) == fired + 2 * blocked, timeout=40)
    assert sorted(ack.attempt for ack in shop.acks(b"s/"))[-blocked - 1 :] == [1, *[2] * blocked]
