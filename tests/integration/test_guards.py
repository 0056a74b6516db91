"""Guards and eras on the real `meta` topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from decided import committed

from pipeline import codec
from pipeline.adapters.kafka_admin import bump_era, ensure_topics, load_era
from pipeline.adapters.kafka_append import KafkaAppender
from pipeline.adapters.kafka_meta import EraBump, GuardReader, MetaTopic
from pipeline.config import Settings, load_settings
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.job import GroupGuard
from pipeline.core.keys import ERA_KEY, guard_key
from pipeline.ports import Put


@pytest.fixture
def settings(broker: str, prefix: str, tmp_path: Path) -> Settings:
    made = load_settings(bootstrap_servers=broker, prefix=prefix, state_dir=tmp_path, store_timeout_ms=20_000)
    ensure_topics(made)
    return made


@pytest.fixture
def reader(settings: Settings) -> Iterator[GuardReader]:
    made = GuardReader(settings.client_config(), settings.names, "group", timeout_ms=10_000)
    yield made
    made.close()


def guard(generation: int) -> GroupGuard:
    return GroupGuard(generation=generation, topic_id="T")


def write(settings: Settings, group: str, partition: int, value: bytes | None) -> None:
    appender = KafkaAppender(settings.require_bootstrap())
    appender.append(Put(settings.names.meta, 0, guard_key(group, partition), value))
    appender.flush(10_000)
    appender.close()


def test_a_reader_kept_open_sees_what_came_and_what_went(settings: Settings, reader: GuardReader) -> None:
    assert reader() == {}
    write(settings, "group", 3, codec.GROUP_GUARD.encode(guard(7)))
    write(settings, "another", 3, codec.GROUP_GUARD.encode(guard(9)))
    assert reader() == {3: guard(7)}
    write(settings, "group", 11, codec.GROUP_GUARD.encode(guard(8)))
    assert reader() == {3: guard(7), 11: guard(8)}
    assert bump_era(settings).guards == 3
    assert reader() == {}


def test_an_open_transaction_on_meta_delays_nobody(settings: Settings, reader: GuardReader) -> None:
    """A frozen owner's, for instance: its guard is not there yet, the others are, within the reader's time."""
    write(settings, "group", 1, codec.GROUP_GUARD.encode(guard(7)))
    frozen = Producer(
        {"bootstrap.servers": settings.require_bootstrap(), "transactional.id": f"{settings.prefix}.frozen"}
    )
    frozen.init_transactions(10)
    frozen.begin_transaction()
    frozen.produce(
        settings.names.meta, codec.GROUP_GUARD.encode(guard(9)), guard_key("group", 1), partition=0
    )
    frozen.flush(10)
    assert reader() == {1: guard(7)}
    committed(frozen, settings.require_bootstrap(), settings.names.meta, 0)
    assert reader() == {1: guard(9)}


def test_a_guard_that_nobody_can_read_is_refused_naming_what_removes_it(
    settings: Settings, reader: GuardReader
) -> None:
    write(settings, "group", 0, b"garbage")
    with pytest.raises(Refused, match=r"g/group/0.*`dueline era bump`"):
        reader()
    bump_era(settings)
    assert reader() == {}


def test_an_unreachable_store_is_said_within_its_time(prefix: str) -> None:
    nowhere = load_settings(bootstrap_servers="127.0.0.1:9", prefix=prefix)
    reader = GuardReader(nowhere.client_config(), nowhere.names, "group", timeout_ms=500)
    started = time.monotonic()
    with pytest.raises(StoreUnreachable):
        reader()
    assert time.monotonic() - started < 20
    reader.close()


@pytest.mark.timeout(150)
def test_bumps_at_once_begin_an_era_each(settings: Settings) -> None:
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: bump_era(settings), range(3)))
    assert sorted((bump.old, bump.new) for bump in done) == [(1, 2), (2, 3), (3, 4)]
    assert load_era(settings) == 4


def test_a_bump_whose_answer_was_lost_is_not_made_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if another era was begun meanwhile; one that was not made is not taken for made (the test above)."""
    commit, others = MetaTopic._commit, list[EraBump]()

    def answer_lost(self: MetaTopic, producer: Producer, puts: Mapping[bytes, Any], nonce: bytes) -> None:
        commit(self, producer, puts, nonce)
        if ERA_KEY in puts and not others:
            monkeypatch.setattr(MetaTopic, "_commit", commit)
            others.append(bump_era(settings))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(MetaTopic, "_commit", answer_lost)
    bump = bump_era(settings)
    assert [(each.old, each.new) for each in (bump, *others)] == [(1, 2), (2, 3)]
    assert load_era(settings) == 3
