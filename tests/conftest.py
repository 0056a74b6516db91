"""Fixtures of every suite."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from pipeline.dev import broker as embedding
from pipeline.dev import settings as broker_settings
from pipeline.dev.broker import EmbeddedBroker

# On a machine that does much else the start of a broker takes what it takes: all tests of a process stand on it.
embedding.READY_TIMEOUT_S = embedding.FORMAT_TIMEOUT_S = 150.0

# No example has a deadline: a busy machine is slow, not wrong. What CI finds must not depend on chance; developers'
# machines look for new examples.
settings.register_profile(
    "dueline",
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dueline")

BROKER_START_S = 300
"""For the first test on the broker in each process: on a machine with an empty cache it is fetched first."""
BROKER_TEST_S = 120
"""For a test on the broker that says nothing else: it waits for others, who are slow where much else goes on."""
PATIENT = {"broker.session.timeout.ms": "120000"}
"""Its controller takes a broker for dead that was kept from the processor for three seconds, and its partitions have no
leader then. It is short for those that are killed and come back; this one is not."""
STARTED = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        _longest_first(items)
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker("broker")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(BROKER_TEST_S))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Before its time-out is looked at."""
    if item.get_closest_marker("broker") and not item.config.stash.get(STARTED, False):
        item.config.stash[STARTED] = True
        item.add_marker(pytest.mark.timeout(BROKER_START_S), append=False)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What is captured of a test that logs what is no text would end the process when it is handed to xdist."""
    report = yield
    report.sections = [
        (name, said.encode("utf-8", "backslashreplace").decode()) for name, said in report.sections
    ]
    return report


def _longest_first(items: list[pytest.Item]) -> None:
    """Or the longest begins last, and all wait for it. What a test is allowed is the best guess of what it takes."""
    allowed: Counter[str] = Counter()
    for item in items:
        mark, unit = item.get_closest_marker("timeout"), _unit(item.nodeid, item.config.rootpath)
        allowed[unit] = max(allowed[unit], int(mark.args[0]) if mark is not None else 0)
    items.sort(key=lambda item: allowed[_unit(item.nodeid, item.config.rootpath)], reverse=True)


def _unit(nodeid: str, root: Path) -> str:
    """What is given to one process: a test, or its file where its tests share a fixture or are quick."""
    file = nodeid.partition("::")[0]
    return file if _goes_together(root / file) else nodeid


@cache
def _goes_together(file: Path) -> bool:
    return "unit" in file.parts or 'scope="module"' in file.read_text("utf-8")


class Spread(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid, self.config.rootpath)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Spread | None:
    """`--dist loadgroup`, by groups of our own: any process that is free takes the next one."""
    return Spread(config, log) if config.getvalue("dist") == "loadgroup" else None


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
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_settings, "FIXED", broker_settings.FIXED | PATIENT)
        embedded.start()
    try:
        yield embedded.bootstrap
    finally:
        embedded.stop()


@pytest.fixture
def prefix() -> str:
    """A namespace of this test alone on the shared broker."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits for a condition: `eventually(lambda: …, timeout=30.0)` fails if it does not come true."""

    def wait(condition: Callable[[], object], timeout: float = 30.0) -> None:
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
