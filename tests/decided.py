"""Waiting for the end of a transaction: the broker answers a commit before it has written the markers, so whoever reads
at once may find the log as it was."""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import Consumer, Producer, TopicPartition

DEADLINE_S = 30.0


def committed(producer: Producer, bootstrap: str, topic: str, *partitions: int) -> None:
    """Commit, and wait until everybody can read it on these partitions."""
    producer.commit_transaction(DEADLINE_S)
    decided(bootstrap, topic, *partitions)


def decided(bootstrap: str, topic: str, *partitions: int) -> None:
    """Wait until the last stable offset of each partition is where its written end is now."""
    with closing(_consumer(bootstrap, "read_uncommitted")) as written:
        ends = {number: _end(written, topic, number) for number in partitions}
    deadline = time.monotonic() + DEADLINE_S
    with closing(_consumer(bootstrap, "read_committed")) as stable:
        for number, end in ends.items():
            while (found := _end(stable, topic, number)) < end:
                assert time.monotonic() < deadline, f"{topic}/{number} is decided up to {found} of {end}"
                time.sleep(0.01)


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": "decided", "isolation.level": isolation})


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), DEADLINE_S)
    return int(end)
