"""Who is in a cluster: a store whose brokers were all thought dead for a moment names none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.adapters import kafka_topics
from pipeline.adapters.kafka_topics import cluster
from pipeline.core.errors import StoreUnreachable
from pipeline.core.names import Names

CONFIG = {"bootstrap.servers": "store.example:9092"}


class Told:
    """A consumer that is told these brokers, one answer after the other, the last one for ever."""

    def __init__(self, answers: list[dict[int, str]]) -> None:
        self.answers, self.closed = answers, False

    def list_topics(self, _topic: str, _timeout: float) -> Any:
        brokers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return SimpleNamespace(brokers=brokers, cluster_id="abc")

    def close(self) -> None:
        self.closed = True


def asked(monkeypatch: pytest.MonkeyPatch, *answers: dict[int, str]) -> Told:
    made = Told([*answers])
    monkeypatch.setattr(kafka_topics, "Consumer", lambda _settings: made)
    monkeypatch.setattr(kafka_topics, "LOOK_S", 0.0)
    return made


def test_an_answer_that_names_no_broker_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asked(monkeypatch, {}, {}, {7: "here"})
    found = cluster(CONFIG, Names("p"), 5.0)
    assert (found.cluster_id, [*found.brokers]) == ("abc", [7])
    assert told.closed


def test_a_store_whose_brokers_stay_dead_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    told = asked(monkeypatch, {})
    with pytest.raises(
        StoreUnreachable, match=r"cannot reach Kafka at store\.example:9092: describing the cluster"
    ):
        cluster(CONFIG, Names("p"), 0.0)
    assert told.closed
