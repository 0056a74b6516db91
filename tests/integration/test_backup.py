"""Backup and restore on the real broker: the drill in which everything is destroyed, and what a cut waits for."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from decided import committed
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters import kafka_cut, kafka_hold
from pipeline.adapters.kafka_admin import ensure_topics, load_era, topic_admin
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_cut import KafkaPositions
from pipeline.adapters.kafka_meta import GuardReader
from pipeline.adapters.kafka_restore import KafkaTarget
from pipeline.backup.restore import restore
from pipeline.config import Settings, load_settings
from pipeline.core.backup import HoldState
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.ids import keyed_id
from pipeline.core.layout import default_layout
from pipeline.core.times import parse_instant
from pipeline.dev.broker import EmbeddedBroker
from pipeline.follower import fold_backlog
from pipeline.ports import Put

APP = """
import json, os, time
from pipeline import Dueline, Retry

app = Dueline()

def tell(ctx):
    line = json.dumps({
        "job": ctx.job_id, "occurrence": ctx.occurrence_id, "key": ctx.idempotency_key, "run": ctx.run,
        "token": ctx.token, "handler": ctx.handler, "at": time.time() * 1000,
    })
    with open("effects", "a") as file:
        file.write(line + "\\n")

@app.job("quick")
def quick(ctx):
    tell(ctx)

@app.job("failing")
def failing(ctx):
    tell(ctx)
    if ctx.run == 1:
        raise Retry(after="20s")

@app.job("long")
def long(ctx):
    tell(ctx)
    while not os.path.exists("finish") and ctx.run == 1:
        time.sleep(0.05)

@app.job("tick")
def tick(ctx):
    tell(ctx)
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def effects(shop: Fleet) -> list[dict[str, Any]]:
    path = shop.home / "effects"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ran(shop: Fleet, *words: str) -> int:
    return shop.start(*words).wait(60)


def destroy(shop: Fleet, eventually: Eventually) -> None:
    """Topics, groups and local state; the processes are dead."""
    bootstrap, names = shop.settings.require_bootstrap(), shop.settings.names
    admin = AdminClient({"bootstrap.servers": bootstrap})
    own = [topic for topic in admin.list_topics(timeout=10).topics if names.owns(topic)]
    for future in admin.delete_topics(own, operation_timeout=20).values():
        future.result(20)
    eventually(lambda: not any(map(names.owns, admin.list_topics(timeout=10).topics)))
    groups = [names.dispatcher_group, names.worker_group("default")]

    def forgotten() -> bool:
        futures = admin.delete_consumer_groups(groups, request_timeout=10).values()
        errors = [future.exception(20) for future in futures]
        return all(error is None or error.args[0].name() == "GROUP_ID_NOT_FOUND" for error in errors)

    eventually(forgotten, timeout=60)  # a killed member counts until its session is over
    shutil.rmtree(shop.settings.state_dir)


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_all_is_destroyed_and_restored_and_nothing_is_lost(
    shop: Fleet, eventually: Eventually, tmp_path: Path
) -> None:
    client = shop.client
    dispatcher, worker = shop.dispatcher(), shop.worker()
    assert (
        ran(shop, "cron", "create", "ticks", "--every", "1s", "--handler", "tick", "--overlap", "allow") == 0
    )
    failing = [client.schedule("failing", in_="10ms").id for _ in range(5)]
    running = [client.schedule("long", in_="10ms").id, client.schedule("long", in_="10ms", key="held").id]
    done = [client.schedule("quick", in_="10ms").id for _ in range(20)]
    eventually(lambda: {e["job"] for e in effects(shop)} >= {*failing, *running, *done}, timeout=60)
    eventually(lambda: shop.outcomes()["retrying"] == len(failing), timeout=60)
    waiting = [client.schedule("quick", in_="25s").id for _ in range(40)]
    waiting.append(client.schedule("quick", in_="25s", key="invoice-55").id)
    under_way = [client.schedule("quick", in_="10ms").id for _ in range(100)]
    assert ran(shop, "backup", str(tmp_path / "backup"), "--json") == 0
    manifest = json.loads((tmp_path / "backup" / "manifest.json").read_text())
    lost_from = parse_instant("created_at", manifest["created_at"])
    eventually(lambda: {e["job"] for e in effects(shop)} >= {*under_way}, timeout=60)

    for process in (dispatcher, worker):
        process.kill()
        process.wait()
    before = effects(shop)
    destroy(shop, eventually)
    assert ran(shop, "restore", str(tmp_path / "backup")) == 0
    assert load_era(shop.settings) == 2
    shop.dispatcher()
    shop.worker()
    eventually(lambda: '"dispatch_held"' in shop.log(), timeout=60)
    eventually(lambda: time.time() * 1000 > lost_from + 27_000, timeout=60)  # all that waited is due by now
    assert ran(shop, "status") == 0
    assert "HELD: nothing fires" in shop.log()
    assert shop.work() == []
    assert len(effects(shop)) == len(before)

    assert ran(shop, "release") == 0
    expected = {*failing, *running, *waiting}
    eventually(lambda: {e["job"] for e in effects(shop)[len(before) :]} >= expected, timeout=60)
    ticks = {e["occurrence"] for e in before if e["handler"] == "tick"}
    eventually(lambda: any(e["handler"] == "tick" and e["occurrence"] not in ticks for e in effects(shop)))
    # A key that was held by a run is free once that has ended, one of a job that was pending is its own.
    eventually(lambda: client.get(keyed_id("held"))["status"] == "succeeded", timeout=60)

    by_occurrence = defaultdict(list)
    for effect in effects(shop):
        by_occurrence[effect["occurrence"]].append(effect)
    assert {e["job"] for e in effects(shop)} >= {*failing, *running, *done, *waiting, *under_way}
    for occurrence, found in by_occurrence.items():
        assert len({effect["key"] for effect in found}) == 1, occurrence
        tokens = [effect["token"] for effect in found]
        assert tokens == sorted({*tokens}), occurrence
        assert {token >> 55 for token in tokens[:-1]} <= {1, 2}
        again = [e for e in found if e["token"] >> 55 == 2]
        if again and found[0]["job"] in done:
            raise AssertionError(f"{occurrence} had been acked before the backup")
        for effect in found:
            ended_before = effect["token"] >> 55 == 1 and effect["at"] < lost_from - 2_000
            assert not (again and ended_before and effect["handler"] in ("quick", "tick")), occurrence


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_store_that_goes_away_during_a_backup_leaves_nothing(
    tmp_path: Path, eventually: Eventually
) -> None:
    """A broker of its own, which is killed once the backup has begun. That waits for the end of a transaction, or it
    might be done by then."""
    with (
        EmbeddedBroker(tmp_path / "broker") as broker,
        fleet(broker.bootstrap, "gone", tmp_path, APP) as shop,
    ):
        place = tmp_path / "backups"
        place.mkdir()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x", "log_level": 0})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(shop.settings.names.jobs, b"x", b"open", partition=3)
        assert producer.flush(20) == 0
        backup = shop.start("backup", str(place / "one"))
        eventually(lambda: list(place.iterdir()), timeout=60)
        os.kill(broker.pid, signal.SIGKILL)
        assert backup.wait(60) == 5
        assert list(place.iterdir()) == []
        assert "Traceback" not in shop.log()
        broker.process.wait()


class Dying(KafkaTarget):
    """A target that is cut off after some records."""

    left = 20

    def append(self, put: Put) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreUnreachable("gone")
        super().append(put)


@pytest.mark.timeout(150)
def test_a_restore_that_was_cut_off_is_seen_and_goes_on(
    shop: Fleet, prefix: str, tmp_path: Path, eventually: Eventually
) -> None:
    for _ in range(50):
        shop.client.schedule("quick", in_="1h")
    assert ran(shop, "backup", str(tmp_path / "backup")) == 0
    other = load_settings(
        bootstrap_servers=shop.settings.require_bootstrap(), prefix=f"{prefix}b", state_dir=tmp_path
    )
    with closing(Dying(other)) as dying, pytest.raises(StoreUnreachable):
        restore(tmp_path / "backup", dying, other.names)
    here = {"DUELINE_PREFIX": other.prefix}
    assert shop.start("release", "--yes", **here).wait(60) == 4
    assert "is not finished: run the same `dueline restore` again" in shop.log()
    shop.start("dispatcher", **here)
    eventually(lambda: '"state": "restoring"' in shop.log(), timeout=60)
    assert shop.start("restore", str(tmp_path / "backup"), **here).wait(60) == 0
    assert shop.start("restore", str(tmp_path / "backup"), **here).wait(60) == 4
    assert shop.start("release", **here).wait(60) == 0
    eventually(lambda: '"dispatch_released"' in shop.log(), timeout=60)
    log, jobs = shop.reader, other.names.jobs
    live = [fold_backlog(log.read(jobs, n)).pending for n in range(log.partitions(jobs))]
    assert sum(live) == 50
    assert load_era(other) == 2


@pytest.mark.timeout(150)
def test_whoever_runs_is_named_and_whoever_was_killed_is_waited_for(
    shop: Fleet, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ran(shop, "backup", str(tmp_path / "made" / "backup")) == 0
    dispatcher = shop.dispatcher()
    eventually(lambda: '"running"' in shop.log(), timeout=60)
    assert ran(shop, "restore", str(tmp_path / "made" / "backup")) == 4
    assert f"(process {dispatcher.pid} on " in shop.log().rpartition("there runs dispatcher ")[2]
    dispatcher.kill()
    dispatcher.wait()
    # Here and not in a process, whose start may take as long as it takes to count as gone.
    monkeypatch.setattr("pipeline.backup.restore.FRESH_MS", 10_000)
    said: list[str] = []
    with (
        closing(KafkaTarget(shop.settings)) as target,
        pytest.raises(Refused, match="holds records"),  # it had taken its partitions over
    ):
        restore(tmp_path / "made" / "backup", target, shop.settings.names, said.append)
    (waiting,) = said
    assert waiting.startswith("waiting for dispatcher ")
    assert f"(process {dispatcher.pid} on " in waiting


# -- what a cut waits for -----------------------------------------------------------------------------------


@pytest.fixture
def settings(broker: str, prefix: str, tmp_path: Path) -> Settings:
    made = load_settings(bootstrap_servers=broker, prefix=prefix, state_dir=tmp_path, store_timeout_ms=20_000)
    ensure_topics(made)
    return made


@pytest.fixture
def positions(settings: Settings) -> Iterator[KafkaPositions]:
    with closing(KafkaPositions(settings.require_bootstrap(), settings.kafka)) as made:
        yield made


def in_transaction(settings: Settings, partition: int) -> Producer:
    """A producer that has one record in an open transaction."""
    producer = Producer(
        {"bootstrap.servers": settings.require_bootstrap(), "transactional.id": f"{settings.prefix}.open"}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(settings.names.jobs, b"x", b"k/x", partition=partition)
    producer.flush(10)
    return producer


def test_an_end_is_told_once_no_transaction_is_open_below_it(
    settings: Settings, positions: KafkaPositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert positions.ends(settings.names.jobs, 24) == [0] * 24
    producer = in_transaction(settings, 3)
    monkeypatch.setattr(kafka_cut, "OPEN_S", 0.2)
    with pytest.raises(Refused, match=r"jobs/3: a transaction has been open .*`dueline doctor`"):
        positions.ends(settings.names.jobs, 24)
    assert positions.sizes(settings.names.jobs, 24) == 1
    committed(producer, settings.require_bootstrap(), settings.names.jobs, 3)
    monkeypatch.undo()
    assert positions.ends(settings.names.jobs, 24)[3] == 2  # the record and its marker


def test_a_target_is_empty_until_somebody_begins_to_write(settings: Settings) -> None:
    """Also by a transaction that is not decided: that of an owner that takes over."""
    layout = default_layout(queues={"default": 12})
    with closing(KafkaTarget(settings)) as target:
        assert target.occupied(layout) == ""
        producer = in_transaction(settings, 3)
        assert target.occupied(layout) == f"{settings.names.jobs} holds records (1 offsets)"
        producer.abort_transaction(10)


def test_offsets_of_earlier_topics_are_in_the_way(settings: Settings, broker: str) -> None:
    """They would skip what is restored."""
    from confluent_kafka import Consumer, TopicPartition

    names = settings.names
    consumer = Consumer({"bootstrap.servers": broker, "group.id": names.worker_group("default")})
    consumer.commit(offsets=[TopicPartition(names.work("default"), 1, 7)], asynchronous=False)
    consumer.close()
    with closing(KafkaTarget(settings)) as target:
        found = target.occupied(default_layout(queues={"default": 12}))
    assert (
        found
        == f"group {names.worker_group('default')} has offsets of an earlier topic {names.work('default')}"
    )


# -- the hold -----------------------------------------------------------------------------------------------


def test_a_hold_begins_an_era_and_is_read_by_who_takes_over(settings: Settings) -> None:
    meta = topic_admin(settings).meta
    guards = GuardReader(settings.client_config(), settings.names, "group", timeout_ms=10_000)
    assert guards.standing() == (1, None)
    appender = KafkaAppender(settings.require_bootstrap())
    appender.append(Put(settings.names.meta, 0, b"g/group/3", b"\0"))
    appender.flush(10_000)
    appender.close()
    hold = kafka_hold.begin_restore(meta, id="b1", era=5, at=7, timeout_ms=5_000)
    assert (hold.state, hold.era) == (HoldState.RESTORING, 5)
    assert guards.standing() == (5, hold)
    assert guards() == {}
    assert kafka_hold.begin_restore(meta, id="b1", era=5, at=8, timeout_ms=5_000) == hold
    with pytest.raises(Refused, match="backup b1 was restored here, not b2, and is restoring"):
        kafka_hold.begin_restore(meta, id="b2", era=5, at=8, timeout_ms=5_000)
    held = kafka_hold.finish_restore(meta, "b1")
    assert guards.standing() == (5, held)
    assert held.state is HoldState.HELD
    kafka_hold.lift(meta, "b1")
    kafka_hold.lift(meta, "b1")
    assert guards.standing() == (5, None)
    assert meta.read().hold is None
    assert kafka_hold.begin_restore(meta, id="b2", era=2, at=9, timeout_ms=5_000).era == 6
    guards.close()
