"""What every worker has beside the handlers of its application."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asked import context

from pipeline.config import load_settings
from pipeline.core.handler import Dead, InvalidPayload, Registry
from pipeline.handlers import builtin, with_builtin


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "DUELINE_HTTP_ALLOW",
        "DUELINE_SCRIPT_ALLOW",
        "DUELINE_TOPIC_ALLOW",
        "DUELINE_BOOTSTRAP_SERVERS",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def dev_store(tmp_path: Path) -> Iterator[str]:
    """The file and the port of a `dueline dev` that runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
        (tmp_path / "dev.json").write_text(json.dumps({"bootstrap": bootstrap, "pid": os.getpid()}))
        yield bootstrap


def own(ctx: Any, payload: Any) -> str:
    return "ours"


def test_three_handlers_need_no_code(tmp_path: Path) -> None:
    registry = builtin(load_settings(state_dir=tmp_path))
    assert registry.names() == ("http", "kafka", "script")
    http, script = registry.get("http"), registry.get("script")
    assert http is not None
    assert http.asynchronous
    assert script is not None
    assert (script.asynchronous, script.timeout_ms) == (False, 3_600_000)


def test_an_applications_own_handler_wins_and_the_others_stay(tmp_path: Path) -> None:
    application = Registry()
    application.add("http", own)
    application.add("email.send", own, aliases=("kafka",))
    both = with_builtin(application, load_settings(state_dir=tmp_path))
    assert both.names() == ("email.send", "http", "kafka", "script")
    for name in ("http", "kafka"):
        spec = both.get(name)
        assert spec is not None
        assert spec.function is own
    assert application.names() == ("email.send", "http", "kafka")


def test_unless_the_operator_says_so_nothing_is_run_and_nothing_appended(tmp_path: Path) -> None:
    registry = builtin(load_settings(state_dir=tmp_path))
    for name, payload in (("script", {"command": "/bin/true"}), ("kafka", {"topic": "x", "value": "y"})):
        spec = registry.get(name)
        assert spec is not None
        with pytest.raises(Dead, match=r"DUELINE_(SCRIPT|TOPIC)_ALLOW"):
            spec.invoke(context(), payload)


def call_http(payload: object, **settings: Any) -> Any:
    spec = builtin(load_settings(**settings)).get("http")
    assert spec is not None
    return asyncio.run(spec.invoke(context(), payload))


def test_this_machine_is_called_from_a_development_store_only(tmp_path: Path, dev_store: str) -> None:
    payload = {"url": f"http://{dev_store}/", "timeout": "100ms"}
    for bootstrap in (None, dev_store):
        with pytest.raises(Exception, match="no complete answer") as error:
            call_http(payload, state_dir=tmp_path, bootstrap_servers=bootstrap)
        assert type(error.value).__name__ == "CallFailed"
    with pytest.raises(Dead, match="not public"):
        call_http(payload, state_dir=tmp_path, bootstrap_servers="other:9092")


def test_a_payload_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidPayload, match="payload"):
        call_http("https://api.example/", state_dir=tmp_path)


def test_a_worker_that_calls_no_url_does_not_load_the_http_library() -> None:
    program = "import sys, pipeline.handlers; sys.exit('httpx' in sys.modules or 'httpcore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
