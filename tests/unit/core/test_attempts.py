"""Attempts as their acks tell them."""

from __future__ import annotations

from typing import Any

from pipeline.core.attempts import fold_attempts, history, last_word, outcome_of
from pipeline.core.job import Ack, AckState, Failure


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
    return [(record.token, record.outcome) for record in history(acks)]


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


def test_a_history_runs_over_all_runs_with_the_errors() -> None:
    failed = ack(AckState.RETRYING, 5, error=Failure(type="ValueError", message="no", trace="t"))
    dead = ack(AckState.DEAD, 9, run=2, error=Failure(type="ValueError", message="again"))
    first, last = history([dead, failed])
    assert (first.run, first.outcome, first.error) == (1, "retrying", failed.error)
    assert (last.run, last.at, last.error) == (2, 9, dead.error)


def test_a_history_that_is_too_long_loses_its_oldest_attempts_and_neither_the_first_nor_the_last() -> None:
    long = Failure(type="E", message="x" * 1_000)
    acks = [ack(AckState.RETRYING, run, run=run, error=long) for run in range(1, 101)]
    kept = history(acks, limit=20_000)
    assert [record.run for record in kept] == [1, *range(102 - len(kept), 101)]
    assert 15 < len(kept) < 20
    (only,) = history([ack(AckState.DEAD, 1, error=Failure(type="E", message="x" * 99_999))], limit=8_000)
    assert only.error is not None
    assert 7_000 < len(only.error.message) < 8_000
