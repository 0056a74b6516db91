"""The group protocol `consumer` (KIP-848): chosen by a setting, and everything else stays as promised."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import topic_admin
from pipeline.heartbeat import fold_fleet

pytestmark = pytest.mark.slow

APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx, n):
    return n
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:  # type: ignore[misc]
    monkeypatch.setenv("DUELINE_GROUP_PROTOCOL", "consumer")
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def owned(shop: Fleet) -> dict[int, int]:
    """How many partitions each process owns, by its pid."""
    beats = fold_fleet(shop.records(shop.settings.names.fleet))
    return {seen.heartbeat.pid: len(seen.heartbeat.owned) for seen in beats}


@pytest.mark.timeout(240)
def test_a_killed_dispatcher_and_worker_are_taken_over_under_the_consumer_protocol(
    shop: Fleet, eventually: Eventually
) -> None:
    dispatchers = [shop.dispatcher(), shop.dispatcher()]
    workers = [shop.worker(), shop.worker()]
    eventually(lambda: len(owned(shop)) == 4 and all(owned(shop).values()), timeout=90)
    start = datetime.now(UTC) + timedelta(seconds=5)
    jobs = [
        {"handler": "count", "payload": {"n": n}, "at": start + timedelta(milliseconds=3 * n)}
        for n in range(5_000)
    ]
    refs = list(shop.client.schedule_many(jobs))
    eventually(lambda: len(shop.work()) > 500, timeout=60)
    dispatchers[0].kill()
    workers[0].kill()
    eventually(lambda: len(shop.work()) >= 5_000, timeout=60)
    eventually(lambda: shop.outcomes()["succeeded"] >= 5_000, timeout=60)
    work = shop.work()
    assert Counter(run.job_id for run, _ in work) == Counter(ref.id for ref in refs)
    assert shop.outcomes() == Counter(succeeded=5_000)
    late = [appended - run.due_at for run, appended in work]
    assert min(late) >= 0
    session = topic_admin(shop.settings).consumer_session(shop.settings.names.dispatcher_group, None)
    # The stock session of this protocol is 45 s. How fast a takeover is at its best is the bench's to say.
    assert max(late) <= session + 20_000


@pytest.mark.timeout(200)
def test_a_rolling_change_of_the_protocol_and_back_keeps_the_generation_h20(
    shop: Fleet, eventually: Eventually
) -> None:
    """Back once: a group that went back to classic does not change again until it is empty (Kafka 4.4)."""
    owner = shop.start("dispatcher", DUELINE_GROUP_PROTOCOL="classic")
    eventually(lambda: owned(shop).get(owner.pid) == 24, timeout=60)
    for turn, protocol in enumerate(["consumer", "classic"], start=1):
        successor = shop.start("dispatcher", DUELINE_GROUP_PROTOCOL=protocol)
        pids = owner.pid, successor.pid
        eventually(lambda: [owned(shop).get(pid) for pid in pids] == [12, 12], timeout=60)  # noqa: B023
        owner.terminate()
        assert owner.wait(60) == 0
        owner = successor
        job = shop.client.schedule("count", {"n": turn}, in_="100ms")
        eventually(lambda: job.id in {run.job_id for run, _ in shop.work()}, timeout=60)  # noqa: B023


@pytest.mark.timeout(150)
def test_a_cold_change_back_to_classic_begins_generations_anew_and_is_refused_h20(
    shop: Fleet, eventually: Eventually
) -> None:
    """The broker makes a new group of an empty one when the other protocol joins it."""
    for protocol in ("classic", "consumer"):
        owner = shop.start("dispatcher", DUELINE_GROUP_PROTOCOL=protocol)
        eventually(lambda: owned(shop).get(owner.pid) == 24, timeout=60)  # noqa: B023
        job = shop.client.schedule("count", {"n": 1}, in_="100ms")
        eventually(lambda: job.id in {run.job_id for run, _ in shop.work()}, timeout=60)  # noqa: B023
        owner.terminate()
        assert owner.wait(60) == 0
    refused = shop.start("dispatcher", DUELINE_GROUP_PROTOCOL="classic")
    assert refused.wait(60) == 4
    assert "`dueline era bump`" in shop.log().splitlines()[-1]


def test_the_session_of_a_group_is_set_on_the_group(shop: Fleet) -> None:
    admin, group = topic_admin(shop.settings), shop.settings.names.worker_group("default")
    lowest = admin.consumer_session(group, None)
    assert admin.consumer_session(group, lowest + 2_000) == lowest + 2_000
    assert admin.consumer_session(group, None) == lowest
