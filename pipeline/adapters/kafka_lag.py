"""How far a consumer group is behind, asked for from outside."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipeline.adapters.kafka_settings import constructing, error_of, settings, translate
from pipeline.ports import GroupProgress

TIMEOUT_S = 5.0


def group_progress(
    bootstrap: str, client: Mapping[str, str], group: str, topic: str, partitions: int
) -> list[GroupProgress]:
    """Where `group` stands on each partition of `topic`. It is not joined. Raises StoreUnreachable, NotFound."""
    own = {
        "group.id": group,
        "enable.auto.commit": False,
        # An open transaction must not keep the answer back: this decides nothing.
        "isolation.level": "read_uncommitted",
    }
    with constructing():
        consumer = Consumer(settings(bootstrap, client, own))
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        committed = {place.partition: place for place in consumer.committed(places, TIMEOUT_S)}
        return [_progress(consumer, place, committed[place.partition]) for place in places]
    except KafkaException as exception:
        raise translate(error_of(exception), topic) from exception
    finally:
        consumer.close()


def _progress(consumer: Consumer, place: TopicPartition, committed: TopicPartition) -> GroupProgress:
    low, end = consumer.get_watermark_offsets(place, TIMEOUT_S)
    if committed.offset < 0:
        return GroupProgress(committed=None, low=low, end=end)
    return GroupProgress(committed=committed.offset, low=low, end=end, metadata=committed.metadata or "")
