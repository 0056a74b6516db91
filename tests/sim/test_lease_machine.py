"""The same events on a queue and its workers, chosen by hypothesis: what fails is shrunk to the shortest sequence."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sim.lease_script import WEIGHTS, Play

SHRINKING_S = 360
"""What fails is made short first, for up to five minutes."""
SALTS = st.integers(0, 1 << 12)
RUNS = [*sorted(name for name in WEIGHTS if name.startswith("fire")), "garbage", "stop", "lift"]
TIME = ["step_one", "step_all", "tick", "pause", "work", "work", "minute"]
CREW = ["grow", "shrink", "rebuild"]
FAULTS = sorted(WEIGHTS.keys() - {*RUNS, *TIME, *CREW, "rest"})


class Leases(RuleBasedStateMachine):
    play: Play | None = None

    @initialize(slots=st.integers(2, 4), partitions=st.integers(1, 3))
    def build(self, slots: int, partitions: int) -> None:
        self.play = Play(slots, partitions)

    def _happen(self, name: str, salt: int) -> None:
        assert self.play is not None
        self.play.happen(name, salt)

    @rule(name=st.sampled_from(TIME), salt=SALTS)
    def time_passes(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(name=st.sampled_from(RUNS), salt=SALTS)
    def somebody_asks(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(name=st.sampled_from(CREW), salt=SALTS)
    def the_crew_changes(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(name=st.sampled_from(FAULTS), salt=SALTS)
    def something_fails(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    def teardown(self) -> None:
        if self.play is not None and not self.play.watch.wrong:
            self.play.finish()


TestLeases = Leases.TestCase
TestLeases.pytestmark = pytest.mark.timeout(SHRINKING_S)  # type: ignore[attr-defined]
TestLeases.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
