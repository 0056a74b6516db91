"""The worlds that a log may stand in: in memory, and on the real broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from decided import decided

from pipeline.adapters import kafka_txn
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_log import KafkaGroupLog
from pipeline.adapters.memory import MemoryAppender, MemoryClock, MemoryGroupLog, MemoryReader
from pipeline.adapters.memory_cluster import MemoryCluster
from pipeline.core.errors import PoisonRecord
from pipeline.ports import Appender, CommittedOffset, GroupLog, Put, Reader, Record

DEADLINE_S = 30.0
SESSION_MS = 3_000


class Listener:
    """Records what it is told; `starts` = the offsets it answers with (None = everything from 0)."""

    def __init__(self, starts: Mapping[int, int] | None = None) -> None:
        self.starts = starts
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.error: Exception | None = None

    def assigned(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.told.append(("assigned", tuple(partitions)))
        if self.error is not None:
            raise self.error
        return dict.fromkeys(partitions, 0) if self.starts is None else self.starts

    def revoked(self, partitions: Sequence[int]) -> None:
        self.told.append(("revoked", tuple(partitions)))

    def lost(self, partitions: Sequence[int]) -> None:
        self.told.append(("lost", tuple(partitions)))


class World:
    """One cluster, and what was opened on it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.topic = f"{prefix}.jobs"
        self.other = f"{prefix}.work"
        self.opened: list[Any] = []
        self.create_topics({self.topic: 4, self.other: 2})

    def create_topics(self, topics: Mapping[str, int]) -> None:
        raise NotImplementedError

    def build_log(self, listener: Listener, ids: Sequence[str]) -> GroupLog:
        raise NotImplementedError

    def build_appender(self) -> Appender:
        raise NotImplementedError

    def build_reader(self) -> Reader:
        raise NotImplementedError

    def log(self, listener: Listener | None = None, ids: Sequence[str] = ("a",)) -> GroupLog:
        """A member of the group; its transactional ids are in this test's namespace."""
        log = self.build_log(listener or Listener(), [f"{self.prefix}.{id_}" for id_ in ids])
        self.opened.append(log)
        return log

    def appender(self) -> Appender:
        self.opened.append(self.build_appender())
        return self.opened[-1]  # type: ignore[no-any-return]

    def reader(self) -> Reader:
        self.opened.append(self.build_reader())
        return self.opened[-1]  # type: ignore[no-any-return]

    def put(self, partition: int, key: str, value: bytes | None = b"v", topic: str | None = None) -> Put:
        return Put(topic or self.topic, partition, key.encode(), value)

    def append(self, *puts: Put) -> list[int]:
        """Plain appends, acknowledged; their offsets."""
        appender, reports = self.appender(), []
        for put in puts:
            appender.append(put, lambda *report: reports.append(report))
        appender.flush(10_000)
        assert [error for error, _, _ in reports] == [None] * len(puts)
        return [offset for _, offset, _ in reports]

    def values(
        self, partition: int, topic: str | None = None, start: int | None = None
    ) -> list[bytes | None]:
        return [r.value() for r in self.reader().read(topic or self.topic, partition, start)]

    def holds(self, expected: list[bytes], partition: int, topic: str | None = None) -> None:
        """The partition comes to read exactly like this: the markers of a transaction follow its commit."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := self.values(partition, topic)) != expected:
            assert time.monotonic() < deadline, f"{found} instead of {expected}"

    def decided(self, partition: int, topic: str | None = None) -> None:
        """The markers of what was committed there have come, where they come later."""

    def eventually(self, condition: Callable[[], Any], *logs: GroupLog) -> list[Record]:
        """Poll the logs in turn until the condition holds; what they delivered."""
        records: list[Record] = []
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come to hold"
            for log in logs:
                records += log.poll(100, 20)
        return records

    def collect(self, log: GroupLog, count: int) -> list[Record]:
        records: list[Record] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(records) < count:
            assert time.monotonic() < deadline, f"only {len(records)} of {count} records came"
            records += log.poll(count - len(records), 50)
        return records

    def joined(self, log: GroupLog, partitions: int = 4) -> GroupLog:
        """The log, once it owns that many partitions."""
        self.eventually(lambda: self.owned(log) == partitions, log)
        return log

    def shared(self, a: GroupLog, b: GroupLog) -> list[Record]:
        """Both own half, and know it as the same generation; what they delivered meanwhile."""
        return self.eventually(
            lambda: (
                self.owned(a) == self.owned(b) == 2 and a.membership().generation == b.membership().generation
            ),
            a,
            b,
        )

    def owned(self, log: GroupLog) -> int:
        try:
            return len(log.membership().owned)
        except Exception:  # noqa: BLE001 - not a member yet
            return 0

    def at(self, *partitions: int, metadata: str = "") -> dict[int, CommittedOffset]:
        return {p: CommittedOffset(0, metadata) for p in partitions}

    def abort(self, log: GroupLog, *puts: Put) -> None:
        """End a transaction with the puts in the log and aborted, by a record that the broker refuses."""
        huge = Put(self.topic, 3, b"huge", random.Random(1).randbytes(3 * 1024 * 1024))
        with pytest.raises(PoisonRecord):
            log.commit([*puts, huge], self.at(0), log.membership())

    def close(self) -> None:
        for part in reversed(self.opened):
            part.close()


class MemoryWorld(World):
    def __init__(self, prefix: str) -> None:
        self.clock = MemoryClock()
        self.cluster = MemoryCluster(self.clock.now)
        super().__init__(prefix)

    def create_topics(self, topics: Mapping[str, int]) -> None:
        for topic, partitions in topics.items():
            self.cluster.create_topic(topic, partitions)

    def build_log(self, listener: Listener, ids: Sequence[str]) -> GroupLog:
        return MemoryGroupLog(self.cluster, self.topic, "group", listener, ids)

    def build_appender(self) -> Appender:
        return MemoryAppender(self.cluster)

    def build_reader(self) -> Reader:
        return MemoryReader(self.cluster)


class KafkaWorld(World):
    def __init__(self, prefix: str, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        super().__init__(prefix)

    def create_topics(self, topics: Mapping[str, int]) -> None:
        config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(2 * 1024 * 1024)}
        new = [NewTopic(topic, partitions, 1, config=config) for topic, partitions in topics.items()]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})  # named: its futures end with it
        for created in admin.create_topics(new).values():
            created.result(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while not topics.keys() <= admin.list_topics(timeout=DEADLINE_S).topics.keys():
            assert time.monotonic() < deadline, "the broker does not hear of what its controller made"

    def decided(self, partition: int, topic: str | None = None) -> None:
        decided(self.bootstrap, topic or self.topic, partition)

    def build_log(self, listener: Listener, ids: Sequence[str]) -> GroupLog:
        group = f"{self.prefix}.group"
        return KafkaGroupLog(self.bootstrap, self.topic, group, listener, ids, SESSION_MS, {})

    def build_appender(self) -> Appender:
        return KafkaAppender(self.bootstrap)

    def build_reader(self) -> Reader:
        return KafkaReader(self.bootstrap)


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest) -> World:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture
def kafka(broker: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaWorld]:
    """A slow machine's commits take over a second, which an owner must take for lost."""
    monkeypatch.setattr(kafka_txn, "SUSPECT_S", DEADLINE_S)
    built = KafkaWorld(prefix, broker)
    yield built
    built.close()


@pytest.fixture
def memory(prefix: str) -> Iterator[MemoryWorld]:
    built = MemoryWorld(prefix)
    yield built
    built.close()


@pytest.fixture
def listener() -> type[Listener]:
    """The class of listeners, since test modules import nothing from each other."""
    return Listener
