"""What a client or the topic `meta` refuses, in the words of whoever must mend it; no broker is needed."""

from __future__ import annotations

import pytest

from pipeline import codec
from pipeline.adapters import kafka_io
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_meta import MetaTopic, _meta
from pipeline.adapters.kafka_settings import settings
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.keys import ERA_KEY, LAYOUT_KEY
from pipeline.core.layout import default_layout
from pipeline.core.names import Names

BAD = [
    ("security.protocol", "zz"),
    ("socket.timeout.ms", "abc"),
    ("socket.keepalive.enable", "x"),
    ("socket.send.buffer.bytes", "-9"),
]


def test_a_broker_that_was_gone_is_tried_again_soon_unless_somebody_says_otherwise() -> None:
    """Heartbeats that come back ten seconds after the store make a worker that lives look dead."""
    name = "reconnect.backoff.max.ms"
    assert settings("h:1", {}, {})[name] == 1_000
    assert settings("h:1", {name: "9000"}, {})[name] == "9000"
    assert name not in settings("h:1", {"reconnect.backoff.ms": "2000"}, {})


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_names_its_variable(key: str, value: str) -> None:
    config = {key: value}
    variable = "DUELINE_KAFKA__" + key.upper().replace(".", "_")
    meta = MetaTopic({**config, "bootstrap.servers": "localhost:1"}, Names("unit"), timeout_ms=100)
    for construct in (
        lambda: KafkaAppender("localhost:1", config),
        lambda: KafkaReader("localhost:1", config).partitions("t"),
        lambda: KafkaReader("localhost:1", config).tail("t", 0, 0, 1),
        lambda: kafka_io.check_reachable("localhost:1", 100, config),
        meta.read,
        lambda: meta.update(lambda _: default_layout(queues={})),
    ):
        with pytest.raises(InvalidInput) as caught:
            construct()
        assert caught.value.field == variable
        assert "\n" not in str(caught.value)


def test_what_is_fetched_ahead_for_tails_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def consumer(config: dict[str, object]) -> object:
        made.append(config["queued.max.messages.kbytes"])
        raise InterruptedError

    monkeypatch.setattr(kafka_io, "Consumer", consumer)
    with pytest.raises(InterruptedError):
        KafkaReader("localhost:1").tail("t", 0, 0, 1)
    assert made == [1024]


@pytest.mark.parametrize("key", [LAYOUT_KEY, ERA_KEY])
def test_garbage_on_meta_is_refused_naming_topic_and_key(key: bytes) -> None:
    with pytest.raises(Refused, match=f"unit.meta: the record under '{key.decode()}' .*DUELINE_PREFIX"):
        _meta("unit.meta", {key: b"garbage"})


def test_a_layout_of_a_newer_version_asks_for_an_upgrade() -> None:
    layout = codec.LAYOUT.encode(default_layout(queues={"default": 1}))
    with pytest.raises(Refused, match="upgrade"):
        _meta("unit.meta", {LAYOUT_KEY: layout[:2] + b"\0" * 8 + layout[10:]})
