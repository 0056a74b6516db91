"""The server that `dueline dev` starts beside the rest."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.cli import dev
from pipeline.config import load_settings


@pytest.fixture
def store() -> dev.Store:
    return dev.Store("external", "127.0.0.1:9092")


def test_it_serves_this_machine_alone_and_nobody_waits_for_it(store: dev.Store) -> None:
    settings = load_settings(server_port=0, server_host="0.0.0.0")
    serving = dev._serving(settings)
    assert serving is not None
    *others, server = dev._roles(store, settings, [], serving)
    assert [role.name for role in others] == ["dispatcher", "worker"]
    assert (server.name, server.ready) == ("server", None)
    assert serving.url == f"http://127.0.0.1:{serving.port}"


def test_without_what_it_needs_the_rest_goes_on(store: dev.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "find_spec", lambda name: None if name == "nicegui" else object())
    settings = load_settings()
    assert dev._serving(settings) is None
    assert [role.name for role in dev._roles(store, settings, [], None)] == ["dispatcher", "worker"]


def test_handlers_here_schedule_for_the_store_here(store: dev.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_URL", "https://company.example")
    monkeypatch.setenv("DUELINE_TOKEN", "dl_x")
    environment: dict[str, Any] = dev._environment(store, load_settings())
    assert not {"DUELINE_URL", "DUELINE_TOKEN"} & environment.keys()
    assert environment["DUELINE_BOOTSTRAP_SERVERS"] == store.bootstrap
