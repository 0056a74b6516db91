"""The same events, chosen by hypothesis: what fails is shrunk to the shortest sequence, with the plainest choices."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sim.script import WEIGHTS, Play

SHRINKING_S = 360
"""What fails is made short first, for up to five minutes."""
SALTS = st.integers(0, 1 << 12)
RARE = sorted(name for name, weight in WEIGHTS.items() if weight < 1)
ASKED = [
    "create",
    "create_by_command",
    "create_keyed",
    "cancel",
    "reschedule",
    "update",
    "requeue",
    "release",
]
FAULTS = [
    "strike",
    "fault",
    "cut_off",
    "expire",
    "lose_index",
    "save_index",
    "old_index",
    "resend",
    "garbage",
]


class Installation(RuleBasedStateMachine):
    play: Play | None = None

    @initialize(dispatchers=st.integers(1, 3))
    def build(self, dispatchers: int) -> None:
        self.play = Play(dispatchers)

    def _happen(self, name: str, salt: int) -> None:
        assert self.play is not None
        self.play.happen(name, salt)

    @rule(salt=SALTS)
    def everybody_steps(self, salt: int) -> None:
        self._happen("step_all", salt)

    @rule(salt=SALTS)
    def somebody_steps(self, salt: int) -> None:
        self._happen("step_one", salt)

    @rule(name=st.sampled_from(ASKED), salt=SALTS)
    def somebody_asks(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(salt=SALTS)
    def a_run_ends(self, salt: int) -> None:
        self._happen("end_run", salt)

    @rule(name=st.sampled_from(["advance", "advance", "hour"]), salt=SALTS)
    def time_passes(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(name=st.sampled_from(FAULTS), salt=SALTS)
    def something_fails(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    @rule(salt=SALTS)
    def all_is_mended(self, salt: int) -> None:
        self._happen("heal", salt)

    @precondition(lambda self: self.play is not None)
    @rule(name=st.sampled_from(RARE), salt=SALTS)
    def something_rare(self, name: str, salt: int) -> None:
        self._happen(name, salt)

    def teardown(self) -> None:
        if self.play is not None and not self.play.watch.wrong:
            self.play.finish()


TestInstallation = Installation.TestCase
TestInstallation.pytestmark = pytest.mark.timeout(SHRINKING_S)  # type: ignore[attr-defined]
TestInstallation.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
