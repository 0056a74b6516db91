"""An outage of our own making on the real broker: what `outage` and `verify` say of it, beside an independent count
straight from the topics. Workers down, then failing, then the dispatcher down; workers killed in mid-run, with requeues
afterwards; a group set forward by hand; an index that lost an entry."""

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
from pipeline.core.job import Run
from pipeline.core.times import format_instant, parse_instant
from pipeline.ports import Delta

APP = """
import time
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

@app.job("once", max_attempts=1)
def once(ctx, n):
    time.sleep(0.1)
    if n % 5 == 0 and Path("failing").exists():
        raise RuntimeError("down")

@app.job("often", max_attempts=3)
def often(ctx, n):
    time.sleep(0.1)
    if ctx.run == 1 or n % 5 == 0:
        raise RuntimeError("not yet")
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
        ended = {(ack.occurrence_id, ack.run): str(ack.state) for ack in shop.acks(b"t/")}
        fired: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for run, at in shop.work():
            assert run.run not in fired[run.occurrence_id]
            fired[run.occurrence_id][run.run] = run.due_at, at
        for id_, runs in fired.items():
            due_at, at = runs[1]
            state = ended.get((id_, max(runs))) or ("unacked" if id_ in unacked else "waiting")
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
@pytest.mark.timeout(300)
def test_an_outage_is_counted_as_an_independent_count_does(shop: Fleet, eventually: Eventually) -> None:
    dispatcher, worker = shop.dispatcher(), shop.worker()
    outcomes = _outcomes(shop)
    shop.client.schedules.create("beat", "tick", every="1s", misfire="none", misfire_threshold="1s")
    begin = int(time.time()) * SECOND
    jobs(shop, 20)
    eventually(lambda: outcomes()["succeeded"] >= 20, timeout=60)

    worker.terminate()  # workers down: what fires waits
    assert worker.wait(60) == 0
    (shop.home / "failing").touch()
    waiting = jobs(shop, 12)
    eventually(lambda: waiting <= {run.job_id for run, _ in shop.work()}, timeout=60)
    _, report = ask(shop, "outage", "--from", format_instant(begin))
    assert report["total"]["waiting"] >= 12

    worker = shop.worker()  # failing: it all dies
    jobs(shop, 8)
    eventually(lambda: outcomes()["dead"] == 20, timeout=60)
    (shop.home / "failing").unlink()

    dispatcher.kill()  # dispatchers down: nothing fires
    dispatcher.wait()
    late = jobs(shop, 15)
    down_since = time.time()
    eventually(lambda: time.time() > down_since + 4, timeout=60)
    _, report = ask(shop, "outage", "--from", format_instant(begin))
    assert report["total"]["pending"] >= 15
    shop.dispatcher()
    eventually(lambda: late <= {ack.job_id for ack in shop.acks(b"t/")}, timeout=60)

    worker.terminate()
    assert worker.wait(60) == 0
    jobs(shop, 100, in_="1h")
    skipped_by_hand = jobs(shop, 5)
    eventually(lambda: skipped_by_hand <= {run.job_id for run, _ in shop.work()}, timeout=60)
    assert shop.client.schedules.pause("beat", wait="30s").outcome == "paused"
    end = int(time.time() + 1) * SECOND
    eventually(lambda: time.time() * SECOND > end + 500, timeout=5)
    shop.decided(shop.settings.names.work("default"))
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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_killed_in_mid_run_and_requeues_are_counted_once(shop: Fleet, eventually: Eventually) -> None:
    """Jobs with a single attempt and jobs with several, workers that are killed while they run them; then half of the
    dead are run again, which ends long after the window does."""
    shop.dispatcher()
    workers = [shop.worker("--concurrency", "8") for _ in range(2)]
    (shop.home / "failing").touch()
    begin = int(time.time()) * SECOND
    ids = {
        shop.client.schedule(name, {"n": n}, in_=f"{200 + 20 * n}ms").id
        for n in range(150)
        for name in ("once", "often")
    }
    for number in range(3):
        ran = len(shop.acks(b"t/"))
        eventually(lambda ran=ran: len(shop.acks(b"t/")) >= ran + 40, timeout=60)  # type: ignore[misc]
        workers[number % 2].kill()
        workers[number % 2].wait()
        workers[number % 2] = shop.worker("--concurrency", "8")
    eventually(lambda: len(_ended(shop)) == len(ids), timeout=60)
    end = int(time.time() + 1) * SECOND
    eventually(lambda: time.time() * SECOND > end + 100, timeout=5)
    dead = sorted(id_ for id_, state in _ended(shop).items() if state == "dead")
    assert len(dead) >= 60
    shop.decided(shop.settings.names.dead)
    assert dead == sorted(run.job_id for run in _letters(shop))
    (shop.home / "failing").unlink()
    requeued = dead[::2]
    for id_ in requeued:
        assert shop.client.requeue(id_, wait="30s").outcome == "requeued"
    eventually(lambda: len(_ended(shop)) == len(ids), timeout=60)

    for first, last in ((begin, end), (begin + 2 * SECOND, begin + 3 * SECOND), (end, None)):
        window = ["--from", format_instant(first)] + (["--to", format_instant(last)] if last else [])
        _, report = ask(shop, "outage", *window, "--by", "1s")
        expected = Independent(shop, set()).within(first, last or end + 3_600_000)
        assert told(report) == expected
        code, report = ask(shop, "verify", *window, "--no-index")
        assert (code, report["occurrences"]) == (0, sum(counts["due"] for counts in expected.values()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_fired_before_a_restore_is_no_finding(
    shop: Fleet, broker: str, prefix: str, tmp_path: Path, eventually: Eventually
) -> None:
    """Runs that had not ended go on as a further run; their first one stands on the topics of before."""
    begin = format_instant(int(time.time()) * SECOND)
    dispatcher = shop.dispatcher()
    ids = jobs(shop, 10) | {shop.client.schedule("count", key=f"key-{n}", in_="200ms").id for n in range(5)}
    eventually(lambda: ids <= {run.job_id for run, _ in shop.work()}, timeout=60)
    dispatcher.terminate()
    assert dispatcher.wait(60) == 0
    pending = jobs(shop, 4, in_="8s")
    assert subprocess.run(
        [sys.executable, "-m", "pipeline", "backup", str(tmp_path / "saved")],
        env=shop._environment, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    (tmp_path / "new").mkdir()
    with fleet(broker, f"{prefix}-new", tmp_path / "new", APP) as anew:
        for words in (("restore", str(tmp_path / "saved")), ("release", "--yes")):
            code, _ = ask(anew, *words)
            assert code == 0
        anew.dispatcher()
        anew.worker()
        eventually(lambda: ids | pending <= {ack.job_id for ack in anew.acks(b"t/")}, timeout=60)
        code, report = ask(anew, "verify", "--from", begin)
        assert (code, report["restored"], report["fired"]) == (0, len(ids), len(ids | pending))
        assert report["restored_at"] is not None
        _, report = ask(anew, "outage", "--from", begin)
        assert (report["total"]["due"], report["total"]["succeeded"]) == (19, 19)


def _ended(shop: Fleet) -> dict[str, str]:
    """How the highest run of each occurrence ended, of those whose highest run has."""
    ended = {(ack.occurrence_id, ack.run): str(ack.state) for ack in shop.acks(b"t/")}
    highest: Counter[str] = Counter()
    for run, _ in shop.work():
        highest[run.occurrence_id] = max(highest[run.occurrence_id], run.run)
    states = {id_: ended.get((id_, run), "") for id_, run in highest.items()}
    return {id_: state for id_, state in states.items() if state not in ("", "retrying")}


def _letters(shop: Fleet) -> list[Run]:
    records = shop.records(shop.settings.names.dead)
    letters = [codec.DEAD_LETTER.decode(value) for record in records if (value := record.value()) is not None]
    return [letter.run for letter in letters if letter.run is not None]


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
    assert dispatcher.wait(60) == 0
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
