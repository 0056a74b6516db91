"""The walking pipeline on the real broker: real processes, killed and frozen, read back from the topics."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from integration.fleet import Eventually, Fleet, fleet
from ports import free_port

from pipeline.adapters.kafka_admin import topic_admin
from pipeline.core.errors import StoreUnreachable
from pipeline.dev.broker import EmbeddedBroker

APP = """
import pathlib, time
from pipeline import Dueline, Dead

app = Dueline()

@app.job("count")
def count(ctx, n):
    return n

@app.job("fail", max_attempts=2)
def fail(ctx):
    raise ValueError("as asked")

@app.job("aio")
async def aio(ctx, payload):
    return payload

@app.job("stuck")
def stuck(ctx, flag):
    path = pathlib.Path(flag)
    if ctx.attempt == 1:
        path.write_text(str(ctx.token))
        while True:
            time.sleep(0.05)
    return {"first": path.read_text(), "second": str(ctx.token)}

@app.job("two")
def two(ctx):
    time.sleep(2)
"""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.timeout(200)
def test_ten_thousand_jobs_over_ten_seconds_all_succeed_none_early(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    shop.worker()
    start = in_seconds(3)
    jobs = [
        {"handler": "count", "payload": {"n": n}, "at": start + timedelta(milliseconds=n)}
        for n in range(10_000)
    ]
    refs = list(shop.client.schedule_many(jobs))
    # The last one first: reading all acks again and again would take the two cores from what it waits for.
    eventually(lambda: shop.client.get(refs[-1].id)["status"] == "succeeded", timeout=60)
    eventually(lambda: shop.outcomes()["succeeded"] >= 10_000, timeout=60)
    work = shop.work()
    assert Counter(run.job_id for run, _ in work) == Counter(ref.id for ref in refs)
    assert [run for run, appended in work if appended < run.due_at] == []
    assert shop.outcomes() == Counter(succeeded=10_000)
    assert len(shop.acks(b"s/")) == 10_000


@pytest.mark.timeout(150)
def test_outcomes_of_every_kind_are_read_back_by_job_get(shop: Fleet, eventually: Eventually) -> None:
    shop.dispatcher()
    shop.worker()
    echo = shop.client.schedule("aio", {"a": [1, None]}, at=in_seconds(-3600))
    fails = shop.client.schedule("fail", {}, in_="200ms")
    later = shop.client.schedule("count", {"n": 1}, at=in_seconds(3600))
    eventually(lambda: shop.client.get(echo.id)["status"] == "succeeded", timeout=60)
    eventually(lambda: shop.client.get(fails.id)["status"] == "dead", timeout=60)
    assert shop.client.get(echo.id)["result"] == {"a": [1, None]}
    runs = shop.client.get(fails.id)["runs"]
    assert [attempt["outcome"] for run in runs for attempt in run["attempts"]] == ["retrying", "dead"]
    assert runs[0]["attempts"][0]["error"]["message"] == "as asked"
    assert shop.client.get(later.id)["status"] == "pending"


@pytest.mark.timeout(150)
def test_a_killed_worker_is_taken_over_with_attempt_two_and_a_larger_token(
    shop: Fleet, eventually: Eventually
) -> None:
    flag = shop.home / "flag"
    flag.touch()
    shop.dispatcher()
    victim = shop.worker()
    job = shop.client.schedule("stuck", {"flag": str(flag)}, in_="100ms")
    eventually(flag.read_text, timeout=60)
    shop.worker()
    victim.kill()
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    seen = shop.client.get(job.id)
    assert int(seen["result"]["second"]) > int(seen["result"]["first"])
    assert [attempt["attempt"] for attempt in seen["runs"][0]["attempts"]][-1] == 2


@pytest.mark.timeout(200)
def test_dispatchers_killed_and_frozen_lose_and_double_nothing(shop: Fleet, eventually: Eventually) -> None:
    first, second = shop.dispatcher(), shop.dispatcher()
    start = in_seconds(4)
    jobs = [
        {"handler": "count", "payload": {"n": n}, "at": start + timedelta(milliseconds=2 * n)}
        for n in range(6_000)
    ]
    refs = list(shop.client.schedule_many(jobs))
    eventually(lambda: len(shop.work()) > 500, timeout=60)
    first.kill()
    shop.dispatcher()
    eventually(lambda: len(shop.work()) > 2_500, timeout=60)
    second.send_signal(signal.SIGSTOP)
    frozen_at = time.monotonic()
    eventually(lambda: time.monotonic() - frozen_at > 6, timeout=60)  # past its session, so it is a zombie
    second.send_signal(signal.SIGCONT)
    eventually(lambda: len(shop.work()) >= 6_000, timeout=60)
    work = shop.work()
    assert Counter(run.job_id for run, _ in work) == Counter(ref.id for ref in refs)
    assert [run for run, appended in work if appended < run.due_at] == []


@pytest.mark.timeout(120)
def test_sigterm_drains_and_a_restart_goes_on_where_it_stood(shop: Fleet, eventually: Eventually) -> None:
    dispatcher, worker = shop.dispatcher(), shop.worker()
    done = shop.client.schedule("count", {"n": 1}, in_="100ms")
    eventually(lambda: shop.client.get(done.id)["status"] == "succeeded", timeout=60)
    for process in (worker, dispatcher):
        process.terminate()
        assert process.wait(60) == 0
    waiting = shop.client.schedule("count", {"n": 2}, in_="100ms")
    shop.dispatcher()
    shop.worker()
    eventually(lambda: shop.client.get(waiting.id)["status"] == "succeeded", timeout=60)
    assert len(shop.work()) == 2


@pytest.mark.timeout(200)
def test_a_worker_whose_handler_outlives_the_drain_ends_all_the_same(
    shop: Fleet, eventually: Eventually, tmp_path: Path
) -> None:
    """Its run has gone back unspent: were the process to live on, the run would soon be executed twice at once."""
    shop.dispatcher()
    worker = shop.start("worker", "--app", "shop:app", DUELINE_DRAIN_TIMEOUT_MS="200")
    flag = tmp_path / "flag"
    flag.touch()
    shop.client.schedule("stuck", {"flag": str(flag)}, in_="100ms")
    eventually(flag.read_text, timeout=60)
    worker.terminate()
    assert worker.wait(60) == 0


def answers(shop: Fleet) -> bool:
    try:
        return topic_admin(shop.settings).brokers() == 1
    except StoreUnreachable:
        return False


def status(shop: Fleet, job_id: str) -> str:
    """What a client is told; that the store cannot be reached is no answer."""
    try:
        return str(shop.client.get(job_id)["status"])
    except StoreUnreachable:
        return "unknown"


@contextmanager
def asking(shop: Fleet, ids: list[str]) -> Iterator[list[str]]:
    """Inside, somebody asks for these jobs without a break. What was wrong with the answers."""
    over, wrong = threading.Event(), list[str]()

    def ask() -> None:
        for id_ in itertools.cycle(ids):
            if over.wait(0.02):
                return
            try:
                status(shop, id_)
            except Exception as error:  # noqa: BLE001 - each is one answer too many
                wrong.append(repr(error))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield wrong
    finally:
        over.set()
        thread.join()


def ended(shop: Fleet) -> int:
    try:
        return len(shop.acks(b"t/"))
    except StoreUnreachable:
        return 0


@pytest.mark.timeout(300)
def test_a_killed_broker_costs_no_attempt_and_no_process(
    prefix: str, tmp_path: Path, eventually: Eventually
) -> None:
    """librdkafka can hang for ever on a coordinator that is gone (librdkafka#5456); the watchdog would end it. Runs go
    on meanwhile, and nobody takes the other worker for dead because it comes back later."""
    with (
        EmbeddedBroker(tmp_path / "store", port=free_port()) as store,
        fleet(store.bootstrap, prefix, tmp_path, APP) as shop,
    ):
        processes = [shop.dispatcher(), shop.worker(), shop.worker()]
        before = shop.client.schedule("count", {"n": 1}, in_="100ms")
        eventually(lambda: shop.client.get(before.id)["status"] == "succeeded", timeout=60)
        many = [ref.id for ref in shop.client.schedule_many({"handler": "two", "in_": 0} for _ in range(150))]
        eventually(lambda: ended(shop) > 20, timeout=60)
        with asking(shop, many) as wrong:
            store.process.kill()
            store.process.wait(60)
            store.respawn()
            eventually(lambda: answers(shop), timeout=60)
            after = shop.client.schedule("count", {"n": 2}, in_="100ms")
            eventually(lambda: status(shop, after.id) == "succeeded", timeout=60)
            eventually(lambda: ended(shop) == len(many) + 2, timeout=60)
        assert wrong == [], "never that a job does not exist"
        assert {ack.attempt for ack in shop.acks(b"t/")} == {1}
        assert [process.poll() for process in processes] == [None] * 3
