"""Runs that stand on the work topic, written there as a dispatcher writes them, until a worker has acked them all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from random import Random

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from pipeline import codec
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.core.errors import StoreUnreachable
from pipeline.core.job import Run
from pipeline.core.minting import Mint
from pipeline.dev.bench import acks
from pipeline.dev.bench.load import PAYLOADS, encoded, payloads
from pipeline.dev.bench.observer import wall_ms
from pipeline.dev.bench.site import Site
from pipeline.ports import Put

FLUSH_MS = 60_000
POLL_S = 0.02
REQUEST_S = 10.0


class Burst:
    """`count` runs for one handler, all on the topic once this is made. `payload` None: those of the load."""

    def __init__(self, here: Site, handler: str, count: int, payload: bytes | None = None) -> None:
        self._here = here
        self._queue = here.settings.queue
        self._topic = here.settings.names.work(self._queue)
        self._admin = AdminClient({**here.settings.client_config(), "log_level": 0})
        self._ends = Counter[int]()
        self._refused: list[Exception] = []
        pool = [encoded(each) for each in payloads()] if payload is None else [payload]
        self.ids = self._stored(_runs(here, handler, count, pool))

    def _stored(self, runs: Iterable[Run]) -> list[str]:
        """The ids; StoreUnreachable if one was not taken."""
        ids, here = [], self._here
        work_partition = partial(here.layout.work_partition, self._queue)
        for n, run in enumerate(runs):
            partition = work_partition(run.job_id)
            put = Put(self._topic, partition, run.occurrence_id.encode(), codec.RUN.encode(run))
            here.appender.append(put, self._report)
            self._ends[partition] += 1
            ids.append(run.occurrence_id)
            if not n % 1_000:
                here.appender.poll(0)
        here.appender.flush(FLUSH_MS)
        if self._refused:
            raise StoreUnreachable(f"{self._topic}: {len(self._refused)} runs not stored: {self._refused[0]}")
        return ids

    def _report(self, error: Exception | None, _offset: int, _at: int) -> None:
        if error is not None:
            self._refused.append(error)

    def finished(self) -> bool:
        """Whether the group's offsets, as committed together with the acks, stand behind the last run."""
        group = self._here.settings.names.worker_group(self._queue)
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(self._topic, n) for n in self._ends])
        answer = self._admin.list_consumer_group_offsets([asked], request_timeout=REQUEST_S)
        places = answer[group].result(REQUEST_S).topic_partitions or []
        return all(place.offset >= self._ends[place.partition] for place in places)

    def wait(self, timeout_s: float, alive: Callable[[], None]) -> int:
        """Until all are acked; when that was (epoch ms, at most POLL_S too late). `alive` raises if whoever should do
        it has ended; StoreUnreachable if it is not done in time."""
        deadline = time.monotonic() + timeout_s
        while not self.finished():
            alive()
            if time.monotonic() > deadline:
                raise StoreUnreachable(f"{self._topic}: not all acked after {timeout_s:.0f} s")
            time.sleep(POLL_S)
        return wall_ms()

    def account(self) -> acks.Account:
        """What the acks say. DuelineError if a run is lost, or ended twice, or was started after its end."""
        return accounted(self._here, self.ids)


def accounted(here: Site, ids: Iterable[str]) -> acks.Account:
    """Of all jobs that this site's workers were given."""
    settings = here.settings
    with closing(KafkaReader(settings.require_bootstrap(), settings.kafka)) as reader:
        found = acks.read(reader, settings.names.acks(settings.queue))
    found.check(set(ids))
    return found


def _runs(here: Site, handler: str, count: int, pool: list[bytes]) -> Iterator[Run]:
    """Due a moment ago; payloads are dealt out in turn."""
    due, mint = here.now() - 1, Mint(here.layout, Random().getrandbits).mint
    for n in range(count):
        id_, _home = mint(due)
        yield Run(
            job_id=id_,
            occurrence_id=id_,
            due_at=due,
            nominal_at=due,
            created_at=due,
            run=1,
            queue=here.settings.queue,
            handler=handler,
            idempotency_key=id_,
            payload=pool[n % min(PAYLOADS, len(pool))],
        )
