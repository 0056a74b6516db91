"""Bare loops of a worker: consume, call, an ack record for each run, offsets, in a transaction a batch.

`BareWorker` runs in the measuring process over records that stand on a topic already. `BareProcess` is the same as a
process of its own, for shapes in which something else emits meanwhile; it writes started records too, and marks when
its handlers begin: `python -m pipeline.dev.bench.bare_worker TOPIC ACKS PARTITIONS`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import pipeline
from pipeline.adapters.kafka_io import take
from pipeline.config import Settings, load_settings
from pipeline.core.errors import StoreUnreachable
from pipeline.dev.bench import marks
from pipeline.dev.bench.bare import SILENT, TIMEOUT_S, member, plain, transactional
from pipeline.dev.bench.figures import per_second
from pipeline.dev.demo.cast import environment
from pipeline.dev.process import spawn, stop

THREADS = 16
BATCH = 2_000
"""Runs of one transaction, at most."""
POLL_S = 0.05
RING = 2
STARTED, ACK = b"s" * 60, b"a" * 60
READY = b"ready\n"
STOP_TIMEOUT_S = 5.0

Batch = list[Any]
Running = Callable[[], Batch]
"""A batch whose handlers were called: returns it once all have returned."""


class BareWorker:
    """Loops over `jobs`, (key, value) each, once `fill` has put them on a topic of its own."""

    def __init__(self, settings: Settings, jobs: Sequence[tuple[bytes, bytes]], partitions: int) -> None:
        suffix = secrets.token_hex(4)
        self._settings, self._jobs, self._partitions = settings, jobs, partitions
        self._work, self._acks = (f"{settings.prefix}.bare-{what}-{suffix}" for what in ("work", "acks"))
        self._admin = AdminClient({**settings.client_config(), **SILENT})
        _made(self._admin, partitions, self._work, self._acks)

    def close(self) -> None:
        for future in self._admin.delete_topics([self._work, self._acks]).values():
            future.result(TIMEOUT_S)

    def fill(self) -> None:
        """StoreUnreachable if not all is stored in time."""
        producer = plain(self._settings)
        for n, (key, value) in enumerate(self._jobs):
            producer.produce(self._work, value, key, n % self._partitions)
            if not n % 1000:
                producer.poll(0)
        if producer.flush(TIMEOUT_S):
            raise StoreUnreachable(f"{self._work}: not all stored")

    # -- the loops: runs per second --------------------------------------------------------------------------

    def pool(self) -> float:
        """A no-op function; one submit to a pool of threads a run."""
        with ThreadPoolExecutor(THREADS) as pool:
            return self._loop(lambda batch: _submitted(pool, batch, _nothing))

    def asyncio(self) -> float:
        """A no-op coroutine on an event loop in a thread of its own."""
        return self._on_loop(_gathered)

    def sleeping(self, concurrency: int, seconds: float) -> float:
        """Coroutines that sleep, so many at once; one batch sleeps while the one before it is acked."""
        return self._on_loop(lambda batch: _slept(batch, concurrency, seconds), ahead=1)

    def _on_loop(self, work: Callable[[Batch], Awaitable[Batch]], ahead: int = 0) -> float:
        async def done(batch: Batch) -> Batch:
            return await work(batch)

        with _event_loop() as loop:
            return self._loop(lambda batch: asyncio.run_coroutine_threadsafe(done(batch), loop).result, ahead)

    def _loop(self, call: Callable[[Batch], Running], ahead: int = 0) -> float:
        """`ahead`: batches that are called before the one before them is acked."""
        count, running = len(self._jobs), deque[Running]()
        with closing(member(self._settings, self._work, self._partitions, 0)) as consumer:
            producer = transactional(self._settings, f"{self._work}.{secrets.token_hex(2)}")
            began, read, done = time.perf_counter(), 0, 0
            while done < count:
                batch = _runs(consumer) if read < count else []
                read += len(batch)
                if batch:
                    running.append(call(batch))
                if running and (len(running) > ahead or read == count):
                    done += _acked(producer, consumer, self._acks, running.popleft()())
            return per_second(count, (time.perf_counter() - began) * 1000)


def alone(count: int, concurrency: int, seconds: float) -> float:
    """Sleeping coroutines a second, so many at once, with no store at all: what the event loop can do."""
    began = time.perf_counter()
    asyncio.run(_slept(list(range(count)), concurrency, seconds))
    return per_second(count, (time.perf_counter() - began) * 1000)


# -- a process of its own ------------------------------------------------------------------------------------


@contextmanager
def bare_process(settings: Settings, topic: str, partitions: int, directory: Path) -> Iterator[None]:
    """Inside, a worker reads `topic` from its beginning and keeps its marks in `directory`. Its topic of acks is
    deleted with all others of the prefix."""
    acks = f"{settings.prefix}.bare-acks-{secrets.token_hex(4)}"
    _made(AdminClient({**settings.client_config(), **SILENT}), partitions, acks)
    process = spawn(
        [sys.executable, "-m", "pipeline.dev.bench.bare_worker", topic, acks, str(partitions)],
        env=environment(settings, os.environ) | {marks.VARIABLE: str(directory)},
        cwd=Path(pipeline.__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != READY:  # every call of its start has a deadline
            raise StoreUnreachable(f"{topic}: a bare worker ended before it was ready")
        yield
    finally:
        stop(process, STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


def main(topic: str, acks: str, partitions: int) -> None:
    """Until it is killed: consume, started records, one submit a run, acks with offsets in transactions that take
    turns."""
    settings, kept = load_settings(), marks.of_environment()
    assert kept is not None, "started by bare_process"
    mark = kept.add

    def handler(message: Any) -> None:
        mark(int(message.key()), message.timestamp()[1])

    consumer = member(settings, topic, partitions, 0)
    ring = [transactional(settings, f"{acks}.{n}") for n in range(RING)]
    starter, turn = plain(settings, **{"linger.ms": 0}), 0
    with ThreadPoolExecutor(THREADS) as pool:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        while True:
            batch = _runs(consumer)
            if batch:
                turn += 1
                _started(starter, acks, batch)
                _acked(ring[turn % RING], consumer, acks, _submitted(pool, batch, handler)())


# -- the parts -----------------------------------------------------------------------------------------------


def _made(admin: AdminClient, partitions: int, *topics: str) -> None:
    for future in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        future.result(TIMEOUT_S)


def _runs(consumer: Consumer) -> Batch:
    return [message for message in take(consumer, BATCH, POLL_S) if message.error() is None]


def _nothing(_message: Any) -> None: ...


def _submitted(pool: ThreadPoolExecutor, batch: Batch, handler: Callable[[Any], None]) -> Running:
    futures = [pool.submit(handler, message) for message in batch]

    def wait() -> Batch:
        for future in futures:
            future.result()
        return batch

    return wait


async def _gathered(batch: Batch) -> Batch:
    async def nothing(message: Any) -> Any:
        return message

    return await asyncio.gather(*[nothing(message) for message in batch])


async def _slept(batch: Batch, concurrency: int, seconds: float) -> Batch:
    waiting = iter(batch)

    async def pull(messages: Iterable[Any]) -> None:
        for _ in messages:
            await asyncio.sleep(seconds)

    await asyncio.gather(*[pull(waiting) for _ in range(concurrency)])
    return batch


def _started(producer: Producer, acks: str, batch: Batch) -> None:
    for message in batch:
        producer.produce(acks, STARTED, message.key(), message.partition())
    if producer.flush(TIMEOUT_S):
        raise StoreUnreachable(f"{acks}: started records were not stored")


def _acked(producer: Producer, consumer: Consumer, acks: str, batch: Batch) -> int:
    """How many, once the transaction has committed."""
    positions: dict[int, int] = {}
    producer.begin_transaction()
    for message in batch:
        producer.produce(acks, ACK, message.key(), message.partition())
        positions[message.partition()] = message.offset() + 1
    if producer.flush(TIMEOUT_S):
        raise StoreUnreachable(f"{acks}: a transaction was not flushed")
    topic = batch[0].topic()
    offsets = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    return len(batch)


@contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bare event loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
