"""A dispatcher killed or frozen at any step of its loop: every due job fires exactly once, none early (DESIGN §2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest
from nemesis.cases import ALL, MORE, TURN, Case, Played, turn

pytestmark = pytest.mark.timeout(420)
"""A case waits for those before it in the pool."""


@pytest.mark.parametrize("case", [*ALL, *MORE], ids=str)
def test_struck_at_a_step_loses_and_doubles_nothing(
    case: Case, plays: Mapping[Case, Future[Played]], report: Callable[[str], None]
) -> None:
    played = plays[case].result()
    wrong = len(played.found)
    report(
        f"{case.step:<19} {case.action}  {played.jobs} jobs  {wrong} wrong"
        f"  worst lateness {played.worst_ms / 1000:5.1f} s of {case.limit_ms / 1000:.0f} s"
    )
    assert played.found == []
    assert played.worst_ms <= case.limit_ms


def test_the_rotation_comes_round_to_every_case() -> None:
    assert len(ALL) == 24
    for start in range(4):
        turns = [turn(start + n) for n in range(len(ALL) // TURN)]
        assert all(len(cases) == TURN for cases in turns)
        assert sorted(case for cases in turns for case in cases) == sorted(ALL)
