"""An outage of our own making on the real broker: what `outage` and `verify` say of it, beside an independent count
straight from the topics. Workers down, then failing, then the dispatcher down; a group set forward by hand; an index
that lost an entry."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from confluent_kafka import Consumer, TopicPartition
from integration.fleet import Eventually, Fleet, fleet

from pipeline import codec
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.adapters.rocks_look import indexes_in
from pipeline.core.times import format_instant, parse_instant
from pipeline.ports import Delta

APP = """
from pathlib import Path
from pipeline import Dueline

app = Dueline()

@app.job("count", max_attempts=1)
def count(ctx):
    if Path("failing").exists():
        raise RuntimeError("down")

@app.job("tick")
def tick(ctx):
    pass
"""
SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"
SECOND = 1_000


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path) -> Fleet:  # type: ignore[misc]
    with fleet(broker, prefix, tmp_path, APP) as made:
        yield made


def ask(shop: Fleet, *words: str) -> tuple[int, Any]:
    """A command's exit code and answer."""
    command = [sys.executable, "-m", "pipeline", *words, "--json"]
    ran = subprocess.run(
        command, cwd=shop.home, env=shop._environment, capture_output=True, timeout=60, check=False
    )
    assert ran.stdout, ran.stderr.decode()
    answer = json.loads(ran.stdout)
    jsonschema.validate(answer, json.loads((SCHEMAS / f"{words[0]}.json").read_text()))
    return ran.returncode, answer


def jobs(shop: Fleet, count: int, in_: str = "200ms") -> set[str]:
    return {shop.client.schedule("count", in_=in_).id for _ in range(count)}


def set_forward(shop: Fleet) -> None:
    """What an operator may do by hand: the workers' group skips all there is."""
    names = shop.settings.names
    consumer = Consumer(
        {
            "bootstrap.servers": shop.settings.require_bootstrap(),
            "group.id": names.worker_group("default"),
            "enable.auto.commit": False,
        }
    )
    places = [TopicPartition(names.work("default"), n) for n in range(12)]
    ends = [TopicPartition(p.topic, p.partition, consumer.get_watermark_offsets(p, 10)[1]) for p in places]
    consumer.commit(offsets=ends, asynchronous=False)
    consumer.close()


class Independent:
    """The same counts, from every record of the topics, with nothing of `pipeline.survey`."""

    def __init__(self, shop: Fleet, unacked: set[str]) -> None:
        self.buckets: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.skips: list[tuple[int, str]] = []
        """Instants with the reason why they were skipped."""
        ended = {ack.occurrence_id: str(ack.state) for ack in shop.acks(b"t/")}
        fired = {run.occurrence_id: (run.due_at, at) for run, at in shop.work()}
        for id_, (due_at, at) in fired.items():
            state = ended.get(id_) or ("unacked" if id_ in unacked else "waiting")
            names = ["due", state, "late" if at - due_at > SECOND else "on_time"]
            self._count(due_at, *names, *["failed"] * (state == "dead"))
        put = {
            (r.key() or b"")[2:].decode(): codec.RUN.decode(r.value() or b"").due_at
            for r in shop.records(shop.settings.names.jobs)
            if (r.key() or b"").startswith(b"j/") and r.value() is not None
        }
        for id_, due_at in put.items():
            if id_ not in fired:
                self._count(due_at, "due", "pending")
        for record in shop.records(shop.settings.names.events):
            event = codec.EVENT.decode(record.value() or b"")
            if event.kind == "skipped":
                first, last = int(event.detail["first"]), int(event.detail["last"])
                for instant in range(first, last + 1, SECOND):  # of `every 1s`
                    self._count(instant, "due", "skipped")
                    self.skips.append((instant, event.reason or ""))

    def _count(self, due_at: int, *names: str) -> None:
        self.buckets[due_at // SECOND * SECOND].update(names)

    def within(self, begin: int, end: int) -> dict[int, Counter[str]]:
        return {at: counts for at, counts in self.buckets.items() if begin <= at < end}


def told(report: Any) -> dict[int, Counter[str]]:
    """What the report counts, by bucket, without zeros."""
    found = {}
    for bucket in report["buckets"]:
        numbers = {name: n for name, n in bucket.items() if isinstance(n, int) and n}
        if numbers:
            found[parse_instant("from", bucket["from"])] = Counter(numbers)
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_an_outage_is_counted_as_an_independent_count_does(shop: Fleet, eventually: Eventually) -> None:
    dispatcher, worker = shop.dispatcher(), shop.worker()
    outcomes = _outcomes(shop)
    shop.client.schedules.create("beat", "tick", every="1s", misfire="none", misfire_threshold="1s")
    begin = int(time.time()) * SECOND
    jobs(shop, 20)
    eventually(lambda: outcomes()["succeeded"] >= 20, timeout=40)

    worker.terminate()  # workers down: what fires waits
    assert worker.wait(30) == 0
    (shop.home / "failing").touch()
    waiting = jobs(shop, 12)
    eventually(lambda: waiting <= {run.job_id for run, _ in shop.work()}, timeout=20)
    _, report = ask(shop, "outage", "--from", format_instant(begin))
    assert report["total"]["waiting"] >= 12

    worker = shop.worker()  # failing: it all dies
    jobs(shop, 8)
    eventually(lambda: outcomes()["dead"] == 20, timeout=40)
    (shop.home / "failing").unlink()

    dispatcher.kill()  # dispatchers down: nothing fires
    dispatcher.wait()
    late = jobs(shop, 15)
    down_since = time.time()
    eventually(lambda: time.time() > down_since + 4, timeout=10)
    _, report = ask(shop, "outage", "--from", format_instant(begin))
    assert report["total"]["pending"] >= 15
    shop.dispatcher()
    eventually(lambda: late <= {ack.job_id for ack in shop.acks(b"t/")}, timeout=40)

    worker.terminate()
    assert worker.wait(30) == 0
    jobs(shop, 100, in_="1h")
    skipped_by_hand = jobs(shop, 5)
    eventually(lambda: skipped_by_hand <= {run.job_id for run, _ in shop.work()}, timeout=20)
    shop.client.schedules.pause("beat")
    end = int(time.time() + 1) * SECOND
    eventually(lambda: time.time() * SECOND > end + 500, timeout=5)
    unacked = {run.occurrence_id for run, _ in shop.work()} - {ack.occurrence_id for ack in shop.acks(b"t/")}
    set_forward(shop)
    begins, ends = format_instant(begin), format_instant(end)
    code, report = ask(shop, "outage", "--from", begins, "--to", ends, "--by", "1s")
    assert code == 0
    counted = Independent(shop, unacked)
    expected = counted.within(begin, end)
    assert told(report) == expected
    total = sum(expected.values(), Counter[str]())
    assert {name: total[name] for name in ("dead", "failed", "unacked")} == {
        "dead": 20,
        "failed": 20,
        "unacked": len(unacked),
    }
    assert total["late"] >= 15
    assert total["skipped"] >= 2
    assert report["total"]["skips"] == Counter(reason for at, reason in counted.skips if begin <= at < end)
    assert report["total"]["skips"]["misfire"] >= 2
    assert report["total"]["emit_delay_ms"]["max"] > 3_000

    _verified(shop, begins, unacked)


def _outcomes(shop: Fleet) -> Callable[[], Counter[str]]:
    return lambda: Counter(str(ack.state) for ack in shop.acks(b"t/") if ack.handler == "count")


def _verified(shop: Fleet, begin: str, unacked: set[str]) -> None:
    """While the dispatcher runs, and once its index has lost an entry behind its back."""
    code, report = ask(shop, "verify", "--from", begin)
    counts = {each["kind"]: each["count"] for each in report["findings"]}
    assert (code, counts.pop("unacked")) == (1, len(unacked))
    assert set(counts.values()) == {0}
    assert {each["partition"] for each in report["indexes"]} == {*range(24)}
    assert sum(each["entries"] for each in report["indexes"]) >= 100
    assert all(each["checksum"] == each["log_checksum"] for each in report["indexes"])
    (dispatcher,) = [p for p in shop._processes if p.poll() is None]
    dispatcher.terminate()
    assert dispatcher.wait(30) == 0
    index = RocksIndex(indexes_in(shop.settings.state_dir)[0])
    entry = next(e for n in range(24) for e in index.entries(n, None, 100) if e.record_key.startswith(b"j/"))
    home = next(n for n in range(24) if index.entry(n, entry.record_key) is not None)
    delta = Delta()
    delta.remove(entry)
    index.apply(home, delta)
    index.close()
    code, report = ask(shop, "verify", "--from", begin)
    (found,) = [each for each in report["findings"] if each["kind"] == "index"]
    assert (code, found["count"]) == (1, 1)
    assert found["first"][0]["id"] == entry.record_key.decode()
    assert [each["unequal_buckets"] for each in report["indexes"] if each["partition"] == home] == [1]
