"""A thread handler that keeps the GIL for 30 s in C harms no other run: the watchdog waits longer than that."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.fleet import Eventually, fleet

APP = """
import ctypes, time
from pipeline import Dueline

app = Dueline()

@app.job("lock", max_attempts=1)
def lock(ctx):
    ctypes.PyDLL(None).usleep(30_500_000)

@app.job("other", max_attempts=1)
def other(ctx):
    time.sleep(2)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_handler_that_keeps_the_gil_for_thirty_seconds_costs_nobody_an_attempt(
    broker: str, prefix: str, tmp_path: Path, eventually: Eventually
) -> None:
    with fleet(broker, prefix, tmp_path, APP) as shop:
        shop.dispatcher()
        worker = shop.worker()
        refs = [shop.client.schedule(name, {}, in_="0s") for name in ("other", "other", "lock")]
        eventually(lambda: worker.poll() is not None or len(shop.acks(b"t/")) == 3, timeout=60)
        assert worker.poll() is None, "the watchdog ended the worker"
        assert {shop.client.get(ref.id)["status"] for ref in refs} == {"succeeded"}
