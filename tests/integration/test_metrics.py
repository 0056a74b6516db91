"""A real dispatcher and a real worker on the real broker, as Prometheus and a supervisor see them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from integration.fleet import Eventually, Fleet, fleet
from prometheus_client.parser import text_string_to_metric_families

APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx, n):
    return n

@app.job("fail", max_attempts=1)
def fail(ctx):
    raise ValueError("as asked")
"""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def addresses(shop: Fleet) -> dict[str, str]:
    """Where each role of the fleet says that it answers."""
    whole = [line for line in shop.log().splitlines() if line.startswith("{") and line.endswith("}")]
    lines = [json.loads(line) for line in whole]
    return {line["role"]: line["metrics"] for line in lines if line["action"] == "serving"}


class Page:
    """One scrape."""

    def __init__(self, address: str) -> None:
        with urllib.request.urlopen(address, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        self._samples: Samples = {
            (s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self._samples.get((f"dueline_{name}", frozenset(labels.items())), 0)


def verdict(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address.replace("/metrics", path), timeout=60) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode().strip()


@pytest.mark.timeout(150)
def test_fired_jobs_show_up_in_lateness_and_counters_of_a_real_dispatcher_and_worker(
    shop: Fleet, eventually: Eventually
) -> None:
    shop.dispatcher()
    shop.worker()
    eventually(lambda: addresses(shop).keys() == {"dispatcher", "worker"}, timeout=60)
    dispatcher, worker = addresses(shop)["dispatcher"], addresses(shop)["worker"]
    assert dispatcher.startswith("http://127.0.0.1:")
    for address in (dispatcher, worker):
        eventually(lambda address=address: verdict(address, "/readyz") == (200, "ok"), timeout=60)
        assert verdict(address, "/healthz") == (200, "ok")
    eventually(lambda: Page(dispatcher).value("partition_state", queue="", state="running") == 24)

    jobs = [{"handler": "count", "payload": {"n": n}, "in_": f"{500 + 20 * n}ms"} for n in range(300)]
    made = len(list(shop.client.schedule_many(jobs)))
    shop.client.schedule("fail", {}, in_="1s")
    eventually(lambda: Page(dispatcher).value("jobs_fired_total") == made + 1, timeout=60)
    eventually(lambda: Page(dispatcher).value("probe_records_total", kind="measured") > 0, timeout=60)
    eventually(lambda: Page(dispatcher).value("index_jobs") == 0, timeout=60)
    page = Page(dispatcher)
    assert page.value("generation") >= 1
    assert page.value("recovery_seconds_count", queue="") >= 24
    assert page.value("transaction_jobs_sum") >= made + 1
    assert (
        page.value("transaction_duration_seconds_count")
        >= page.value("transactions_total", outcome="committed")
        > 0
    )
    measured = page.value("probe_records_total", kind="measured")
    assert page.value("lateness_seconds_count", queue="default") == measured
    assert page.value("emit_delay_seconds_count", queue="default") == measured
    assert page.value("early_runs_total") == 0
    assert page.value("emit_delay_seconds_sum", queue="default") >= 0
    lateness = page.value("lateness_seconds_sum", queue="default")
    assert page.value("emit_delay_seconds_sum", queue="default") <= lateness < 5 * measured

    eventually(lambda: Page(worker).value("acks_total", queue="default") == made + 1, timeout=60)
    page = Page(worker)
    assert page.value("attempts_started_total", queue="default") == made + 1
    assert page.value("attempts_finished_total", queue="default", outcome="returned") == made
    assert page.value("attempts_finished_total", queue="default", outcome="failed") == 1
    assert page.value("attempts_in_flight", queue="default") == 0
    assert '"action": "emitted"' not in shop.log()
