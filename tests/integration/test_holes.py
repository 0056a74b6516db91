"""Ways to lose or double a job, each tried on a real broker: see docs/holes.md for all of them and their tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.fleet import Eventually, Fleet, fleet

from pipeline import codec
from pipeline.adapters.kafka_admin import check, ensure_topics, load_layout, topic_admin
from pipeline.adapters.kafka_txn import TransactionalProducer
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core import keys
from pipeline.core.ids import anonymous_id, due_of
from pipeline.core.job import Run
from pipeline.core.topics import Repair, Wish
from pipeline.ports import Action, Delta, Entry, Position
from pipeline.service import run as service
from pipeline.service.build import Build
from pipeline.service.loop import Stop
from pipeline.service.run import Plant

pytestmark = pytest.mark.slow

PARTITIONS = 4
SMALL = Wish(shards=2, ring=2, queues={"default": 2})


@pytest.fixture
def shop(broker: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """An installation of four partitions; no process of it runs yet."""
    monkeypatch.setattr(
        "integration.fleet.ensure_topics", lambda settings: ensure_topics(settings, wish=SMALL)
    )
    with fleet(broker, prefix, tmp_path, "") as made:
        yield made


def events(shop: Fleet, action: str) -> list[dict[str, Any]]:
    lines = [line for line in shop.log().splitlines() if line.startswith("{") and line.endswith("}")]
    return [event for event in map(json.loads, lines) if event["action"] == action]


def started(shop: Fleet, eventually: Eventually) -> subprocess.Popen[bytes]:
    """A dispatcher that runs every partition."""
    before = running(shop)
    process = shop.dispatcher()
    eventually(lambda: running(shop) >= before + PARTITIONS, timeout=60)
    return process


def running(shop: Fleet) -> int:
    return sum(len(event["partitions"]) for event in events(shop, "running"))


def stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(60) == 0


def fired(shop: Fleet) -> Counter[str]:
    return Counter(run.job_id for run, _ in shop.work())


def fires(shop: Fleet, eventually: Eventually, count: int = 8, timeout: float = 30) -> None:
    """New jobs fire, each once."""
    before = fired(shop)
    refs = [shop.client.schedule("any", {"n": n}, in_="50ms") for n in range(count)]
    wanted = Counter(ref.id for ref in refs)
    eventually(lambda: not wanted - fired(shop), timeout=timeout)
    assert fired(shop) - before == wanted


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


# -- the index: of another life, too old, lost -----------------------------------------------------------------


@contextmanager
def opened(shop: Fleet) -> Iterator[RocksIndex]:
    """The index of the dispatcher that has stopped."""
    (path,) = shop.settings.state_dir.rglob("index")
    index = RocksIndex(path)
    try:
        yield index
    finally:
        index.close()


def haunt(shop: Fleet, change: Callable[[Position], Position]) -> str:
    """A job that stands in the index and not in the log, as if its tombstone were gone there, or had never come; and
    a change of what the index says of itself. The id of the job."""
    layout, now = load_layout(shop.settings), time.time_ns() // 1_000_000
    ghost = anonymous_id(now, 7)
    home = layout.home(ghost)
    run = Run(
        job_id=ghost,
        occurrence_id=ghost,
        due_at=now,
        run=1,
        queue="default",
        handler="any",
        created_at=now,
        nominal_at=now,
        idempotency_key=ghost,
        payload=b"{}",
    )
    with opened(shop) as index:
        position, delta = index.position(home), Delta()
        assert position is not None
        place = f"default/{layout.work_partition('default', ghost)}"
        delta.put(Entry(keys.job_key(ghost), now, 0, Action.FIRE, codec.RUN.encode(run), place), None)
        delta.position = change(position)
        index.apply(home, delta)
    return ghost


CHANGES: dict[str, tuple[Callable[[Position], Position], bool]] = {
    "h12_synced_too_long_ago": (lambda at: at._replace(synced_at=at.synced_at - 4 * 86_400_000), False),
    "h13_of_another_topic": (lambda at: at._replace(topic_id="another"), False),
    "h13_of_another_cluster": (lambda at: at._replace(cluster_id="another"), False),
    "h24_of_another_layout": (lambda at: at._replace(layout="another"), False),
    "its_own": (lambda at: at, True),
}


@pytest.mark.timeout(150)
@pytest.mark.parametrize("what", CHANGES)
def test_h12_h13_h24_what_an_index_holds_that_is_not_of_this_log_never_fires(
    shop: Fleet, eventually: Eventually, what: str
) -> None:
    """The last case shows that the ghost would fire."""
    stopped(started(shop, eventually))
    pending = shop.client.schedule("any", {}, at=in_seconds(8)).id
    change, trusted = CHANGES[what]
    ghost = haunt(shop, change)
    started(shop, eventually)
    expected = Counter([pending, ghost] if trusted else [pending])
    eventually(lambda: not expected - fired(shop), timeout=60)
    assert fired(shop) == expected


@pytest.mark.timeout(150)
def test_h14_an_index_that_was_lost_is_read_from_the_beginning_not_from_the_offset_of_the_group(
    shop: Fleet, eventually: Eventually
) -> None:
    once = started(shop, eventually)
    refs = [shop.client.schedule("any", {}, at=in_seconds(20)).id for _ in range(40)]
    fires(shop, eventually)
    # On every partition: those above are due in another bucket than the others at times, and stand elsewhere then.
    jobs = ({"handler": "any", "in_": "50ms", "key": f"k{n}"} for n in range(24))
    keyed = [ref.id for ref in shop.client.schedule_many(jobs)]
    assert {load_layout(shop.settings).home(id_) for id_ in keyed} == {*range(PARTITIONS)}
    eventually(lambda: len(fired(shop)) == 8 + len(keyed), timeout=60)
    stopped(once)
    group = Consumer(
        {
            "bootstrap.servers": shop.settings.bootstrap_servers,
            "group.id": shop.settings.names.dispatcher_group,
        }
    )
    jobs = shop.settings.names.jobs
    places = group.committed([TopicPartition(jobs, n) for n in range(PARTITIONS)], 10)
    group.close()
    assert len(below(shop, {place.partition: place.offset for place in places})) > 20
    (index,) = shop.settings.state_dir.rglob("index")
    shutil.rmtree(index)
    before = fired(shop)
    assert not before & Counter(refs)
    started(shop, eventually)
    eventually(lambda: fired(shop) & Counter(refs) == Counter(refs), timeout=60)
    assert fired(shop) == before + Counter(refs)


def below(shop: Fleet, offsets: Mapping[int, int]) -> list[bytes]:
    """The records of jobs that somebody who reads from there on would never see."""
    records = shop.records(shop.settings.names.jobs)
    return [
        key
        for r in records
        if (key := r.key() or b"").startswith(b"j/") and (r.offset() or 0) < offsets[r.partition() or 0]
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("meanwhile", ["stopped", "running"])
def test_h13_a_topic_made_anew_is_read_from_its_beginning(
    shop: Fleet, eventually: Eventually, meanwhile: str
) -> None:
    lost = [shop.client.schedule("any", {}, in_="1h").id for _ in range(20)]
    owner = started(shop, eventually)
    fires(shop, eventually)
    if meanwhile == "stopped":
        stopped(owner)
    names = shop.settings.names
    admin = AdminClient({"bootstrap.servers": shop.settings.require_bootstrap()})
    admin.delete_topics([names.jobs])[names.jobs].result(10)
    gone = topic_admin(shop.settings)
    eventually(lambda: gone.live([names.jobs]) == {}, timeout=60)
    ensure_topics(shop.settings, wish=SMALL)
    # Longer than the old log was, so that the positions of its index stand within the new one.
    refs = Counter(shop.client.schedule("any", {}, in_="50ms").id for _ in range(120))
    if meanwhile == "stopped":
        shop.dispatcher()
    eventually(lambda: not refs - fired(shop), timeout=60)
    assert max(fired(shop).values()) == 1
    assert not Counter(lost) & fired(shop)


@pytest.mark.timeout(120)
def test_h24_a_partition_count_that_is_not_the_layouts_is_refused_by_every_process(shop: Fleet) -> None:
    names, admin = shop.settings.names, topic_admin(shop.settings)
    admin.grow(names.jobs, PARTITIONS + 2)
    for arguments in (["dispatcher"], ["topics", "check"]):
        assert shop.start(*arguments).wait(60) == 4
        assert f"layout mismatch: {names.jobs}: partitions is 6, planned 4" in shop.log().splitlines()[-1]


# -- transactions -----------------------------------------------------------------------------------------------


def transactional(shop: Fleet, id_: str) -> Producer:
    producer = Producer({"bootstrap.servers": shop.settings.require_bootstrap(), "transactional.id": id_})
    producer.init_transactions(20)
    return producer


def aborted(shop: Fleet, topic: str, partitions: int, value: bytes) -> None:
    """A transaction of somebody's over the whole topic that ends aborted: its record and marker are the last."""
    producer = transactional(shop, f"{shop.settings.prefix}.somebody")
    producer.begin_transaction()
    for partition in range(partitions):
        producer.produce(topic, value, keys.job_key("j" + "0" * 26), partition)
    producer.flush(10)
    producer.abort_transaction(10)


@pytest.mark.timeout(120)
def test_h15_partitions_that_end_in_an_aborted_batch_are_taken_over(
    shop: Fleet, eventually: Eventually
) -> None:
    for _ in range(2):  # into an empty log, and behind what an owner has written and indexed
        aborted(shop, shop.settings.names.jobs, PARTITIONS, b"never")
        owner = started(shop, eventually)
        fires(shop, eventually)
        stopped(owner)
    assert shop.records(shop.settings.names.dead) == []


@pytest.mark.timeout(120)
def test_h22_refused_work_is_seen_by_nobody_who_reads_committed(shop: Fleet, eventually: Eventually) -> None:
    work = shop.settings.names.work("default")
    aborted(shop, work, 2, b"refused")
    started(shop, eventually)
    fires(shop, eventually)
    assert seen_by(shop, "read_committed") == sum(fired(shop).values()) == 8
    assert seen_by(shop, "read_uncommitted") == 8 + 2


def seen_by(shop: Fleet, isolation: str) -> int:
    reader = Consumer(
        {
            "bootstrap.servers": shop.settings.require_bootstrap(),
            "group.id": "somebody",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(shop.settings.names.work("default"), n, 0) for n in range(2)])
    count = ends = 0
    while ends < 2:
        message = reader.poll(10)
        assert message is not None
        ends += message.error() is not None
        count += message.error() is None
    reader.close()
    return count


class Torn(TransactionalProducer):
    """Its commits are made, but the answer to some is lost."""

    lost = 0
    every = 3

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._count = 0

    def _create(self, *seconds: float) -> Any:
        return Tearing(super()._create(*seconds))


class Tearing:
    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, timeout: float) -> None:
        self._producer.commit_transaction(timeout)
        Torn.lost += 1
        if Torn.lost % Torn.every == 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer was lost"))


@pytest.mark.timeout(150)
def test_h16_a_commit_whose_answer_was_lost_is_not_repeated(
    shop: Fleet, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "calm_collector", lambda: None)
    monkeypatch.setattr(Torn, "lost", 0)
    told: list[tuple[str, dict[str, Any]]] = []
    with in_process(shop, Build(producer=Torn), lambda *event: told.append(event)):
        refs = [shop.client.schedule("any", {}, at=in_seconds(1 + n / 40)).id for n in range(120)]
        eventually(lambda: not Counter(refs) - fired(shop), timeout=60)
        # A slow machine makes few commits of many jobs: then there are more.
        while sum(action == "outcome_unknown" for action, _ in told) < 3:
            refs.append(shop.client.schedule("any", {}, in_=0).id)
            eventually(lambda: not Counter(refs) - fired(shop))
        eventually(lambda: not doubtful(told), timeout=60)
    assert fired(shop) == Counter(refs)


def doubtful(told: list[tuple[str, dict[str, Any]]]) -> set[int]:
    """Partitions whose last transaction has an unknown outcome and that were not taken over since."""
    doubt: set[int] = set()
    for action, fields in told:
        if action == "outcome_unknown":
            doubt |= {*fields["partitions"]}
        elif action == "running":
            doubt -= {*fields["partitions"]}
    return doubt


@contextmanager
def in_process(shop: Fleet, build: Build, tell: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
    """A dispatcher in this process, of other parts than a release is built of."""

    class Telling:
        def __init__(self, events: Any) -> None:
            self._events = events

        def __getattr__(self, name: str) -> Any:
            return getattr(self._events, name)

        def on(self, action: str, **fields: Any) -> None:
            tell(action, fields)
            self._events.on(action, **fields)

    stop, mask = Stop(), os.umask(0o077)
    try:
        with service.plant(replace(shop.settings, metrics_port=0), "dispatcher", None, stop) as made:
            plant: Plant = replace(made, build=build, events=Telling(made.events))
            thread = threading.Thread(target=service._dispatch, args=(plant, stop), daemon=True)
            thread.start()
            yield
            stop.requested = True
            thread.join(20)
            assert not thread.is_alive()
    finally:
        stop.requested = True
        os.umask(mask)


@pytest.mark.timeout(150)
def test_h17_a_dispatcher_whose_producers_were_fenced_is_built_anew_in_its_process(
    shop: Fleet, eventually: Eventually
) -> None:
    """What the client makes of a transaction that outlived its time-out while the process was frozen."""
    owner = started(shop, eventually)
    fires(shop, eventually)
    ids = {id_ for seen in events_of_fleet(shop) for id_ in seen.heartbeat.transactional_ids}
    assert ids
    for id_ in ids:
        transactional(shop, id_)
    fires(shop, eventually)
    assert len(events(shop, "rebuild")) == 1
    assert len({event["process"] for event in events(shop, "started")}) == 1
    assert owner.poll() is None


def events_of_fleet(shop: Fleet) -> list[Any]:
    from pipeline.heartbeat import fold_fleet

    return fold_fleet(shop.records(shop.settings.names.fleet))


@pytest.mark.timeout(150)
def test_h18_the_open_transaction_of_a_frozen_owner_is_ended_by_the_next_one(
    shop: Fleet, eventually: Eventually
) -> None:
    """Long before its time-out, here of a minute."""
    victim = shop.start("dispatcher", DUELINE_KILL_POINT="flushed:stop", **shop.patient())
    eventually(lambda: running(shop) == PARTITIONS, timeout=60)
    refs = Counter(shop.client.schedule("any", {}, in_="300ms").id for _ in range(40))
    eventually(lambda: frozen(victim), timeout=60)
    began = time.monotonic()
    shop.dispatcher()
    eventually(lambda: len(owned_anew(shop)) == PARTITIONS, timeout=60)
    eventually(lambda: not refs - fired(shop), timeout=60)
    assert time.monotonic() - began < 40
    assert events(shop, "fencing")
    assert fired(shop) == refs


def frozen(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def owned_anew(shop: Fleet) -> set[int]:
    """Partitions that were assigned more than once."""
    assigned = Counter(p for event in events(shop, "assigned") for p in event["partitions"])
    return {partition for partition, times in assigned.items() if times > 1}


# -- what others do meanwhile -------------------------------------------------------------------------------------


@pytest.mark.timeout(150)
def test_h7_an_update_that_was_answered_is_what_fires(shop: Fleet, eventually: Eventually) -> None:
    """Updates of jobs as they come due: each is either in what fires, or was answered too late."""
    started(shop, eventually)
    refs = [shop.client.schedule("any", {"v": 1}, at=in_seconds(6 + n / 50)).id for n in range(100)]
    # Most are close, two of sixteen are not, on a busy machine either.
    before_due_s = [*(0.03 * n for n in range(14)), 4.0, -1.0]

    def update(number: int) -> str:
        while time.time() < due_of(refs[number]) / 1000 - before_due_s[number % 16]:
            time.sleep(0.001)
        return shop.client.update(refs[number], {"v": 2}, wait="30s").outcome

    with ThreadPoolExecutor(100) as pool:
        outcomes = dict(zip(refs, pool.map(update, range(len(refs))), strict=True))
    eventually(lambda: not Counter(refs) - fired(shop), timeout=60)
    assert fired(shop) == Counter(refs)
    told = {run.job_id: json.loads(run.payload)["v"] for run, _ in shop.work()}
    assert told == {id_: 2 if outcome == "updated" else 1 for id_, outcome in outcomes.items()}
    assert {*outcomes.values()} == {"updated", "too_late"}


@pytest.mark.timeout(150)
def test_h9_every_record_put_twice_fires_once(shop: Fleet, eventually: Eventually) -> None:
    """A client that repeats itself after a time-out; before and after the jobs are due."""
    started(shop, eventually)
    jobs, raw = shop.settings.names.jobs, Producer({"bootstrap.servers": shop.settings.require_bootstrap()})
    refs = Counter(shop.client.schedule("any", {}, in_=f"{200 + 20 * n}ms").id for n in range(60))
    puts = [
        record for record in shop.records(jobs) if (record.key() or b"").startswith(b"j/") and record.value()
    ]
    for _ in range(2):
        for record in puts:
            raw.produce(jobs, record.value(), record.key(), record.partition() or 0)
        raw.flush(10)
        eventually(lambda: not refs - fired(shop), timeout=60)
    eventually(lambda: len(dropped(shop)) >= 60, timeout=60)
    assert fired(shop) == refs


def dropped(shop: Fleet) -> list[str]:
    values = [codec.EVENT.decode(r.value() or b"") for r in shop.records(shop.settings.names.events)]
    return [event.id for event in values if event.kind == "dropped"]


@pytest.mark.timeout(120)
def test_h30_times_that_a_producer_gives_its_records_mean_nothing(
    shop: Fleet, eventually: Eventually
) -> None:
    started(shop, eventually)
    names, raw = shop.settings.names, Producer({"bootstrap.servers": shop.settings.require_bootstrap()})
    layout, now = load_layout(shop.settings), time.time_ns() // 1_000_000
    ids = [anonymous_id(now, number) for number in range(8)]
    for number, id_ in enumerate(ids):
        run = Run(
            job_id=id_,
            occurrence_id=id_,
            due_at=now,
            run=1,
            queue="default",
            handler="any",
            created_at=now,
            nominal_at=now,
            idempotency_key=id_,
            payload=b"{}",
        )
        stamp = now + (number - 4) * 365 * 86_400_000
        raw.produce(
            names.jobs, codec.RUN.encode(run), keys.job_key(id_), layout.home(id_), timestamp=max(stamp, 1)
        )
    raw.flush(10)
    eventually(lambda: not Counter(ids) - fired(shop), timeout=60)
    for topic in (names.jobs, names.work("default"), names.events, names.dead, names.fleet, names.meta):
        assert (
            topic_admin(shop.settings).live([topic])[topic].settings["message.timestamp.type"]
            == "LogAppendTime"
        )
    stamps = [at for topic in (names.jobs, names.work("default")) for at in stamps_of(shop, topic)]
    assert now - 60_000 < min(stamps) <= max(stamps) < now + 60_000


def stamps_of(shop: Fleet, topic: str) -> list[int]:
    return [record.timestamp()[1] for record in shop.records(topic)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("unclean.leader.election.enable", "true"),
        ("message.timestamp.type", "CreateTime"),
        ("delete.retention.ms", "60000"),
        ("min.insync.replicas", "2"),
    ],
)
def test_h32_a_setting_that_could_lose_jobs_is_found(
    shop: Fleet, eventually: Eventually, setting: str, wrong: str
) -> None:
    admin, jobs = topic_admin(shop.settings), shop.settings.names.jobs
    admin.alter(jobs, {setting: wrong})
    eventually(lambda: check(shop.settings)[1] != [])
    (finding,) = check(shop.settings)[1]
    assert (finding.topic, finding.setting, finding.live) == (jobs, setting, wrong)
    assert finding.repair is Repair.UPGRADE
    assert shop.start("topics", "check").wait(60) != 0
