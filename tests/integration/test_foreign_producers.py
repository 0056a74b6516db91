"""Records from foreign producers on `jobs`, each with its outcome, while jobs fire on every partition (H27).

All rows of `foreign_records.CASES` are put on a real broker under one running dispatcher, between good jobs on every
partition, and each row is a test.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Message, Producer
from integration import raw_producer
from integration.fleet import Eventually, Fleet
from integration.foreign_records import (
    ANNOUNCED,
    CASES,
    MIB,
    SPREAD,
    Answer,
    Dead,
    Dropped,
    Fires,
    Ignored,
    Kept,
    Outcome,
    Place,
    Refused,
    Sent,
)
from prometheus_client.parser import text_string_to_metric_families

from pipeline import codec
from pipeline.adapters.kafka_admin import ensure_topics, load_layout, topic_admin
from pipeline.core import keys
from pipeline.core.job import DeadLetter, Event

LATE_MS = 60_000
"""How late a good job may be at most, on a machine that does other things too (3 s alone): a partition that a bad
record stopped fires nothing at all."""


# -- all of them at once, between good jobs ---------------------------------------------------------------------


@dataclass(kw_only=True)
class Put:
    """A row as it was put, and where its records came to stand (offset -1: the broker refused it)."""

    at: Place
    sent: Sequence[Sent]
    places: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last(self) -> tuple[int, int]:
        return self.places[-1]


@dataclass(kw_only=True)
class Seen:
    """What the topics say."""

    work: Mapping[bytes, list[tuple[int, int]]]
    """(run, LogAppendTime) by occurrence."""
    letters: Mapping[tuple[int, int], list[DeadLetter]]
    events: Mapping[bytes, list[Event]]
    ends: Mapping[tuple[int, bytes], str]
    """How the last record of each key ended, if it is a tombstone."""


class Crowd:
    """Good jobs and foreign records, from producers that know nothing of us."""

    def __init__(self, shop: Fleet) -> None:
        self.shop, self.layout = shop, load_layout(shop.settings)
        own = {"bootstrap.servers": shop.settings.require_bootstrap(), "message.max.bytes": 64 * MIB}
        self._plain, self._small = Producer(own), Producer({**own, "compression.type": "zstd"})
        self.good: dict[str, int] = {}

    def put(self, sent: Sent, partition: int) -> tuple[int, int]:
        """Put one record and wait for its report: (partition, offset)."""
        if sent.raw_header:
            return self._put_raw(sent, partition)
        producer, reports = self._small if sent.compressed else self._plain, []
        told = partition if sent.partition is None else sent.partition

        def report(error: KafkaError | None, message: Message) -> None:
            reports.append((told, -1 if error is not None else message.offset()))

        jobs, headers = self.shop.settings.names.jobs, [*sent.headers.items()]
        try:
            producer.produce(jobs, sent.value, sent.key, told, report, headers=headers)
            producer.flush(20)
        except confluent_kafka.KafkaException:
            return told, -1
        return reports[0]

    def _put_raw(self, sent: Sent, partition: int) -> tuple[int, int]:
        bootstrap, jobs = self.shop.settings.require_bootstrap(), self.shop.settings.names.jobs
        raw_producer.produce(bootstrap, jobs, partition, sent.key or b"", sent.value or b"", sent.raw_header)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:  # an owner's open transaction may hide it for a moment
            for record in self.shop.reader.read(jobs, partition):
                if record.key() == sent.key:
                    return partition, record.offset() or 0
        raise AssertionError("it never came")

    def good_jobs(self, due_in: int) -> None:
        """One on every partition."""
        now = time.time_ns() // 1_000_000
        for partition in range(self.layout.partitions):
            at = Place(partition, self.layout, now + due_in)
            run = at.run(created_at=now)
            self._plain.produce(
                self.shop.settings.names.jobs, codec.RUN.encode(run), keys.job_key(at.id), partition
            )
            self.good[at.id] = run.due_at
        self._plain.flush(20)

    def put_all(self) -> dict[str, Put]:
        made = {}
        for number, (name, (make, _)) in enumerate(CASES.items()):
            at = Place(number % self.layout.partitions, self.layout, time.time_ns() // 1_000_000)
            made[name] = Put(at=at, sent=make(at))
            made[name].places += [self.put(sent, at.partition) for sent in made[name].sent]
            if number % 5 == 0:
                self.good_jobs(due_in=500)
        self.good_jobs(due_in=1_500)
        return made

    def counted(self, metric: str, label: str) -> Counter[str]:
        """The counts of a metric of the dispatcher, by a label."""
        served = next(line for line in self.shop.log().splitlines() if '"serving"' in line)
        with urllib.request.urlopen(json.loads(served)["metrics"], timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        counts: Counter[str] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == metric:
                counts[sample.labels[label]] += int(sample.value)
        return counts

    def seen(self) -> Seen:
        names = self.shop.settings.names
        work: dict[bytes, list[tuple[int, int]]] = {}
        for record in self.shop.records(names.work("default")):
            run = codec.peek_run(record.value() or b"").run
            work.setdefault(record.key() or b"", []).append((run, record.timestamp()[1]))
        letters: dict[tuple[int, int], list[DeadLetter]] = {}
        for record in self.shop.records(names.dead):
            if record.value() is None:  # a requeue: it closes the letters of earlier runs
                continue
            letter = codec.DEAD_LETTER.decode(record.value() or b"")
            letters.setdefault((letter.source_partition, letter.source_offset), []).append(letter)
        events: dict[bytes, list[Event]] = {}
        for record in self.shop.records(names.events):
            events.setdefault(record.key() or b"", []).append(codec.EVENT.decode(record.value() or b""))
        ends = {}
        for record in self.shop.records(names.jobs):
            told = dict(record.headers() or ()) if record.value() is None else {}
            ends[record.partition() or 0, record.key() or b""] = (told.get("end") or b"").decode()
        return Seen(work=work, letters=letters, events=events, ends=ends)


@pytest.fixture(scope="module")
def crowd(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    home = tmp_path_factory.mktemp("foreign")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "integration.fleet.ensure_topics", lambda settings: ensure_topics(settings, wish=SPREAD)
        )
        shop = Fleet(broker, f"t{os.urandom(6).hex()}", home, "")
    with closing(shop):
        shop.dispatcher()
        made = Crowd(shop)
        deadline = time.monotonic() + 40
        while shop.log().count('"running"') == 0:
            assert time.monotonic() < deadline, shop.log()
            time.sleep(0.05)
        yield made


@pytest.fixture(scope="module")
def rows(crowd: Crowd) -> Mapping[str, Put]:
    return crowd.put_all()


@pytest.fixture(scope="module")
def seen(crowd: Crowd, rows: Mapping[str, Put]) -> Seen:
    """The topics once every good job has fired; those on a stopped partition never would."""
    deadline, last = time.monotonic() + LATE_MS / 1000, crowd.seen()
    while any(id_.encode() not in last.work for id_ in crowd.good) and time.monotonic() < deadline:
        time.sleep(0.5)
        last = crowd.seen()
    return last


# -- what the topics say ----------------------------------------------------------------------------------------


def met(put: Put, outcome: Outcome, seen: Seen) -> list[str]:
    """What is not as the outcome says."""
    fired = [run for run, _ in seen.work.get(put.at.id.encode(), [])]
    letters = [letter.reason for place in put.places for letter in seen.letters.get(place, [])]
    told = seen.events.get(put.at.uuid.encode(), [])
    answers = [(event.outcome, event.reason or "") for event in told if event.kind == "answer"]
    dropped = [
        event.reason
        for key in {sent.key or b"" for sent in put.sent}
        for event in seen.events.get(key, [])
        if event.kind == "dropped"
    ]
    end = seen.ends.get((put.last[0], put.sent[-1].key or b""), "")
    match outcome:
        case Dead(reason):
            refused = [
                answer for answer in answers if answer[0] == "refused" and answer[1].startswith(reason)
            ]
            wanted: tuple[Any, ...] = (
                [],
                [reason],
                refused[:1] if outcome.answered else [],
                [],
                "dead" if outcome.tombstone else "",
            )
        case Answer(said):
            wanted = (fired[:1] if said == "requeued" else [], [], answers, [], end or "executed")
        case Dropped(reason):
            wanted = ([], [], [], [reason], end or "dropped")
        case Fires(run):
            wanted = ([run], [], [], dropped, end or "fired")
        case Ignored() | Kept() | Refused():
            wanted = ([], [], [], [], end)
    found = (fired, letters, answers, dropped, end)
    problems = [f"{found} is not {wanted}"] if found != wanted else []
    if isinstance(outcome, Answer):
        good = len(answers) == 1 and answers[0][0] == outcome.outcome and outcome.reason in answers[0][1]
        problems += [] if good else [f"{answers} is not {outcome}"]
    if isinstance(outcome, Refused) != (put.last[1] < 0):
        problems.append(f"the broker put it at {put.last}")
    return problems


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_h27_a_foreign_record_has_its_outcome(name: str, rows: Mapping[str, Put], seen: Seen) -> None:
    assert met(rows[name], CASES[name][1], seen) == []


@pytest.mark.timeout(300)
def test_h27_no_foreign_record_stops_a_partition(crowd: Crowd, seen: Seen) -> None:
    fired = {id_: seen.work.get(id_.encode(), []) for id_ in crowd.good}
    assert Counter(len(runs) for runs in fired.values()) == {1: len(crowd.good)}
    delays = [at - crowd.good[id_] for id_, ((_, at),) in fired.items()]
    assert min(delays) >= 0
    assert max(delays) <= LATE_MS
    log = crowd.shop.log()
    assert '"rebuild"' not in log
    assert '"partition_stopped"' not in log
    assert "Traceback" not in log


@pytest.mark.timeout(300)
def test_h27_every_dead_letter_and_every_refusal_is_counted(crowd: Crowd, seen: Seen) -> None:
    letters = Counter(letter.reason for found in seen.letters.values() for letter in found)
    answers = Counter(e.outcome for found in seen.events.values() for e in found if e.kind == "answer")
    assert crowd.counted("dueline_dead_letters_total", "reason") == letters
    assert crowd.counted("dueline_commands_total", "outcome") == answers


@pytest.mark.timeout(120)
def test_h27_a_schema_announced_and_unknown_here_stops_its_partition_and_no_other(
    crowd: Crowd, seen: Seen, eventually: Eventually
) -> None:
    """The last of all: its partition stays closed until a process comes that knows the schema."""
    fingerprint = f"{int.from_bytes(ANNOUNCED[2:], 'little'):016x}"
    known = tuple(sorted({*crowd.layout.fingerprints, fingerprint}))
    topic_admin(crowd.shop.settings).meta.update(lambda layout: replace(layout, fingerprints=known))
    at = Place(7, crowd.layout, time.time_ns() // 1_000_000)
    crowd.put(Sent(key=keys.job_key(at.id), value=ANNOUNCED + b"rest"), at.partition)
    eventually(lambda: '"partition_stopped"' in crowd.shop.log(), timeout=60)
    before = {*crowd.good}
    crowd.good_jobs(due_in=500)
    new = {id_ for id_ in crowd.good if id_ not in before}
    others = {id_ for id_ in new if crowd.layout.home(id_) != at.partition}
    eventually(lambda: others <= fired_of(crowd), timeout=60)
    assert new & fired_of(crowd) == others
    assert not [
        r for r in crowd.shop.records(crowd.shop.settings.names.dead) if ANNOUNCED in (r.value() or b"")
    ]


def fired_of(crowd: Crowd) -> set[str]:
    return {(r.key() or b"").decode() for r in crowd.shop.records(crowd.shop.settings.names.work("default"))}
