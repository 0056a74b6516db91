"""The `Appender` and `Reader` ports over memory and the real broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline.adapters import kafka_io
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_io import KafkaReader, check_reachable
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.ports import Put

NOWHERE = "127.0.0.1:1"


def values(records: Any) -> list[bytes | None]:
    return [r.value() for r in records]


# -- appending ----------------------------------------------------------------------------------------------


def test_reports_come_with_offset_and_log_append_time(world: Any) -> None:
    reports: list[Any] = []
    appender = world.appender()
    for n in range(3):
        appender.append(world.put(0, f"k{n}"), lambda *report: reports.append(report))
    appender.flush(10_000)
    assert [(error, offset) for error, offset, _ in reports] == [(None, 0), (None, 1), (None, 2)]
    assert all(at > 1_600_000_000_000 for _, _, at in reports)


def test_of_many_is_told_once_and_when_all_are_stored(world: Any) -> None:
    told: list[Any] = []
    appender = world.appender()
    appender.append_all([world.put(0, f"k{n}", b"%d" % n) for n in range(3)], told.append)
    appender.flush(10_000)
    assert told == [None]
    assert values(world.reader().read(world.topic, 0)) == [b"0", b"1", b"2"]


def test_of_many_one_that_cannot_be_stored_is_told_and_the_others_are_stored(world: Any) -> None:
    told: list[Any] = []
    appender = world.appender()
    large = world.put(0, "k", b"\0" * (5 * 1024 * 1024))
    appender.append_all([world.put(0, "k"), large, world.put(0, "k")], told.append)
    appender.flush(10_000)
    assert [type(error) for error in told] == [InvalidInput]
    assert values(world.reader().read(world.topic, 0)) == [b"v", b"v"]


def test_poll_delivers_reports_too(world: Any) -> None:
    reports: list[Any] = []
    appender = world.appender()
    appender.append(world.put(0, "k"), lambda *report: reports.append(report))
    deadline = time.monotonic() + 30
    while not reports and time.monotonic() < deadline:
        appender.poll(100)
    assert len(reports) == 1


def test_a_record_over_the_limit_is_reported_as_invalid(world: Any) -> None:
    reports: list[Any] = []
    appender = world.appender()
    appender.append(world.put(0, "k", b"\0" * (5 * 1024 * 1024)), lambda *report: reports.append(report))
    appender.append(world.put(0, "k"))
    appender.flush(10_000)
    assert isinstance(reports[0][0], InvalidInput)
    assert values(world.reader().read(world.topic, 0)) == [b"v"]


def test_a_partition_that_does_not_exist_is_reported_as_not_found(world: Any) -> None:
    reports: list[Any] = []
    appender = world.appender()
    appender.append(world.put(0, "k"))
    appender.flush(10_000)
    appender.append(world.put(44, "k"), lambda *report: reports.append(report))
    appender.flush(10_000)
    assert isinstance(reports[0][0], NotFound)


# -- reading ------------------------------------------------------------------------------------------------


def test_read_gives_everything_in_order_to_the_end_as_of_the_call(world: Any) -> None:
    world.append(world.put(0, "a", b"1"), world.put(0, "b", None), world.put(0, "c", b"3"))
    reader = world.reader()
    reading = reader.read(world.topic, 0)
    world.append(world.put(0, "d", b"4"))
    assert values(reading) == [b"1", None, b"3"]
    assert values(reader.read(world.topic, 0)) == [b"1", None, b"3", b"4"]


def test_read_from_an_offset_and_beyond_the_end(world: Any) -> None:
    world.append(*(world.put(0, "k", b"%d" % n) for n in range(5)))
    reader = world.reader()
    assert values(reader.read(world.topic, 0, start=3)) == [b"3", b"4"]
    assert values(reader.read(world.topic, 0, start=1)) == [b"1", b"2", b"3", b"4"]
    assert values(reader.read(world.topic, 0, start=5)) == []
    assert values(reader.read(world.topic, 0, start=99)) == []
    assert values(reader.read(world.topic, 1)) == []


def test_read_since_an_instant(world: Any) -> None:
    world.append(world.put(0, "k", b"old"))
    (first,) = world.reader().read(world.topic, 0)
    at = first.timestamp()[1]
    assert values(world.reader().read(world.topic, 0, since_ms=at)) == [b"old"]
    assert values(world.reader().read(world.topic, 0, since_ms=at + 3_600_000)) == []


def test_reads_may_be_interleaved(world: Any) -> None:
    world.append(*(world.put(p, "k", b"%d" % p) for p in (0, 0, 1, 1)))
    reader = world.reader()
    pairs = zip(reader.read(world.topic, 0), reader.read(world.topic, 1), strict=True)
    assert [(a.value(), b.value()) for a, b in pairs] == [(b"0", b"1"), (b"0", b"1")]


def test_h22_read_sees_what_was_committed_and_passes_what_was_not(world: Any) -> None:
    log = world.joined(world.log())
    log.commit([world.put(0, "k", b"committed")], world.at(0), log.membership())
    huge = world.put(0, "huge", b"\0" * (5 * 1024 * 1024))
    with pytest.raises(Exception, match=r"(?i)size|bytes|large"):
        log.commit([world.put(0, "k", b"aborted"), huge], world.at(0), log.membership())
    world.holds([b"committed"], 0)
    world.append(world.put(0, "k", b"plain"))
    world.holds([b"committed", b"plain"], 0)


def test_tail_follows(world: Any) -> None:
    reader, seen = world.reader(), []
    start = 0

    def follow(count: int) -> None:
        nonlocal start
        deadline = time.monotonic() + 30
        while len(seen) < count and time.monotonic() < deadline:
            for record in reader.tail(world.topic, 0, start, 2):
                seen.append(record.value())
                start = record.offset() + 1

    assert reader.tail(world.topic, 0, 0, 10) == []
    world.append(*(world.put(0, "k", b"%d" % n) for n in range(5)))
    follow(5)
    world.append(world.put(0, "k", None))
    follow(6)
    assert seen == [b"0", b"1", b"2", b"3", b"4", None]


def test_tail_anew_answers_at_once_and_keeps_its_limit(world: Any) -> None:
    world.append(*(world.put(p, "k", b"%d" % n) for n in range(5) for p in (0, 1)))
    reader = world.reader()
    assert values(reader.tail(world.topic, 0, 1, 2)) == [b"1", b"2"]
    assert values(reader.tail(world.topic, 1, 4, 2)) == [b"4"]
    assert values(reader.tail(world.topic, 0, 3, 9)) == [b"3", b"4"]
    assert values(reader.tail(world.topic, 0, 0, 1)) == [b"0"]
    assert reader.tail(world.topic, 0, 5, 9) == []


def test_partitions(world: Any) -> None:
    reader = world.reader()
    assert reader.partitions(world.topic) == 4
    assert reader.partitions(f"{world.prefix}.nowhere") == 0


@pytest.mark.parametrize(("topic", "partition"), [("jobs", 77), ("nowhere", 0)])
def test_reading_what_does_not_exist(
    world: Any, topic: str, partition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.adapters.kafka_io.SETTLE_S", 0.1)
    reader = world.reader()
    with pytest.raises(NotFound, match=topic):
        reader.read(f"{world.prefix}.{topic}", partition)
    with pytest.raises(NotFound, match=topic):
        reader.tail(f"{world.prefix}.{topic}", partition, 0, 1)


# -- no broker ----------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_io, "PATIENCE_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_without_a_broker_everything_says_so() -> None:
    reader, appender = KafkaReader(NOWHERE), KafkaAppender(NOWHERE)
    appender.append(Put("topic", 0, b"k", b"v"))
    for call in (
        lambda: appender.flush(100),
        lambda: reader.read("topic", 0),
        lambda: reader.tail("topic", 0, 0, 1),
        lambda: reader.partitions("topic"),
        lambda: check_reachable(NOWHERE, 100),
    ):
        with pytest.raises(StoreUnreachable):
            call()
    reader.close()
    appender.close()


def test_memory_without_a_broker(memory: Any) -> None:
    reports: list[Any] = []
    memory.cluster.reachable = False
    appender = memory.appender()
    appender.append(memory.put(0, "k"), lambda *report: reports.append(report))
    with pytest.raises(StoreUnreachable):
        appender.flush(10)
    with pytest.raises(StoreUnreachable):
        memory.reader().read(memory.topic, 0)
    memory.cluster.reachable = True
    appender.poll(0)
    assert [error for error, _, _ in reports] == [None]


def test_a_broker_that_answers_has_a_cluster_id(broker: str) -> None:
    assert check_reachable(broker, 10_000)


def test_reserved_settings_are_refused() -> None:
    for key in ("transactional.id", "enable.idempotence", "isolation.level"):
        with pytest.raises(InvalidInput, match=key):
            KafkaAppender(NOWHERE, {key: "x"})


def test_a_tail_from_before_the_log_begins_goes_on_where_it_begins(kafka: Any) -> None:
    """What the acks topic keeps for a limited time may be gone when a partition is taken over again."""
    kafka.append(*(kafka.put(0, "k", b"%d" % n) for n in range(4)))
    place = TopicPartition(kafka.topic, 0, 3)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([place])[place].result(10)
    reader = kafka.reader()
    assert values(reader.tail(kafka.topic, 0, 1, 9)) == [b"3"]
    kafka.append(kafka.put(0, "k", b"4"))
    deadline, seen = time.monotonic() + 30, []
    while not seen and time.monotonic() < deadline:
        seen = values(reader.tail(kafka.topic, 0, 4, 9))
    assert seen == [b"4"]
