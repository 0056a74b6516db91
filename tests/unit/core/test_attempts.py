"""Attempts as their acks tell them."""

from __future__ import annotations

from typing import Any

from pipeline.core.attempts import fold_attempts, last_word, outcome_of
from pipeline.core.job import Ack, AckState


def ack(state: AckState, token: int, *, run: int = 1, attempt: int = 1, **more: Any) -> Ack:
    return Ack(
        job_id="j",
        occurrence_id="j",
        run=run,
        attempt=attempt,
        token=token,
        worker="w",
        handler="h",
        state=state,
        at=token,
        work_offset=0,
        **more,
    )


def outcomes(*acks: Ack) -> list[tuple[int, str]]:
    (attempts,) = fold_attempts(acks).values()
    return [(token, outcome_of(attempts, token) or "started") for token in sorted(attempts)]


def test_an_attempt_is_what_its_last_ack_says_whatever_the_order_of_start_and_end() -> None:
    start, end = ack(AckState.STARTED, 1), ack(AckState.SUCCEEDED, 1)
    assert outcomes(start, end) == outcomes(end, start) == [(1, "succeeded")]


def test_a_released_attempt_stays_beside_the_one_that_has_its_number_again() -> None:
    acks = [ack(AckState.STARTED, 1), ack(AckState.RELEASED, 1), ack(AckState.SUCCEEDED, 2)]
    assert outcomes(*acks) == [(1, "released"), (2, "succeeded")]


def test_a_start_that_another_followed_or_that_its_run_outlived_is_lost() -> None:
    first, second = ack(AckState.STARTED, 1), ack(AckState.STARTED, 2, attempt=2)
    assert outcomes(first, second) == [(1, "lost"), (2, "started")]
    attempts = fold_attempts([ack(AckState.SUCCEEDED, 1), second])[1]
    assert outcome_of(attempts, 2) == "lost"


def test_the_end_of_a_run_outranks_every_start_of_it() -> None:
    for order in (1, -1):
        acks = [ack(AckState.SUCCEEDED, 1), ack(AckState.STARTED, 2, attempt=2)][::order]
        word = last_word(fold_attempts(acks)[1])
        assert word is not None
        assert word.state is AckState.SUCCEEDED
    assert last_word({}) is None
