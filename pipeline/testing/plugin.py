"""The pytest plugin: it comes with the package, and costs nothing before its fixture is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pipeline.client import Dueline
    from pipeline.testing.recorded import Recording


@pytest.fixture
def dueline_app() -> Dueline:
    """The app that `dueline` is about: define this fixture in your conftest.py to return yours."""
    raise pytest.UsageError("define a fixture `dueline_app` that returns your Dueline, in conftest.py")


@pytest.fixture
def dueline(dueline_app: Dueline) -> Iterator[Recording]:
    """The app of `dueline_app`, recorded: `dueline.scheduled` is what it was asked for, `dueline.run(handler, payload)`
    runs one job, `dueline.clock` is the store's time."""
    from pipeline.testing.recorded import recording

    with recording(dueline_app) as recorded:
        yield recorded
