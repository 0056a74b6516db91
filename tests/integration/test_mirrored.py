"""Drill of docs/runbook.md, region loss: the topics were copied elsewhere by a mirror that lags, and that other place
takes over. On one broker, under two prefixes: other topics, other offsets, other groups, as on another cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import bump_era, load_layout, topic_admin, upgrade
from pipeline.adapters.kafka_checkup import Checkup
from pipeline.config import Settings, load_settings
from pipeline.core.topics import plan
from pipeline.doctor import Severity, examine

STAMP = "message.timestamp.type"
DONE, UNDER_WAY, PENDING = 20, 10, 20
APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx):
    return str(ctx.token)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def jobs(shop: Fleet, count: int, seconds: float) -> set[str]:
    due = datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        ref.id for ref in shop.client.schedule_many({"handler": "count", "at": due} for _ in range(count))
    }


def made_by_a_mirror(shop: Fleet, there: Settings) -> list[str]:
    """The topics as MirrorMaker makes them: with the times of the records they are copied from."""
    admin = topic_admin(there)
    wanted = [t for t in plan(there.names, load_layout(shop.settings), 1) if t.name != there.names.fleet]
    return admin.create(replace(t, settings={**t.settings, STAMP: "CreateTime"}) for t in wanted)


def mirror(shop: Fleet, topics: list[str], there: Settings) -> int:
    """Copy what is committed; the time of the last record, epoch ms."""
    producer = Producer({"bootstrap.servers": there.require_bootstrap(), "enable.idempotence": True})
    last = 0
    for topic in topics:
        for record in shop.records(topic.replace(there.prefix, shop.settings.prefix, 1)):
            at, headers = record.timestamp()[1], record.headers() or []
            last = max(last, at)
            place = record.partition() or 0
            producer.produce(topic, record.value(), record.key(), place, timestamp=at, headers=headers)
    assert producer.flush(30) == 0
    return last


def set_offsets(there: Settings, at: int) -> None:
    """`kafka-consumer-groups.sh --reset-offsets --to-datetime`: workers go on with what was fired from then on."""
    topic, group = there.names.work("default"), there.names.worker_group("default")
    consumer = Consumer({"bootstrap.servers": there.require_bootstrap(), "group.id": "reset"})
    places = [TopicPartition(topic, n, at) for n in range(12)]
    found = {p.partition: p.offset for p in consumer.offsets_for_times(places, 20)}
    ends = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), 20)[1] for n in range(12)}
    consumer.close()
    offsets = [TopicPartition(topic, n, found[n] if found[n] >= 0 else ends[n]) for n in range(12)]
    admin = AdminClient({"bootstrap.servers": there.require_bootstrap()})
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group].result(20)


def errors(settings: Settings) -> set[tuple[str, str]]:
    with Checkup(settings) as checkup:
        told = examine(checkup.facts())
    return {
        (name, found.subject) for name, found in told if found.severity is Severity.ERROR and name != "owners"
    }


def tokens(shop: Fleet) -> dict[str, int]:
    return {ack.occurrence_id: ack.token for ack in shop.acks(b"s/")}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_mirror_takes_over_loses_nothing_and_repeats_only_what_it_had_not_seen(
    broker: str, prefix: str, tmp_path: Path, eventually: Eventually, stack: ExitStack
) -> None:
    for home in ("first", "second"):
        (tmp_path / home).mkdir()
    first = stack.enter_context(fleet(broker, prefix, tmp_path / "first", APP))
    processes = [first.dispatcher(), first.worker()]
    done = jobs(first, DONE, 0)
    eventually(lambda: first.outcomes()["succeeded"] == DONE, timeout=60)
    there = load_settings(
        bootstrap_servers=broker, prefix=f"{prefix}m", state_dir=tmp_path / "second" / "state"
    )
    topics = made_by_a_mirror(first, there)
    under_way, pending = jobs(first, UNDER_WAY, 20), jobs(first, PENDING, 45)
    mirrored = mirror(first, topics, there)
    assert first.outcomes()["succeeded"] == DONE, "the mirror took too long"
    eventually(lambda: first.outcomes()["succeeded"] == DONE + UNDER_WAY, timeout=60)
    for process in processes:  # the region is gone
        process.kill()
        process.wait()

    assert ("settings", there.names.jobs) in errors(there), "the mirror keeps the times of others"
    upgrade(there)
    assert errors(there) == set()
    bump_era(there)
    set_offsets(there, mirrored)
    second = stack.enter_context(fleet(broker, there.prefix, tmp_path / "second", APP))
    second.dispatcher()
    second.worker()
    eventually(lambda: second.outcomes()["succeeded"] >= DONE + UNDER_WAY + PENDING, timeout=60)

    fired = Counter(run.occurrence_id for run, _ in second.work())
    assert fired == Counter(done | under_way | pending), "those done stand there as they were mirrored"
    again = Counter(ack.occurrence_id for ack in second.acks(b"t/"))
    assert set(again.values()) == {1}
    assert second.records(there.names.dead) == []
    before, after = tokens(first), tokens(second)
    assert {job for job in done | under_way if after[job] != before[job]} == under_way
    assert all(after[job] > before[job] for job in under_way), "whatever still runs there is fenced"
