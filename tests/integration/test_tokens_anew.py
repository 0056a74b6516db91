"""The tokens of an installation whose topics are deleted and made anew under a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from integration.fleet import Eventually

from pipeline.adapters.kafka_io import KafkaReader
from pipeline.ports import Put
from pipeline.server import tokens as token_book
from pipeline.server.access import Role, TokenRecord
from pipeline.server.tokens import Following, Tokens


def record(number: int) -> TokenRecord:
    return TokenRecord(
        id=f"{number:016x}", name="tess", role=Role.ADMIN, digest="", created_at=number, created_by="test"
    )


@contextmanager
def followed(broker: str, topic: str, anew: Callable[[], None]) -> Iterator[Tokens]:
    """The tokens of a server that runs."""
    reader, producer = KafkaReader(broker), Producer({"bootstrap.servers": broker})

    def write(puts: Sequence[Put]) -> None:
        for put in puts:
            producer.produce(put.topic, put.value, put.key, put.partition)
        assert producer.flush(20) == 0

    told: list[Exception] = []
    tokens = Tokens(topic=topic, reader=reader, write=write, now=lambda: 0, anew=anew)
    tokens.read()
    following = Following(tokens, told.append)
    try:
        yield tokens
    finally:
        following.close()
        reader.close()


def make(admin: AdminClient, topic: str, eventually: Eventually) -> None:
    """And wait until the broker knows what its controller made."""
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    eventually(lambda: topic in admin.list_topics(timeout=10).topics)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("old", "new"), [(2, 12), (12, 2), (3, 3)])
def test_tokens_of_a_topic_that_is_gone_open_nothing_and_new_ones_do(
    broker: str, prefix: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, old: int, new: int
) -> None:
    monkeypatch.setattr(token_book, "CHECK_S", 0.5)
    topic, admin = f"{prefix}.meta", AdminClient({"bootstrap.servers": broker})
    make(admin, topic, eventually)
    anew: list[bool] = []
    with followed(broker, topic, lambda: anew.append(True)) as running:
        for number in range(old):
            running.put(record(number))
        eventually(lambda: running._last is not None and running._last.offset == old - 1, 20)
        admin.delete_topics([topic])[topic].result(20)
        eventually(lambda: topic not in admin.list_topics(timeout=10).topics, 20)
        make(admin, topic, eventually)
        with followed(broker, topic, lambda: None) as elsewhere:
            for number in range(100, 100 + new):
                elsewhere.put(record(number))
            there = [f"{number:016x}" for number in range(100, 100 + new)]
            eventually(lambda: [each.id for each in running.all()] == there, 30)
            assert anew == [True]
            elsewhere.remove(there[0])
            eventually(lambda: running.find(there[0]) is None, 20)
