"""The steps that a dispatcher passes, in the order that DESIGN §5.3 proves safe; a kill point can name each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from unit.test_dispatcher import House, steps

from pipeline.adapters.memory import CommitFault
from pipeline.dev.killpoints import STEPS

OF_A_TRANSACTION = STEPS[STEPS.index("begun") : STEPS.index("applied")]
"""The log's own steps, which the in-memory log has not; the order of those is tested with the producer."""


@pytest.fixture
def house() -> House:
    return House()


def passed(house: House, count: int = 5) -> list[str]:
    """Steps of a dispatcher, with the commits of its log among them."""
    found: list[str] = []
    dispatcher = house.dispatcher("d")
    log = house.logs["d"]
    commit = log.commit

    def committing(*arguments: Any) -> None:
        commit(*arguments)
        found.append("commit")

    log.commit = committing  # type: ignore[method-assign]
    dispatcher._at = found.append
    steps(dispatcher, count)
    return found


def between(found: Sequence[str], first: str, last: str) -> list[str]:
    start = found.index(first)
    return list(found[start : found.index(last, start) + 1])


def test_a_step_that_fires_passes_every_step_in_order(house: House) -> None:
    house.job()
    found = passed(house)
    expected = [step for step in STEPS[4:] if step not in OF_A_TRANSACTION]
    assert between(found, "chosen", "applied") == [*expected[:-1], "commit", "applied"]


def test_a_takeover_passes_its_steps_around_its_commit(house: House) -> None:
    found = passed(house)
    assert between(found, "takeover_chosen", "takeover_committed") == [
        "takeover_chosen",
        "commit",
        "takeover_committed",
    ]


def test_every_step_of_the_loop_has_a_kill_point_and_no_kill_point_is_never_passed(house: House) -> None:
    house.job()
    assert {*passed(house), *OF_A_TRANSACTION} == {*STEPS, "commit"}


def test_an_idle_step_is_a_poll_and_a_fold(house: House) -> None:
    assert passed(house, 8)[-4:] == ["polled", "ingested"] * 2


def test_a_refused_commit_is_not_applied(house: House) -> None:
    dispatcher = house.dispatcher("d")
    steps(dispatcher)
    house.job()
    found: list[str] = []
    dispatcher._at = found.append
    house.logs["d"].faults.append(CommitFault.REFUSED)
    dispatcher.step(0)
    assert found[-1] == "snapshot"
    dispatcher.step(0)
    assert found[-1] == "applied"
