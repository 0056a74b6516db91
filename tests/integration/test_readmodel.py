"""The read model on the real broker: beside a running installation, killed while it folds, its topics cut or gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from integration.fleet import Fleet, fleet
from ports import free_port

from pipeline.adapters.kafka_admin import ensure_topics, upgrade
from pipeline.client import Dueline
from pipeline.config import Settings, load_settings
from pipeline.core.job import JobStatus
from pipeline.dev.broker import EmbeddedBroker
from pipeline.follower import Follower, WantedSchedules
from pipeline.readmodel import JobsWanted, ReadModel, open_readmodel

APP = """
from pipeline import Cancel, Dueline, Retry

app = Dueline()

@app.job("count", max_attempts=2)
def count(ctx, n):
    if n % 5 == 1:
        raise ValueError("no")
    if n % 5 == 2 and ctx.run == 1:
        raise Retry(after="10ms")
    if n % 5 == 3:
        raise Cancel("not wanted")
    return {"n": n}
"""
Eventually = Callable[..., None]
SAID = ("id", "handler", "status", "due_at", "key", "queue", "result", "runs")


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def caught_up(model: ReadModel, eventually: Eventually) -> None:
    eventually(lambda: model.freshness()[:1] == (0,) and model.freshness().ready, 60.0)


def test_beside_a_running_installation(shop: Fleet, eventually: Eventually) -> None:
    """It says of every job what the follower says, wherever it was restarted."""
    shop.dispatcher()
    shop.worker()
    model = open_readmodel(shop.settings)
    try:
        client = shop.client
        ids = [client.schedule("count", {"n": n}, in_="100ms").id for n in range(20)]
        ids += [client.schedule("count", {"n": n}, in_="1h", key=f"k{n}").id for n in range(3)]
        ids.append(client.schedule("count", {"n": 0}, in_="1h").id)
        client.cancel(ids[-1])
        client.cancel(ids[-2])
        client.schedules.create("every-second", handler="count", every="1s", payload={"n": 5})
        eventually(lambda: len(model.jobs(JobsWanted(statuses=ENDED)).rows) >= 24, 60.0)
        model.close()
        model = open_readmodel(shop.settings)
        client.schedules.pause("every-second", note="enough")
        fresh = client.schedule("count", {"n": 0}, in_="100ms").id
        eventually(lambda: _status(model, fresh) == "succeeded", 30.0)
        eventually(lambda: not model.jobs(JobsWanted(statuses=OPEN)).rows, 30.0)
        follower = Follower(reader=shop.reader, names=shop.settings.names, layout=client._connected().layout)
        ids += [row["id"] for row in model.jobs(JobsWanted(schedule="every-second"), limit=200).rows]
        assert len(ids) > 26
        for id_ in [*ids, fresh]:

            def same(id_: str = id_) -> bool:
                told, mine = follower.job(id_), model.job(id_)
                return {name: mine[name] for name in SAID} == {name: told[name] for name in SAID}

            eventually(same)
        (schedule,) = model.schedules(WantedSchedules()).rows
        assert schedule["state"] == "paused"
        eventually(lambda: model.schedules(WantedSchedules()).rows[0]["recent"][0]["outcome"] == "succeeded")
        fleet_view = model.fleet()
        assert {each["role"] for each in fleet_view["processes"]} == {"dispatcher", "worker"}
        assert all(each["owner"] for each in fleet_view["partitions"])
        eventually(lambda: model.queues()[0]["lag"] == 0, 20.0)
    finally:
        model.close()


ENDED = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED})
OPEN = frozenset({JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.RETRYING})


def _status(model: ReadModel, id_: str) -> Any:
    rows = model.jobs(JobsWanted(text=id_)).rows
    return rows[0]["status"] if rows else None


KILLED = """
import sys, time
from pathlib import Path
from pipeline.config import load_settings
from pipeline.readmodel import JobsWanted, open_readmodel, session

session.BATCH = 500
model = open_readmodel(load_settings(bootstrap_servers=sys.argv[1], prefix=sys.argv[2], state_dir=sys.argv[3]))
while True:
    print(model.count(JobsWanted()).number, flush=True)
    time.sleep(0.002)
"""


def test_killed_while_it_folds(shop: Fleet, eventually: Eventually) -> None:
    """kill -9 in the middle, again and again: nothing is lost and nothing counted twice."""
    count = 20_000
    jobs = ({"handler": "count", "payload": {"n": n}, "in_": "1h"} for n in range(count))
    for _ in shop.client.schedule_many(jobs):
        pass
    settings, reached = shop.settings, 0
    for _ in range(4):
        arguments = [settings.require_bootstrap(), settings.prefix, str(settings.state_dir)]
        with subprocess.Popen([sys.executable, "-c", KILLED, *arguments], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) > reached:
                    reached = int(line) + 1_000
                    break
            process.send_signal(signal.SIGKILL)
    assert reached >= 4_000
    model = open_readmodel(settings)
    try:
        caught_up(model, eventually)
        assert model.count(JobsWanted()) == (count, False)
        hours = model.buckets(0, 10**13, 10**10 // 3_600_000 * 3_600_000)
        assert sum(sum(bucket["counts"].values()) for bucket in hours) == count
        found, cursor = set(), None
        while True:
            page = model.jobs(JobsWanted(), limit=200, cursor=cursor)
            found |= {row["id"] for row in page.rows}
            if (cursor := page.cursor) is None:
                break
        assert len(found) == count
    finally:
        model.close()


def test_a_topic_whose_beginning_is_gone(
    shop: Fleet, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    """What stood before its position was never folded: then everything is, anew and loudly."""
    shop.dispatcher()
    client, settings = shop.client, shop.settings
    ids = [client.schedule("count", {"n": 0}, in_="1h", key=f"k{n}").id for n in range(3)]
    model = open_readmodel(settings)
    caught_up(model, eventually)
    nonce = model._following.nonce
    model.close()
    for id_ in ids[:2]:
        client.cancel(id_)
    places = {}
    for number in range(client._connected().layout.partitions):
        end = shop.reader.read(settings.names.events, number)
        offsets = [record.offset() or 0 for record in end]
        if offsets:
            places[number] = max(offsets) + 1
    admin = AdminClient(settings.client_config())
    cuts = [TopicPartition(settings.names.events, number, offset) for number, offset in places.items()]
    for future in admin.delete_records(cuts).values():
        future.result(20.0)
    model = open_readmodel(settings)
    try:
        eventually(lambda: model._following.nonce not in (nonce, ""), 30.0)
        caught_up(model, eventually)
        eventually(lambda: model.job(ids[0])["status"] == "cancelled", 20.0)
        assert model.job(ids[2])["status"] == "pending"
        assert "folded anew" in caplog.text
    finally:
        model.close()


def test_a_topic_that_is_made_anew_while_it_follows(shop: Fleet, eventually: Eventually) -> None:
    model = open_readmodel(shop.settings)
    try:
        caught_up(model, eventually)
        nonce = model._following.nonce
        admin = AdminClient(shop.settings.client_config())
        dead = shop.settings.names.dead
        for future in admin.delete_topics([dead]).values():
            future.result(20.0)
        eventually(lambda: dead not in admin.list_topics(timeout=10).topics, 20.0)
        upgrade(shop.settings)
        model.close()
        model = open_readmodel(shop.settings)
        eventually(lambda: model._following.nonce not in (nonce, ""), 30.0)
        caught_up(model, eventually)
    finally:
        model.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_store_goes_away_and_comes_back(prefix: str, tmp_path: Path, eventually: Eventually) -> None:
    store = EmbeddedBroker(tmp_path / "store", port=free_port())
    store.start()
    try:
        settings = _settings(store.bootstrap, prefix, tmp_path)
        with closing(_client(settings)) as client:
            client.schedule("count", {"n": 0}, in_="1h")
            model = open_readmodel(settings)
            try:
                caught_up(model, eventually)
                store.process.kill()
                store.process.wait()
                eventually(lambda: model.freshness().problem is not None, 30.0)
                assert model.count(JobsWanted()).number == 1
                store.respawn()
                eventually(lambda: model.freshness().problem is None, 60.0)
                client.schedule("count", {"n": 0}, in_="1h")
                eventually(lambda: model.count(JobsWanted()).number == 2, 30.0)
            finally:
                model.close()
    finally:
        store.stop()


def _settings(bootstrap: str, prefix: str, home: Path) -> Settings:
    settings = load_settings(
        bootstrap_servers=bootstrap, prefix=prefix, state_dir=home / "state", store_timeout_ms=20_000
    )
    ensure_topics(settings)
    return settings


def _client(settings: Settings) -> Dueline:
    bootstrap, state = settings.require_bootstrap(), str(settings.state_dir)
    return Dueline(bootstrap_servers=bootstrap, prefix=settings.prefix, state_dir=state)
