"""Several dispatchers of one installation on the real broker: scaled, copied, and with a group that was lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import load_era, load_layout
from pipeline.adapters.kafka_meta import GuardReader

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, "") as made:
        yield made


def events(shop: Fleet, action: str) -> list[dict[str, Any]]:
    lines = [line for line in shop.log().splitlines() if line.startswith("{") and line.endswith("}")]
    return [event for event in map(json.loads, lines) if event["action"] == action]


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def jobs(count: int, first: float, apart_ms: int) -> list[dict[str, Any]]:
    """`count` jobs, the first due in `first` seconds and one every `apart_ms` from then on."""
    start = in_seconds(first)
    return [
        {"handler": "any", "payload": {"n": n}, "at": start + timedelta(milliseconds=apart_ms * n)}
        for n in range(count)
    ]


def running(shop: Fleet) -> int:
    """How often a partition came to run."""
    return sum(len(event["partitions"]) for event in events(shop, "running"))


def owners(shop: Fleet) -> Counter[str]:
    """Partitions by process, as the last heartbeats tell."""
    return Counter({seen.heartbeat.process: len(seen.heartbeat.owned) for seen in beats(shop)})


def beats(shop: Fleet) -> list[Any]:
    from pipeline.heartbeat import fold_fleet

    return fold_fleet(shop.records(shop.settings.names.fleet))


def dueline(shop: Fleet, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words],
        cwd=shop.home,
        env=shop._environment,
        capture_output=True,
        timeout=50,
        check=False,
    )


# -- the guard -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(200)
def test_a_group_that_was_deleted_is_refused_until_an_era_is_begun_h20(
    shop: Fleet, eventually: Eventually
) -> None:
    names = shop.settings.names
    for _ in range(2):  # the second one's generation is above what a new group begins with
        first = shop.dispatcher()
        count = len(events(shop, "stopped"))
        eventually(lambda: running(shop) >= 24 * (count + 1), timeout=60)  # noqa: B023
        first.terminate()
        assert first.wait(60) == 0
    guards = GuardReader(shop.settings.client_config(), names, names.dispatcher_group, timeout_ms=20_000)
    eventually(lambda: [guard.generation > 1 for guard in guards().values()] == [True] * 24)

    admin = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap()})
    admin.delete_consumer_groups([names.dispatcher_group])[names.dispatcher_group].result(10)
    refused = shop.dispatcher()
    assert refused.wait(60) == 4
    assert shop.log().splitlines()[-1].startswith("dueline: group ")
    assert "`dueline era bump`" in shop.log().splitlines()[-1]

    bumped = dueline(shop, "era", "bump", "--json", "--yes")
    assert (bumped.returncode, json.loads(bumped.stdout)) == (0, {"old": 1, "new": 2, "guards_removed": 24})
    assert load_era(shop.settings) == 2
    assert guards() == {}
    shop.dispatcher()
    eventually(lambda: running(shop) >= 24 * 3, timeout=60)
    eventually(lambda: len(guards()) == 24)
    guards.close()


@pytest.mark.timeout(120)
def test_the_last_era_is_not_passed(shop: Fleet) -> None:
    from pipeline import codec
    from pipeline.adapters.kafka_append import KafkaAppender
    from pipeline.core.keys import ERA_KEY
    from pipeline.ports import Put

    appender = KafkaAppender(shop.settings.require_bootstrap())
    appender.append(Put(shop.settings.names.meta, 0, ERA_KEY, codec.ERA.encode(codec.Era(era=255))))
    appender.flush(10_000)
    appender.close()
    bumped = dueline(shop, "era", "bump")
    assert bumped.returncode == 4
    assert b"era 255 is the last" in bumped.stderr
    assert load_era(shop.settings) == 255


# -- several of them -----------------------------------------------------------------------------------------


@pytest.mark.timeout(200)
def test_several_processes_share_slots_and_partitions_and_leave_nothing_behind(
    shop: Fleet, eventually: Eventually, ended: Callable[[int], bool]
) -> None:
    parent = shop.start("dispatcher", "--processes", "3")
    eventually(lambda: sorted(owners(shop).values()) == [8, 8, 8], timeout=60)
    assert sorted(event["slot"] for event in events(shop, "started")) == [0, 1, 2]
    children = {seen.heartbeat.pid for seen in beats(shop)}

    victim = min(children)
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(events(shop, "started")) == 4, timeout=60)
    eventually(
        lambda: (
            sorted(
                s.heartbeat.pid
                for s in beats(shop)
                if len(s.heartbeat.owned) == 8 and s.heartbeat.pid != victim
            )
            and len({s.heartbeat.pid for s in beats(shop)} - children) == 1
        ),
        timeout=40,
    )

    parent.terminate()
    assert parent.wait(60) == 0
    children |= {seen.heartbeat.pid for seen in beats(shop)}
    assert all(ended(pid) for pid in children)


@pytest.mark.timeout(120)
def test_processes_die_with_a_killed_parent_and_a_refusal_ends_all(
    shop: Fleet, eventually: Eventually, ended: Callable[[int], bool]
) -> None:
    parent = shop.start("dispatcher", "--processes", "2")
    eventually(lambda: len(beats(shop)) == 2, timeout=60)
    children = {seen.heartbeat.pid for seen in beats(shop)}
    parent.kill()
    parent.wait()
    eventually(lambda: all(ended(pid) for pid in children), timeout=60)

    admin = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap()})
    admin.delete_topics([shop.settings.names.events])[shop.settings.names.events].result(10)
    parent = shop.start("dispatcher", "--processes", "2")
    assert parent.wait(60) == 4
    assert "topics are missing" in shop.log()


@pytest.mark.timeout(200)
def test_kept_partitions_never_pause_while_dispatchers_come_and_go(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    eventually(lambda: running(shop) == 24, timeout=60)
    refs = list(shop.client.schedule_many(jobs(7_000, 3, 2)))
    eventually(lambda: len(shop.work()) > 500, timeout=60)
    second = shop.dispatcher()
    eventually(lambda: sorted(owners(shop).values()) == [12, 12], timeout=60)
    eventually(lambda: len(shop.work()) > 3_500, timeout=60)
    second.terminate()
    assert second.wait(60) == 0
    eventually(lambda: len(shop.work()) >= 7_000, timeout=60)

    work = shop.work()
    assert Counter(run.job_id for run, _ in work) == Counter(ref.id for ref in refs)
    moved = {p for event in events(shop, "revoked") for p in event["partitions"]}
    assert 0 < len(moved) < 24
    # A kept partition was taken over once; one that moved away and back three times.
    taken = Counter(p for event in events(shop, "running") for p in event["partitions"])
    assert {taken[p] for p in range(24) if p not in moved} == {1}
    layout = load_layout(shop.settings)
    kept = [
        appended - max(run.due_at, run.created_at)  # a job that is made late is not late
        for run, appended in work
        if layout.home(run.job_id) not in moved
    ]
    assert max(kept) < 5_000


# -- a copied state directory --------------------------------------------------------------------------------


@pytest.mark.timeout(200)
def test_copies_of_one_state_directory_part_and_lose_nothing(shop: Fleet, eventually: Eventually) -> None:
    state, copy = shop.settings.state_dir, shop.home / "copy"
    once = shop.dispatcher()
    eventually(lambda: running(shop) == 24, timeout=60)
    once.terminate()
    assert once.wait(60) == 0
    shutil.copytree(state, copy)
    instance = (state / "instance").read_text()

    refs = list(shop.client.schedule_many(jobs(6_000, 3, 3)))
    processes = [shop.dispatcher(), shop.start("dispatcher", DUELINE_STATE_DIR=str(copy))]
    eventually(lambda: len(events(shop, "instance_renamed")) >= 1, timeout=60)
    eventually(lambda: len(shop.work()) >= 6_000, timeout=60)
    assert Counter(run.job_id for run, _ in shop.work()) == Counter(ref.id for ref in refs)
    assert len({(home / "instance").read_text() for home in (state, copy)}) == 2
    (renamed, *_) = events(shop, "instance_renamed")
    assert (renamed["old"], renamed["slot"]) == (instance, 0)
    assert "copied" in renamed["reason"]

    # Peace since then: both go on, nobody is fenced again.
    rebuilds = len(events(shop, "rebuild"))
    more = list(shop.client.schedule_many(jobs(500, 0.5, 2)))
    eventually(lambda: len(shop.work()) >= 6_000 + len(more), timeout=60)
    assert len(events(shop, "rebuild")) == rebuilds
    assert [process.poll() for process in processes] == [None, None]
