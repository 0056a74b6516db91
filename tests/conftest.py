"""Fixtures of every suite."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from pipeline.dev.broker import EmbeddedBroker

# What CI finds must not depend on chance; developers' machines look for new examples.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

FIRST_BROKER_TEST_TIMEOUT_S = 300
"""On a machine with an empty cache that test pays for fetching the broker."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    using = [item for item in items if "broker" in getattr(item, "fixturenames", ())]
    for item in using:
        item.add_marker("broker")
    if using:
        using[0].add_marker(pytest.mark.timeout(FIRST_BROKER_TEST_TIMEOUT_S), append=False)


@pytest.fixture(scope="session", autouse=True)
def no_silent_end() -> Iterator[None]:
    """`os._exit` in the test process would end the run as if all had passed; a forked child may call it."""
    here, leave = os.getpid(), os._exit

    def guarded(status: int) -> NoReturn:
        if os.getpid() == here:
            raise AssertionError(f"os._exit({status}) in the test process")
        leave(status)

    os._exit = guarded
    yield
    os._exit = leave


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of the run's one real broker, or of a running one named by DUELINE_TEST_BOOTSTRAP.

    A broker that cannot start fails the tests that need it: a suite that skips proves nothing.
    """
    running = os.environ.get("DUELINE_TEST_BOOTSTRAP")
    if running:
        yield running
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as embedded:
        yield embedded.bootstrap


@pytest.fixture
def prefix() -> str:
    """A namespace of this test alone on the shared broker."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits for a condition: `eventually(lambda: …, timeout=10.0)` fails if it does not come true."""

    def wait(condition: Callable[[], object], timeout: float = 10.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def ended() -> Callable[[int], bool]:
    """Whether a process has ended, all its threads; one that its parent has not reaped yet has."""

    def is_ended(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
        except (ProcessLookupError, FileNotFoundError):
            return True

    return is_ended
