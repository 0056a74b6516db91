"""The server that `dueline dev` starts beside the rest."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pipeline.cli import dev
from pipeline.config import load_settings


@pytest.fixture
def store() -> dev.Store:
    return dev.Store("external", "127.0.0.1:9092")


def test_it_serves_this_machine_alone_and_nobody_waits_for_it(store: dev.Store) -> None:
    settings = load_settings(server_port=0, server_host="0.0.0.0")
    serving = dev._serving(store, settings)
    assert serving is not None
    *others, server = dev._roles(store, settings, [], serving)
    assert [role.name for role in others] == ["dispatcher", "worker"]
    assert (server.name, server.ready) == ("server", None)
    assert serving.url == f"http://127.0.0.1:{serving.port}"


def test_without_what_it_needs_the_rest_goes_on(store: dev.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "find_spec", lambda name: None if name == "nicegui" else object())
    settings = load_settings()
    assert dev._serving(store, settings) is None
    assert [role.name for role in dev._roles(store, settings, [], None)] == ["dispatcher", "worker"]


def test_handlers_here_schedule_for_the_store_here(store: dev.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUELINE_URL", "https://company.example")
    monkeypatch.setenv("DUELINE_TOKEN", "dl_x")
    environment: dict[str, Any] = dev._environment(store, load_settings())
    assert not {"DUELINE_URL", "DUELINE_TOKEN"} & environment.keys()
    assert environment["DUELINE_BOOTSTRAP_SERVERS"] == store.bootstrap


STARTED = '{"ts": "2030-01-01T00:00:00.000Z", "action": "started", "url": "http://127.0.0.1:9664"}'


def test_it_is_named_while_it_answers_and_no_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """Else another server at its port would be asked, which may be of another store."""
    told: list[str | None] = []
    printer = dev.TerminalPrinter("try", dev.Serving(9664, told.append))
    printer.event("server", "started (pid 1)")
    printer.line("worker", STARTED)
    printer.line("server", '{"ts": "2030-01-01T00:00:00.000Z", "action": "caught_up"}')
    assert told == [None]
    printer.line("server", STARTED)
    assert told == [None, "http://127.0.0.1:9664"]
    assert capsys.readouterr().err.endswith("dueline: console: http://127.0.0.1:9664\n")
    printer.event("worker", "died (SIGKILL), restarting in 0.5 s")
    printer.event("server", "died (exit code 4), restarting in 0.5 s")
    assert told[2:] == [None]


def test_it_starts_at_another_port_where_its_own_was_taken(
    store: dev.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(dev, "spawn", lambda argv, **_: started.append(argv))
    serving = dev._serving(store, load_settings(server_port=0))
    assert serving is not None
    *_, server = dev._roles(store, load_settings(), [], serving)
    taken = serving.port
    with socket.create_server(("127.0.0.1", taken)):
        server.start()
    server.start()
    ports = [int(argv[-1]) for argv in started]
    assert ports[0] != taken
    assert ports[1] == ports[0] == serving.port, "where nobody is, it stays"
