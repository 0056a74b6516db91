"""The lease of a long run on the real broker: scaling, kills and freezes of the worker that holds it (DESIGN §7)."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from integration.fleet import Eventually, Fleet, fleet

from pipeline.core.job import AckState

APP = """
import pathlib, time
from pipeline import Dueline

app = Dueline()

@app.job("long")
def long(ctx, flag, seconds):
    path = pathlib.Path(flag)
    with path.open("a") as lines:
        lines.write(f"{ctx.attempt} {ctx.token}\\n")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not pathlib.Path("finish").exists() and not ctx.cancelled:
        time.sleep(0.05)
    with path.open("a") as lines:
        lines.write(f"end {ctx.attempt}\\n")
    return {"token": str(ctx.token), "cancelled": ctx.cancelled}

@app.job("quick")
def quick(ctx):
    pass
"""
SESSION_S = 3
LONG_S = 150
"""For a run that is to go on until it is told to finish."""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def started(shop: Fleet, eventually: Eventually, seconds: float) -> tuple[Any, Path]:
    """A long run that has written its first line, and the file it writes to."""
    flag = shop.home / "flag"
    flag.touch()
    job = shop.client.schedule("long", {"flag": str(flag), "seconds": seconds}, in_="100ms")
    eventually(lambda: flag.read_text().endswith("\n"), timeout=60)
    return job, flag


def finish(shop: Fleet) -> None:
    """Tell the long run to."""
    (shop.home / "finish").touch()


def attempts(shop: Fleet, job: Any) -> list[dict[str, Any]]:
    return [attempt for run in shop.client.get(job.id)["runs"] for attempt in run["attempts"]]


def owners(shop: Fleet) -> int:
    """Processes that own partitions of the work topic now; whoever left has said so."""
    from pipeline.heartbeat import read_fleet

    now = int(time.time() * 1000)
    work = shop.settings.names.work("default")
    beats = [seen.heartbeat for seen in read_fleet(shop.reader, shop.settings.names.fleet, now - 10_000)]
    return len([beat for beat in beats if any(o.topic == work and o.state == "running" for o in beat.owned)])


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_a_long_run_keeps_its_one_attempt_while_workers_scale_from_one_to_five_and_back(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    shop.worker()
    job, flag = started(shop, eventually, LONG_S)
    others = [shop.worker() for _ in range(4)]
    eventually(lambda: owners(shop) == 5, timeout=60)
    quick = [shop.client.schedule("quick", in_="10ms") for _ in range(40)]
    eventually(
        lambda: all(shop.client.get(ref.id)["status"] == "succeeded" for ref in quick[-3:]), timeout=30
    )
    for other in others:
        other.send_signal(signal.SIGTERM)
    for other in others:
        assert other.wait(60) == 0
    eventually(lambda: owners(shop) == 1, timeout=60)
    finish(shop)
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    assert [attempt["outcome"] for attempt in attempts(shop, job)] == ["succeeded"]
    assert [line.split()[0] for line in flag.read_text().splitlines()] == ["1", "end"]
    assert {ack.attempt for ack in shop.acks(b"s/")} == {1}


@pytest.mark.timeout(240)
def test_the_run_of_a_worker_that_lost_its_partitions_is_finished_by_it_and_acked_by_their_owner(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    shop.worker()
    job, flag = started(shop, eventually, LONG_S)
    more = [shop.worker() for _ in range(11)]
    eventually(lambda: owners(shop) >= 11, timeout=120)
    finish(shop)
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    assert [attempt["outcome"] for attempt in attempts(shop, job)] == ["succeeded"]
    assert flag.read_text().splitlines()[-1] == "end 1"
    assert more


@pytest.mark.timeout(240)
def test_a_deploy_keeps_nothing_waiting_for_the_slowest_handler_of_the_worker_that_leaves(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    old = shop.start("worker", "--app", "shop:app", DUELINE_DRAIN_TIMEOUT_MS="100000")
    job, flag = started(shop, eventually, LONG_S)
    shop.worker()
    eventually(lambda: owners(shop) == 2, timeout=60)
    old.terminate()
    quick = [shop.client.schedule("quick", in_="10ms").id for _ in range(24)]
    eventually(lambda: all(shop.client.get(id_)["status"] == "succeeded" for id_ in quick), timeout=60)
    assert old.poll() is None
    assert "end" not in flag.read_text()
    finish(shop)
    assert old.wait(60) == 0
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    assert [attempt["outcome"] for attempt in attempts(shop, job)] == ["succeeded"]
    assert flag.read_text().splitlines()[-1] == "end 1"
    assert {(ack.attempt, ack.state) for ack in shop.acks(b"s/")} == {(1, AckState.STARTED)}


@pytest.mark.timeout(200)
def test_the_run_of_a_frozen_worker_is_attempt_two_elsewhere_and_what_it_says_when_thawed_enters_nowhere(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    holder = shop.worker()
    job, flag = started(shop, eventually, 4)
    shop.worker()
    holder.send_signal(signal.SIGSTOP)
    eventually(lambda: shop.log().count('"action": "started"') == 3, timeout=60)  # the other is there
    frozen_at = time.monotonic()
    eventually(lambda: flag.read_text().count("\n") >= 2, timeout=60)
    assert time.monotonic() - frozen_at <= 2 * SESSION_S + 20  # then heartbeat time-out, on a busy machine
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    holder.send_signal(signal.SIGCONT)
    eventually(lambda: "end 1" in flag.read_text(), timeout=60)
    eventually(lambda: '"offered"' in shop.log() or '"ack_refused"' in shop.log(), timeout=60)
    one, two = [line.split() for line in flag.read_text().splitlines()[:2]]
    assert (one[0], two[0]) == ("1", "2")
    assert int(two[1]) > int(one[1])
    terminal = shop.acks(b"t/")
    assert [(ack.state, ack.attempt, str(ack.token)) for ack in terminal] == [(AckState.SUCCEEDED, 2, two[1])]
    committed = shop.client.get(job.id)
    assert committed["result"]["token"] == two[1]
