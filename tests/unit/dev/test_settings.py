"""The embedded broker's configuration (DESIGN §10)."""

from __future__ import annotations

from pathlib import Path

from pipeline.dev.settings import server_properties


def test_loopback_only_and_as_designed() -> None:
    text = server_properties(
        data=Path("/state/kafka/data"), host="127.0.0.1", port=1001, controller_port=1002
    )
    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1001,CONTROLLER://127.0.0.1:1002"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1001"
    assert settings["log.dirs"] == "/state/kafka/data"
    assert settings["group.min.session.timeout.ms"] == "3000"
    assert settings["group.initial.rebalance.delay.ms"] == "0"
    assert settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] == "1000"
    assert settings["auto.create.topics.enable"] == "false"
