"""What handlers make records with: jobs as the client makes them, topics looked up and remembered."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from pipeline import codec
from pipeline.config import load_settings
from pipeline.core.errors import InvalidInput
from pipeline.core.layout import Layout, default_layout
from pipeline.service.means import Layouts, Remembered, means
from pipeline.tray import Means

NOW = 1_700_000_000_000
LAYOUT = default_layout(queues={"default": 2})
WIDER = default_layout(queues={"default": 2, "mail": 2})


def made(layout: Layout = LAYOUT, again: Layout = LAYOUT) -> Means:
    settings = load_settings(bootstrap_servers="127.0.0.1:1")
    return means(
        settings, Layouts(layout, lambda: again), lambda: NOW, lambda topic: 3 if topic == "mine" else 0
    )


def test_a_job_is_put_at_its_home_as_the_client_would() -> None:
    ref, put = made().record({"handler": "mail", "payload": {"a": 1}, "in_": "10m"})
    run = codec.RUN.decode(put.value or b"")
    assert (ref.id, ref.status, ref.due_at) == (
        run.job_id,
        "created",
        datetime.fromtimestamp(NOW / 1000 + 600, UTC),
    )
    assert (put.topic, put.partition) == ("dueline.jobs", LAYOUT.home(ref.id))
    assert put.key == b"j/" + ref.id.encode()
    assert run.payload == b'{"a":1}'


def test_a_job_with_a_key_is_a_command_at_the_home_of_the_key() -> None:
    ref, put = made().record({"handler": "mail", "key": "invoice-5", "in_": "10m"})
    command = codec.COMMAND.decode(put.value or b"")
    assert (ref.status, command.verb, command.key) == ("accepted", "create", "invoice-5")
    assert put.partition == LAYOUT.home(ref.id)


def test_a_schema_that_was_announced_later_is_looked_up_once_a_second() -> None:
    asked: list[str] = []

    def again() -> Layout:
        asked.append("again")
        return replace(LAYOUT, fingerprints=("00ff",))

    layouts = Layouts(replace(LAYOUT, fingerprints=("0001",)), again)
    assert (layouts.announced("0001"), asked) == (True, [])
    assert (layouts.announced("00ff"), layouts.announced("00ff"), asked) == (True, True, ["again"])
    assert (layouts.announced("0bad"), asked) == (False, ["again"])


def test_a_queue_that_is_new_is_looked_up_and_one_that_is_none_is_refused() -> None:
    _, put = made(LAYOUT, WIDER).record({"handler": "mail", "queue": "mail", "in_": "1s"})
    assert codec.RUN.decode(put.value or b"").queue == "mail"
    with pytest.raises(InvalidInput, match="queue: 'mail' is unknown"):
        made().record({"handler": "mail", "queue": "mail", "in_": "1s"})


def test_own_topics_are_reserved() -> None:
    assert made().reserved("dueline.jobs")
    assert not made().reserved("mine")


def test_a_topic_is_asked_for_once_and_a_missing_one_each_time() -> None:
    asked: list[str] = []
    remembered = Remembered(lambda topic: (asked.append(topic), 3 if topic == "mine" else 0)[1])
    assert [remembered("mine"), remembered("mine"), remembered("gone"), remembered("gone")] == [3, 3, 0, 0]
    assert asked == ["mine", "gone", "gone"]
