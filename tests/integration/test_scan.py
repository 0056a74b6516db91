"""Reading in bulk, on the real broker."""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import Producer

from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.adapters.kafka_scan import KafkaScan
from pipeline.config import load_settings

QUICK_S = 0.015
"""A fetch that waits at the end of a partition as long as the client's others do takes 20 ms at least."""


def test_the_end_of_a_small_partition_is_not_waited_for(broker: str, prefix: str) -> None:
    """A survey of a small store is hundreds of ends: of transactions too, whose marker is no record. The quickest
    reading counts, whatever else the machine does."""
    settings = load_settings(bootstrap_servers=broker, prefix=prefix)
    ensure_topics(settings)
    topic = settings.names.jobs
    producer = Producer({"bootstrap.servers": broker, "transactional.id": f"{prefix}.ends"})
    producer.init_transactions(10)
    producer.begin_transaction()
    for number in range(24):
        producer.produce(topic, b"x", b"c/x", number)
    producer.commit_transaction(10)
    with closing(KafkaScan(broker)) as scan:
        took = []
        for number in range(24):
            began = time.perf_counter()
            span = scan.span(topic, number)
            read = [len(batch) for batch in scan.batches(topic, number, span.start, span.end)]
            took.append(time.perf_counter() - began)
            assert (read, span.end) == ([1], 2)
    assert min(took) < QUICK_S
