"""Where the logs and groups of an installation stand, for a backup (`backup.cut.Positions`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipeline.adapters.kafka_io import READER_GROUP, range_of
from pipeline.adapters.kafka_log import committed_offset
from pipeline.adapters.kafka_settings import constructing, error_of, settings, translate
from pipeline.core.errors import Refused
from pipeline.ports import CommittedOffset

OPEN_S = 60.0
"""How long a transaction may stay open: those of the product end within 10 s, whatever happens to their producer."""
LOOK_S = 0.02
TIMEOUT_S = 5.0


class KafkaPositions:
    """One thread at a time. InvalidInput for a reserved setting in `client`."""

    def __init__(self, bootstrap: str, client: Mapping[str, str]) -> None:
        self._bootstrap, self._client = bootstrap, client
        self._stable = self._consumer(READER_GROUP, "read_committed")
        self._written = self._consumer(READER_GROUP, "read_uncommitted")

    def _consumer(self, group: str, isolation: str) -> Consumer:
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        with constructing():
            return Consumer(settings(self._bootstrap, self._client, own))

    def committed(self, group: str, topic: str, partitions: int) -> Sequence[CommittedOffset | None]:
        # An offset that waits for the end of a transaction is not there yet: what it would say has not happened.
        consumer = self._consumer(group, "read_uncommitted")
        try:
            answer = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], TIMEOUT_S)
        except KafkaException as exception:
            raise translate(error_of(exception), topic) from exception
        finally:
            consumer.close()
        return [committed_offset(place) for place in sorted(answer, key=lambda place: place.partition)]

    def ends(self, topic: str, partitions: int) -> Sequence[int]:
        ends = [range_of(self._written, topic, number, None)[1] for number in range(partitions)]
        deadline = time.monotonic() + OPEN_S
        for number, end in enumerate(ends):
            while range_of(self._stable, topic, number, None)[1] < end:
                if time.monotonic() >= deadline:
                    raise Refused(
                        f"{topic}/{number}: a transaction has been open for {OPEN_S:.0f} s and hides what follows it:"
                        " `dueline doctor` names its producer"
                    )
                time.sleep(LOOK_S)
        return ends

    def sizes(self, topic: str, partitions: int) -> int:
        """Offsets that the topic holds as of now, also those of transactions that are open."""
        ranges = (range_of(self._written, topic, number, None) for number in range(partitions))
        return sum(end - begin for begin, end in ranges)

    def close(self) -> None:
        self._stable.close()
        self._written.close()
