"""The doctor before a real broker: a store that runs is well, and what is spoilt there is found and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline.adapters.kafka_admin import TopicAdmin
from pipeline.adapters.kafka_checkup import Checkup
from pipeline.doctor import Finding, Severity, examine

APP = """
from pipeline import Dueline

app = Dueline()

@app.job("count")
def count(ctx):
    return 1
"""
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "cli" / "doctor.json").read_text("utf-8"))
ALONE = {("brokers", "brokers")}
"""What is told of any store of one broker."""


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def look(shop: Fleet) -> dict[tuple[str, str], Finding]:
    """Findings by check and subject, but notes."""
    with Checkup(shop.settings) as checkup:
        told = examine(checkup.facts())
    return {(name, f.subject): f for name, f in told if f.severity is not Severity.NOTE}


@pytest.mark.timeout(200)
def test_a_store_that_runs_is_well_and_what_is_spoilt_is_found(
    shop: Fleet, eventually: Eventually, broker: str
) -> None:
    names, settings = shop.settings.names, shop.settings
    shop.dispatcher()
    worker = shop.worker()
    job = shop.client.schedule("count", in_="10ms")
    eventually(lambda: shop.client.get(job.id)["status"] == "succeeded", timeout=60)
    eventually(lambda: look(shop).keys() == ALONE, timeout=60)

    TopicAdmin(settings.client_config(), names).alter(names.acks("default"), {"retention.ms": "3600000"})
    worker.kill()
    worker.wait()
    foreign = Producer(
        {
            "bootstrap.servers": broker,
            "transactional.id": f"{settings.prefix}-foreign",
            "transaction.timeout.ms": 300_000,  # it is to be open for as long as it takes
        }
    )
    foreign.init_transactions(20)
    foreign.begin_transaction()
    foreign.produce(names.jobs, b"x", b"foreign", partition=5)
    assert foreign.flush(20) == 0
    stranger = Consumer(
        {
            "bootstrap.servers": broker,
            "client.id": "stranger",
            "group.id": names.dispatcher_group,
            "partition.assignment.strategy": "cooperative-sticky",
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
        }
    )
    stranger.subscribe([names.jobs])
    admin = AdminClient({"bootstrap.servers": broker})
    group = names.worker_group("default")

    def deleted() -> bool:
        stranger.poll(0.01)
        try:
            admin.delete_consumer_groups([group])[group].result(10)
        except KafkaException:
            return False  # until the session of the killed worker is over
        return True

    def found() -> bool:
        stranger.poll(0.01)
        told.clear()
        told.update(look(shop))
        return wanted <= told.keys() and "transaction is open" in told["transactions", names.jobs].problem

    told: dict[tuple[str, str], Finding] = {}
    wanted = {
        ("settings", names.acks("default")),
        ("retention", names.acks("default")),
        ("owners", names.work("default")),
        ("offsets", group),
        ("members", names.dispatcher_group),
        ("transactions", names.jobs),
    }
    try:
        eventually(deleted, timeout=60)
        eventually(found, timeout=60)
    finally:
        foreign.abort_transaction(20)
        stranger.close()
    assert "client stranger, host /" in told["members", names.dispatcher_group].problem
    assert "dueline era bump" in told["offsets", group].remedy
    open_ = told["transactions", names.jobs]
    assert "on partitions 5, " in open_.problem
    assert "its first record is b'foreign'" in open_.problem
    assert f"describe-producers --topic {names.jobs} --partition 5 " in open_.remedy
    assert told["retention", names.acks("default")].severity is Severity.ERROR


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_frozen_dispatcher_is_named_as_the_holder_of_its_transaction(
    shop: Fleet, eventually: Eventually
) -> None:
    """Drill: hanging transaction. The coordinator ends it after a while (here a minute); the doctor knows before."""
    frozen = shop.start("dispatcher", DUELINE_KILL_POINT="flushed:stop:1", **shop.patient())
    eventually(lambda: '"running"' in shop.log(), timeout=60)
    shop.client.schedule("count", in_="10ms")
    told: list[Finding] = []

    def named() -> bool:
        told[:] = [found for (name, _), found in look(shop).items() if name == "transactions"]
        return bool(told) and all("silent for" in found.problem for found in told)

    eventually(named, timeout=60)
    assert {found.subject for found in told} <= {
        shop.settings.names.jobs,
        shop.settings.names.work("default"),
    }
    for found in told:
        assert f"transactional ids {shop.settings.prefix}.dispatcher." in found.problem
        assert found.remedy.startswith(f"end process {frozen.pid} on ")
        assert "kafka-transactions.sh --bootstrap-server" in found.remedy


def test_the_command_answers_by_its_schema_and_exit_code(broker: str, prefix: str, tmp_path: Path) -> None:
    def doctor(*words: str) -> tuple[int, Any, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pipeline", *words],
            env={
                **os.environ,
                "DUELINE_BOOTSTRAP_SERVERS": broker,
                "DUELINE_PREFIX": prefix,
                "DUELINE_STATE_DIR": str(tmp_path / "state"),
            },
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
        if words[0] == "doctor":
            jsonschema.validate(json.loads(done.stdout), SCHEMA)
        return done.returncode, json.loads(done.stdout), done.stderr

    code, view, _ = doctor("doctor", "--json")
    assert (code, [found["check"] for found in view["findings"]]) == (1, ["installation"])
    assert doctor("topics", "create", "--json")[0] == 0
    code, view, told = doctor("doctor", "--json")
    assert (code, view["ok"]) == (1, False)
    assert {found["check"] for found in view["findings"] if found["severity"] == "error"} == {"owners"}
    assert "looking again in 3 s" in told
