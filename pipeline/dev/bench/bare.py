"""Bare loops: what the parts alone give on this machine and broker, with nothing of the product in between.

Same broker, number of records, payloads, partitions and compression as the product's own measurement beside
them. They keep no promise: no clock, no ids, no takeover, no check of anything.
"""

from __future__ import annotations

import io
import secrets
import shutil
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rocksdict import Options, Rdict, ReadOptions, WriteBatch

from pipeline.adapters.kafka_io import take
from pipeline.config import Settings
from pipeline.core.errors import StoreUnreachable
from pipeline.dev.bench.figures import per_second
from pipeline.dev.bench.load import HANDLER, PAYLOAD_BYTES, PAYLOADS, encoded, payloads

COMPRESSION = "lz4"
TRANSACTION = 8_000
"""Records of one transaction of the drain."""
TIMEOUT_S = 30.0
SILENT = {"log_level": 0}
"""A store that is stopped when the run is over is no news."""
STAMPED = {"message.timestamp.type": "LogAppendTime"}
SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "BareJob",
        "fields": [
            {"name": "id", "type": "string"},
            {"name": "due", "type": "long"},
            {"name": "handler", "type": "string"},
            {"name": "payload", "type": "bytes"},
            {"name": "key", "type": ["null", "string"]},
            {"name": "limit", "type": "int"},
            {"name": "headers", "type": {"type": "map", "values": "string"}},
        ],
    }
)
_DUE = struct.Struct(">HBQ")
_KEY = struct.Struct(">HB")
_PLACE = struct.Struct(">QQ")


def records(count: int, due: int) -> list[tuple[bytes, bytes]]:
    """(key, value), encoded beforehand: the loops only move them."""
    pool = [encoded(payload) for payload in payloads()]
    made = []
    for n in range(count):
        body = io.BytesIO()
        fields = {"id": f"{n:027d}", "due": due + n, "handler": HANDLER, "payload": pool[n % PAYLOADS]}
        fastavro.schemaless_writer(body, SCHEMA, {**fields, "key": None, "limit": 5, "headers": {}})
        made.append((b"%027d" % n, body.getvalue()))
    return made


class Bare:
    """The loops over one set of records, in this order: create, index, drain. `used`: the partitions of the jobs
    topic that hold them, as many as the product's jobs of the same measurement stand on."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        jobs: list[tuple[bytes, bytes]],
        used: int,
        partitions: int,
        work: int,
    ) -> None:
        suffix = secrets.token_hex(4)
        self._settings = settings
        self._jobs, self._work = (
            f"{settings.prefix}.bare-jobs-{suffix}",
            f"{settings.prefix}.bare-work-{suffix}",
        )
        self._records, self._used, self._works = jobs, used, work
        self._admin = AdminClient({**settings.client_config(), **SILENT})
        _made(self._admin, [NewTopic(self._jobs, partitions, 1), NewTopic(self._work, work, 1)])
        self._path = directory / f"bare-{suffix}"
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self._db = Rdict(str(self._path), options)
        self._confirmed = 0

    def close(self) -> None:
        self._db.close()
        shutil.rmtree(self._path, ignore_errors=True)
        for future in self._admin.delete_topics([self._jobs, self._work]).values():
            future.result(TIMEOUT_S)

    # -- the loops: records per second -----------------------------------------------------------------------

    def create(self) -> float:
        """Produce all, a delivery report for each."""
        producer = plain(self._settings)
        self._confirmed = 0
        began = time.perf_counter()
        for n, (key, value) in enumerate(self._records):
            producer.produce(self._jobs, value, key, n % self._used, on_delivery=self._report)
            if not n % 1000:
                producer.poll(0)
        producer.flush(TIMEOUT_S)
        rate = self._rate(began)
        if self._confirmed != len(self._records):
            raise StoreUnreachable(f"{self._jobs}: {self._confirmed} of {len(self._records)} confirmed")
        return rate

    def _report(self, error: Any, _message: Any) -> None:
        self._confirmed += error is None

    def index(self) -> float:
        """Consume, decode, two keys a record: in order of due time, and by id."""
        consumer = member(self._settings, self._jobs, self._used, 0)
        began, done = time.perf_counter(), 0
        while done < len(self._records):
            batch = WriteBatch(raw_mode=True)
            for message in take(consumer, 2_000, 0.5):
                value, partition = message.value(), message.partition()
                job: Any = fastavro.schemaless_reader(io.BytesIO(value), SCHEMA, None)
                key = job["id"].encode()
                batch.put(_DUE.pack(partition, 1, job["due"]) + key, value)
                batch.put(_KEY.pack(partition, 2) + key, _PLACE.pack(job["due"], message.offset()))
                done += 1
            self._db.write(batch)
        rate = self._rate(began)
        consumer.close()
        return rate

    def drain(self) -> float:
        """Ordered scan, work record and tombstone in transactions with offsets, both keys deleted, one memory a
        record; the tombstones are read back at the end."""
        consumer = member(self._settings, self._jobs, self._used, len(self._records) // self._used)
        ring = [transactional(self._settings, f"{self._work}.{n}") for n in range(2)]
        marks = {p: _DUE.pack(p, 1, 0) for p in range(self._used)}
        began, fired, turn = time.perf_counter(), 0, 0
        while fired < len(self._records):
            turn += 1
            fired += self._transaction(ring[turn % 2], consumer, marks)
        back = 0
        while back < len(self._records):
            back += len(take(consumer, 5_000, 1.0))
        rate = self._rate(began)
        consumer.close()
        return rate

    def _transaction(self, producer: Producer, consumer: Consumer, marks: dict[int, bytes]) -> int:
        chosen = [row for p in range(self._used) for row in self._scan(p, marks, TRANSACTION // self._used)]
        producer.begin_transaction()
        for n, (partition, row, value) in enumerate(chosen):
            key = row[_DUE.size :]
            producer.produce(self._work, value, key, n % self._works)
            producer.produce(self._jobs, None, key, partition)
        _commit(producer, consumer, self._jobs, self._used)
        batch = WriteBatch(raw_mode=True)
        for partition, row, _ in chosen:
            batch.delete(_KEY.pack(partition, 2) + row[_DUE.size :])
            batch.put(_KEY.pack(partition, 3) + row[_DUE.size :], bytes(8))
        self._db.write(batch)
        for partition, mark in marks.items():
            self._db.delete_range(_DUE.pack(partition, 1, 0), mark)
        return len(chosen)

    def _scan(
        self, partition: int, marks: dict[int, bytes], limit: int
    ) -> Iterator[tuple[int, bytes, bytes]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(_KEY.pack(partition, 2))
        rows = self._db.iter(options)
        rows.seek(marks[partition])
        for _ in range(limit):
            if not rows.valid():
                break
            row = rows.key()
            marks[partition] = row + b"\0"
            yield partition, row, rows.value()
            rows.next()
        del rows, options

    def _rate(self, began: float) -> float:
        return per_second(len(self._records), (time.perf_counter() - began) * 1000)


class Emitter:
    """A loop that knows beforehand what is due when: nothing but transactions, on time."""

    def __init__(self, settings: Settings, used: int, partitions: int, work: int) -> None:
        suffix = secrets.token_hex(4)
        self.topic = f"{settings.prefix}.bare-work-{suffix}"
        self._jobs = f"{settings.prefix}.bare-jobs-{suffix}"
        self._used, self._works = used, work
        self._admin = AdminClient({**settings.client_config(), **SILENT})
        _made(
            self._admin, [NewTopic(self._jobs, partitions, 1), NewTopic(self.topic, work, 1, config=STAMPED)]
        )
        self._consumer = member(settings, self._jobs, used, 0)
        self._ring = [transactional(settings, f"{self.topic}.{n}") for n in range(2)]

    def emit(self, dues: Sequence[int], now: Callable[[], int]) -> None:
        """One record for each of `dues` (ascending, epoch ms) once `now()` has come to it; its key says when."""
        value, at, turn = bytes(PAYLOAD_BYTES), 0, 0
        while at < len(dues):
            until = bisect_right(dues, now(), at)
            if until == at:
                time.sleep(max(0, dues[at] - now()) / 1000)
                continue
            turn += 1
            producer = self._ring[turn % len(self._ring)]
            producer.begin_transaction()
            for n in range(at, until):
                producer.produce(self.topic, value, b"%d" % dues[n], n % self._works)
                producer.produce(self._jobs, None, b"%d" % n, n % self._used)
            _commit(producer, self._consumer, self._jobs, self._used)
            at = until

    def close(self) -> None:
        self._consumer.close()
        for future in self._admin.delete_topics([self._jobs, self.topic]).values():
            future.result(TIMEOUT_S)


def due_in_key(key: bytes) -> int:
    """Of a record of `Emitter`; epoch ms."""
    return int(key)


# -- the parts -----------------------------------------------------------------------------------------------


def _commit(producer: Producer, consumer: Consumer, topic: str, used: int) -> None:
    if producer.flush(TIMEOUT_S):
        raise StoreUnreachable(f"{topic}: a transaction was not flushed")
    offsets = [TopicPartition(topic, p, 1) for p in range(used)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)


def plain(settings: Settings, **more: Any) -> Producer:
    return Producer(
        {
            **settings.client_config(),
            **SILENT,
            "enable.idempotence": True,
            "compression.type": COMPRESSION,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            **more,
        }
    )


def transactional(settings: Settings, id_: str) -> Producer:
    producer = plain(settings, **{"transactional.id": id_, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_S)
    return producer


def member(settings: Settings, topic: str, used: int, start: int) -> Consumer:
    """A member of a group of its own, standing at `start` of the first `used` partitions."""
    consumer = Consumer(
        {
            **settings.client_config(),
            **SILENT,
            "group.id": f"{topic}.{secrets.token_hex(2)}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        consumer.poll(0.05)
        if time.monotonic() > deadline:
            raise StoreUnreachable(f"{topic}: no assignment")
    consumer.assign([TopicPartition(topic, p, start) for p in range(used)])
    return consumer


def _made(admin: AdminClient, topics: list[NewTopic]) -> None:
    try:
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
    except KafkaException as error:
        raise StoreUnreachable(str(error)) from error


@contextmanager
def bare(
    settings: Settings,
    directory: Path,
    jobs: list[tuple[bytes, bytes]],
    *,
    used: int,
    partitions: int,
    work: int,
) -> Iterator[Bare]:
    loops = Bare(settings, directory, jobs, used, partitions, work)
    try:
        yield loops
    finally:
        loops.close()
