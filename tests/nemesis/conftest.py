"""Cases are played several at a time, each in an installation of its own; every test waits for its own case."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from nemesis.cases import Case, Played, play, turn

ROTATION = "DUELINE_KILL_POINT_TURN"
"""Set to a number: play only that turn of the rotation, six cases. The commit count makes a good one."""
AT_ONCE = int(os.environ.get("DUELINE_NEMESIS_AT_ONCE", "3"))
LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LINES] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get(ROTATION):
        return
    chosen = set(turn(int(os.environ[ROTATION])))
    dropped = [item for item in items if isinstance(case := _case(item), Case) and case not in chosen]
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=dropped)
    config.stash[LINES].append(f"turn {os.environ[ROTATION]}: {', '.join(map(str, sorted(chosen)))}")


def _case(item: pytest.Item) -> object:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("case") if callspec else None


@pytest.fixture(scope="session")
def plays(
    request: pytest.FixtureRequest, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[Played]]]:
    """All collected cases, under way."""
    home = tmp_path_factory.mktemp("cases")
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="case")
    wanted = [case for item in request.session.items if isinstance(case := _case(item), Case)]
    yield {case: pool.submit(play, case, broker, home / str(case)) for case in wanted}
    pool.shutdown(cancel_futures=True)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to the table at the end of the run."""
    return request.config.stash[LINES].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[LINES]:
        terminalreporter.section("nemesis")
        for line in lines:
            terminalreporter.write_line(line)
