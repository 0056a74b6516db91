"""States of an attempt."""

from pipeline.core.job import AckState


def test_an_attempt_that_was_started_or_given_back_has_not_ended():
    assert {state for state in AckState if not state.terminal} == {AckState.STARTED, AckState.RELEASED}
