"""Pausing, resuming and purging a queue under load on the real broker (docs/queues.md)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_cut import KafkaPositions
from pipeline.core.ids import keyed_id
from pipeline.core.job import AckState

APP = """
import pathlib, time
from pipeline import Dueline

app = Dueline()

@app.job("quick")
def quick(ctx):
    pass

@app.job("long")
def long(ctx):
    while not pathlib.Path("finish").exists():
        time.sleep(0.05)
"""
GRACE_S = 2
"""Within which a pause holds everywhere, on a machine that is not busy."""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def ask(shop: Fleet, *words: str, code: int = 0) -> Any:
    """The answer of a command, which ends with this code."""
    place = shop.home / "answer"
    with place.open("wb") as out:
        kept, shop._log = shop._log, out  # type: ignore[assignment]
        try:
            process = shop.start(*words, "--json")
        finally:
            shop._log = kept
        assert process.wait(90) == code, place.read_text()
    lines = [line for line in place.read_text().splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines]


def quick(shop: Fleet, count: int, **more: Any) -> list[str]:
    jobs = [{"handler": "quick", "in_": "1ms", **more} for _ in range(count)]
    return [ref.id for ref in shop.client.schedule_many(jobs)]


def terminal(shop: Fleet) -> dict[str, list[AckState]]:
    """Of each job how its runs ended."""
    found: dict[str, list[AckState]] = {}
    for ack in shop.acks(b"t/"):
        found.setdefault(ack.job_id, []).append(ack.state)
    return found


def starts(shop: Fleet) -> list[int]:
    return [ack.at for ack in shop.acks(b"s/")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pause_holds_under_load_and_over_restarts_rebalances_and_takeovers(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    worker = shop.worker()
    jobs = quick(shop, 500)
    eventually(lambda: len(terminal(shop)) == 500, timeout=60)
    long = shop.client.schedule("long", in_="1ms").id
    eventually(lambda: len(starts(shop)) == 501, timeout=60)
    (paused,) = ask(shop, "queue", "pause", "default", "--reason", "drill")
    assert paused["outcome"] == "paused"
    eventually(lambda: shop.log().count('"queue_paused"') >= 1, timeout=5 * GRACE_S)
    jobs += quick(shop, 300)
    eventually(lambda: len(shop.work()) == 801, timeout=60)  # what is due is emitted all the same

    run_before = shop.log().count('"running"')
    another = shop.worker()  # the partitions are shared
    eventually(lambda: shop.log().count('"running"') > run_before, timeout=60)
    worker.kill()  # what it ran is taken over, and waits
    worker.wait()
    eventually(lambda: '"reclaimed"' in shop.log(), timeout=60)
    another.terminate()
    assert another.wait(60) == 0
    shop.worker()
    eventually(lambda: shop.log().count('"queue_paused"') >= 3, timeout=60)
    jobs += quick(shop, 100)
    eventually(lambda: len(shop.work()) == 901, timeout=60)
    (view,) = ask(shop, "queue", "list")
    assert (view["paused"]["reason"], view["running"], len(view["workers"])) == ("drill", 0, 1)
    assert view["waiting"] >= 400
    assert len(starts(shop)) == 501
    eventually(lambda: shop.client.get(jobs[-1])["status"] == "queued")

    (shop.home / "finish").touch()
    ask(shop, "queue", "resume", "default")
    eventually(lambda: len(terminal(shop)) == 901, timeout=60)
    assert {job: ends for job, ends in terminal(shop).items() if ends != [AckState.SUCCEEDED]} == {}
    assert set(terminal(shop)) == {*jobs, long}
    assert len(starts(shop)) == 902, "only the run whose worker was killed was started again"
    eventually(lambda: ask(shop, "queue", "list")[0]["waiting"] == 0)  # the group's offsets follow the acks
    (view,) = ask(shop, "queue", "list")
    assert (view["paused"], view["changed"]["what"]) == (None, "resumed")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_purge_survives_the_death_of_its_workers_and_touches_nothing_that_came_after(
    shop: Fleet, eventually: Eventually
) -> None:
    count = 10_000
    shop.dispatcher()
    ask(shop, "queue", "pause", "default")
    gone = quick(shop, count)
    gone.append(shop.client.schedule("quick", in_="1ms", key="invoice-55").id)
    eventually(lambda: len(shop.work()) == count + 1, timeout=60)
    assert ask(shop, "queue", "purge", "default", code=4) == []
    (answer,) = ask(shop, "queue", "purge", "default", "--yes")
    assert (answer["outcome"], answer["waiting"], answer["left"]) == ("purging", count + 1, count + 1)
    later = quick(shop, 200)
    eventually(lambda: len(shop.work()) == count + 201, timeout=60)

    left = []
    with closing(KafkaPositions(shop.settings.require_bootstrap(), shop.settings.kafka)) as positions:
        acks, partitions = shop.settings.names.acks("default"), 12
        for _ in range(2):
            before = positions.sizes(acks, partitions)
            worker = shop.worker()
            eventually(lambda: positions.sizes(acks, partitions) > before + 200, timeout=60)  # noqa: B023
            worker.kill()
            worker.wait()
            left.append(count + 1 - len(terminal(shop)))
    assert left[0] > 0, "it was killed in the midst of it"
    shop.worker()
    eventually(lambda: len(terminal(shop)) == count + 1, timeout=60)
    ends = terminal(shop)
    assert set(ends) == set(gone)
    assert Counter(map(tuple, ends.values())) == {(AckState.CANCELLED,): count + 1}
    assert starts(shop) == []
    reasons = {ack.error.message for ack in shop.acks(b"t/") if ack.error is not None}
    assert {reason.split()[1] for reason in reasons} == {answer["id"]}
    eventually(lambda: shop.client.get(keyed_id("invoice-55"))["status"] == "cancelled", timeout=60)
    again = shop.client.schedule("quick", in_="1ms", key="invoice-55")
    assert again.status == "created", "its key is free"
    eventually(lambda: ask(shop, "queue", "list")[0]["purge"]["left"] == 0)
    (view,) = ask(shop, "queue", "list")
    assert view["waiting"] >= 200

    ask(shop, "queue", "resume", "default")
    eventually(lambda: len(starts(shop)) == 201, timeout=60)
    eventually(lambda: sum(map(len, terminal(shop).values())) == count + 202, timeout=60)
    ends = terminal(shop)
    assert {tuple(ends[job]) for job in later} == {(AckState.SUCCEEDED,)}


@pytest.mark.timeout(200)
def test_a_purge_beside_work_leaves_what_runs_alone_and_tells_its_end(
    shop: Fleet, eventually: Eventually
) -> None:
    """And a queue that is paused keeps no other one of its workers waiting."""
    ask(shop, "topics", "create", "--queue", "mail")
    shop.dispatcher()
    shop.worker("--concurrency", "4", "--queue", "default", "--queue", "mail")
    ask(shop, "queue", "pause", "mail")
    (mail,) = quick(shop, 1, queue="mail")
    running = [shop.client.schedule("long", in_="1ms").id for _ in range(2)]
    eventually(lambda: len(starts(shop)) == 2, timeout=60)
    gone = quick(shop, 200)
    eventually(lambda: len(shop.work()) == 202, timeout=60)

    def listed() -> tuple[Any, ...]:
        view, _ = ask(shop, "queue", "list")
        return view["waiting"], view["running"], view["paused"]

    eventually(lambda: listed() == (200, 2, None))  # what runs is told by heartbeats
    _, other = ask(shop, "queue", "list")
    assert (other["waiting"], other["oldest_waiting"] is None, len(other["workers"])) == (1, False, 1)
    (answer,) = ask(shop, "queue", "purge", "default", "--yes")
    assert (answer["outcome"], answer["waiting"], answer["cancelled"]) == ("purged", 200, 200)
    (shop.home / "finish").touch()
    eventually(lambda: len(terminal(shop)) == 202, timeout=60)
    ends = terminal(shop)
    assert {tuple(ends[job]) for job in gone} == {(AckState.CANCELLED,)}
    assert {tuple(ends[job]) for job in running} == {(AckState.SUCCEEDED,)}
    quick(shop, 10)
    eventually(lambda: Counter(s for e in terminal(shop).values() for s in e)["succeeded"] == 12, timeout=60)
    assert shop.client.get(mail)["status"] == "queued"
    ask(shop, "queue", "resume", "mail")
    eventually(lambda: shop.client.get(mail)["status"] == "succeeded", timeout=60)
