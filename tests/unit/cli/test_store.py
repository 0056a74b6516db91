"""Commands that go to Kafka whatever server is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

COMMANDS = [
    ("dead", "requeue", "--all"),
    ("queue", "list"),
    ("queue", "pause", "default"),
    ("queue", "purge", "default"),
    ("replay", "list"),
    ("token", "list"),
    ("cron", "sync", "{file}"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_where_a_server_is_named_and_kafka_is_not_nothing_is_done(
    dueline: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any, words: tuple[str, ...]
) -> None:
    """The Kafka of a development store that runs here may be another installation than the server's."""
    (tmp_path / "nightly.crontab").write_text("# nothing\n")
    monkeypatch.setenv("DUELINE_URL", "https://staging.example")
    asked = [word.format(file=tmp_path / "nightly.crontab") for word in words]
    refused = dueline(*asked)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(
        "dueline: DUELINE_URL: names a server, but this command always goes to Kafka: "
    )
    monkeypatch.setenv("DUELINE_BOOTSTRAP_SERVERS", "kafka.example:9092")
    told = dueline(*asked).err
    assert (
        "goes to Kafka at kafka.example:9092, as this command always does, not to https://staging.example"
        in told
    )
    monkeypatch.delenv("DUELINE_URL")
    assert "goes to Kafka" not in dueline(*asked).err
