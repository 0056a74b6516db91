"""`dueline doctor` beside a healthy `dueline dev`, which must leave it nothing to say but notes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

DUELINE = [sys.executable, "-m", "pipeline"]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    foreign = ("DUELINE_", "KAFKA_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return own | {"DUELINE_STATE_DIR": str(tmp_path / "state"), "DUELINE_SERVER_PORT": str(free_port())}


@pytest.fixture
def dev(shell: dict[str, str]) -> Iterator[None]:
    """A development store with its dispatcher and worker."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*DUELINE, "dev"], env=shell, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert any(line.startswith("dueline: ready") for line in process.stderr), "it ended"
        yield
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("dev")
def test_a_healthy_development_store_has_notes_at_most(
    shell: dict[str, str], eventually: Callable[..., None]
) -> None:
    def view() -> Any:
        done = subprocess.run([*DUELINE, "doctor", "--json"], env=shell, capture_output=True, timeout=60)
        return done.returncode, json.loads(done.stdout)

    looks: list[Any] = []

    def well() -> bool:
        looks.append(view())
        code, told = looks[-1]
        return code == 0 and told["warnings"] == 0

    eventually(well, timeout=60)
    _, told = looks[-1]
    assert {found["severity"] for found in told["findings"]} == {"note"}
    assert {found["check"] for found in told["findings"]} == {"brokers", "retention"}
