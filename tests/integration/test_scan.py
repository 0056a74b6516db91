"""Reading in bulk, on the real broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle

from confluent_kafka import Producer
from decided import committed

from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.adapters.kafka_scan import KafkaScan
from pipeline.config import load_settings

QUICK_S = 0.015
"""A fetch that waits at the end of a partition as long as the client's others do takes 20 ms at least."""


def test_the_end_of_a_small_partition_is_not_waited_for(
    broker: str, prefix: str, eventually: Callable[..., None]
) -> None:
    """A survey of a small store is hundreds of ends: of transactions too, whose marker is no record. The quickest
    reading counts, whatever else the machine does: one that waits is never quick."""
    settings = load_settings(bootstrap_servers=broker, prefix=prefix, store_timeout_ms=20_000)
    ensure_topics(settings)
    topic = settings.names.jobs
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{prefix}.ends"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for number in range(24):
        producer.produce(topic, b"x", b"c/x", number)
    committed(producer, broker, topic, *range(24))
    with closing(KafkaScan(broker)) as scan:

        def quick(number: int) -> bool:
            began = time.perf_counter()
            span = scan.span(topic, number)
            read = [len(batch) for batch in scan.batches(topic, number, span.start, span.end)]
            took = time.perf_counter() - began
            assert (read, span.end) == ([1], 2)
            return took < QUICK_S

        numbers = cycle(range(24))
        eventually(lambda: quick(next(numbers)))
