"""The client on the real broker: what it writes, and that threads, forks and exits lose nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Consumer, TopicPartition

from pipeline import Dueline, InvalidInput, Refused, StoreUnreachable
from pipeline.adapters.kafka_admin import ensure_topics, load_layout
from pipeline.config import Settings, load_settings
from pipeline.core.topics import Wish

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "run.avsc").read_text())
FRAME = 10


@pytest.fixture(scope="module")
def settings(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A namespace of this module with its topics."""
    settings = load_settings(
        bootstrap_servers=broker,
        prefix=f"t{uuid.uuid4().hex[:12]}",
        state_dir=str(tmp_path_factory.mktemp("state")),
        store_timeout_ms=20_000,
    )
    ensure_topics(settings)
    return settings


@pytest.fixture
def app(settings: Settings) -> Iterator[Dueline]:
    with Dueline(bootstrap_servers=settings.bootstrap_servers, prefix=settings.prefix) as app:
        yield app


def ids_by_label(settings: Settings, label: str) -> list[str]:
    """Ids of the jobs with `label`, read by nothing of ours: a plain consumer and plain fastavro."""
    schema = fastavro.parse_schema(SCHEMA)
    found = []
    consumer = Consumer(
        {"bootstrap.servers": settings.bootstrap_servers, "group.id": "t", "enable.partition.eof": True}
    )
    partitions = load_layout(settings).partitions
    consumer.assign([TopicPartition(settings.names.jobs, n, 0) for n in range(partitions)])
    left = partitions
    while left:
        for message in consumer.consume(1_000, 1.0):
            if message.error() is not None:
                left -= 1
            elif (value := message.value()) is not None:
                run = fastavro.schemaless_reader(io.BytesIO(value[FRAME:]), schema)
                if run["labels"].get("test") == label:
                    assert message.key() == b"j/" + run["job_id"].encode()
                    found.append(run["job_id"])
    consumer.close()
    return found


def test_a_job_is_a_plain_avro_record_at_its_home(settings: Settings, app: Dueline) -> None:
    before = datetime.now(UTC)
    ref = app.schedule(
        "email.send", {"to": "ä@b"}, in_="1h", idempotency_key="dunning_invoice_55", labels={"test": "one"}
    )
    after = datetime.now(UTC)
    layout = load_layout(settings)
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "t"})
    consumer.assign([TopicPartition(settings.names.jobs, layout.home(ref.id), 0)])
    messages = iter(lambda: consumer.poll(10), None)
    message = next(m for m in messages if m.key() == b"j/" + ref.id.encode())
    consumer.close()
    value = message.value()
    assert value is not None
    assert value[:2] == b"\xc3\x01"
    run = fastavro.schemaless_reader(io.BytesIO(value[FRAME:]), fastavro.parse_schema(SCHEMA))
    assert isinstance(run, dict)
    assert run["job_id"] == run["occurrence_id"] == ref.id
    assert json.loads(run["payload"]) == {"to": "ä@b"}
    assert (run["handler"], run["idempotency_key"], run["run"]) == ("email.send", "dunning_invoice_55", 1)
    assert run["due_at"] - run["created_at"] == 3_600_000
    hour, clocks = timedelta(hours=1), timedelta(seconds=2)  # the store's is behind by a round trip at most
    assert before - clocks < ref.due_at - hour < after + clocks
    assert ids_by_label(settings, "one") == [ref.id]


def test_get_finds_a_pending_job(app: Dueline) -> None:
    ref = app.schedule("email.send", in_="1h")
    view = app.get(ref.id)
    assert (view["status"], view["handler"], view["runs"]) == ("pending", "email.send", [])
    assert app.live_handlers() == frozenset()


def test_schedule_many_stores_each_job_once(settings: Settings, app: Dueline) -> None:
    jobs = (
        {"handler": "h", "payload": {"n": n}, "in_": n / 100, "labels": {"test": "many"}}
        for n in range(5_000)
    )
    refs = list(app.schedule_many(jobs))
    assert len(refs) == 5_000
    assert sorted(ref.id for ref in refs) == sorted(ids_by_label(settings, "many"))


def test_threads_and_coroutines_share_a_client(settings: Settings, app: Dueline) -> None:
    made: list[str] = []

    def create() -> None:
        made.extend(app.schedule("h", in_="1h", labels={"test": "threads"}).id for _ in range(20))

    async def create_async() -> None:
        jobs = (app.aschedule("h", in_="1h", labels={"test": "threads"}) for _ in range(100))
        made.extend(ref.id for ref in await asyncio.gather(*jobs))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(create_async())
    for thread in threads:
        thread.join()
    assert len(made) == 180
    assert sorted(made) == sorted(ids_by_label(settings, "threads"))


def test_a_late_queue_is_found_and_an_unknown_one_refused(settings: Settings, app: Dueline) -> None:
    with pytest.raises(InvalidInput, match="dueline topics create --queue late"):
        app.schedule("h", in_="1h", queue="late")
    ensure_topics(settings, wish=Wish(queues={"late": None}))
    app.schedule("h", in_="1h", queue="late")


# -- processes ----------------------------------------------------------------------------------------------


def python(settings: Settings, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={
            **os.environ,
            "DUELINE_BOOTSTRAP_SERVERS": settings.bootstrap_servers or "",
            "DUELINE_PREFIX": settings.prefix,
        },
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_parent_and_child_of_a_fork_both_create_and_exit(settings: Settings) -> None:
    ran = python(
        settings,
        """
        import os, sys
        from pipeline import Dueline

        app = Dueline()
        make = lambda: print(app.schedule("h", in_="1h", labels={"test": "fork"}).id, flush=True)
        make()
        child = os.fork()
        make()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        sys.exit(0)
        """,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    made = ran.stdout.split()
    assert len(set(made)) == 3
    assert sorted(made) == sorted(ids_by_label(settings, "fork"))


def test_what_is_in_flight_at_exit_is_flushed(settings: Settings) -> None:
    ran = python(
        settings,
        """
        from pipeline import Dueline

        def jobs():
            for n in range(1_000_000):
                yield {"handler": "h", "in_": "1h", "labels": {"test": "exit"}}
                print(n + 1)

        next(Dueline().schedule_many(jobs()))
        """,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    appended = int(ran.stdout.split()[-1]) + 1  # the last one was taken, but its number not printed
    assert len(ids_by_label(settings, "exit")) == appended


# -- no store -----------------------------------------------------------------------------------------------


def test_nobody_answers(tmp_path: Path) -> None:
    app = Dueline(bootstrap_servers="127.0.0.1:1", state_dir=str(tmp_path), store_timeout_ms=1_000)
    started = time.monotonic()
    with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1:1"):
        app.schedule("h", in_="1s")
    assert time.monotonic() - started < 20


def test_there_are_no_topics(broker: str, prefix: str, tmp_path: Path) -> None:
    app = Dueline(bootstrap_servers=broker, prefix=prefix, state_dir=str(tmp_path))
    with pytest.raises(Refused, match="dueline topics create"):
        app.schedule("h", in_="1s")
