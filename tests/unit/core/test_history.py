"""The attempt history of a dead letter: what goes first, what stays, and that it fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import codec
from pipeline.core.history import brief, fit, lost
from pipeline.core.job import AttemptRecord, DeadLetter, Failure

LETTER = DeadLetter(reason="r", detail="", at=0, source_topic="t", source_partition=0, source_offset=0)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
FAILURES = st.builds(Failure, type=TEXT, message=TEXT, trace=st.none() | TEXT)
RECORDS = st.builds(
    AttemptRecord,
    run=st.integers(1, 2**31 - 1),
    attempt=st.integers(-(2**31), 2**31 - 1),
    worker=st.text("ab.é", max_size=40),
    token=st.integers(-(2**63), 2**63 - 1),
    at=st.integers(-(2**63), 2**63 - 1),
    outcome=st.sampled_from(["dead", "retrying", "lost"]),
    error=st.none() | FAILURES,
)


def encoded(attempts: tuple[AttemptRecord, ...]) -> int:
    """Bytes that the history takes in a dead letter."""
    with_them = codec.DEAD_LETTER.encode(replace(LETTER, attempts=attempts))
    return len(with_them) - len(codec.DEAD_LETTER.encode(LETTER)) + 1


def attempts(count: int, *, message: str = "m" * 100, trace: str | None = "t" * 1000) -> list[AttemptRecord]:
    error = Failure(type="ValueError", message=message, trace=trace)
    return [
        AttemptRecord(run=n, attempt=1, worker="w", token=n, at=n, outcome="retrying", error=error)
        for n in range(1, count + 1)
    ]


def traced(kept: tuple[AttemptRecord, ...]) -> list[int]:
    return [one.run for one in kept if one.error is not None and one.error.trace is not None]


@given(records=st.lists(RECORDS, max_size=8), limit=st.integers(600, 6000))
def test_what_is_kept_fits_and_holds_the_first_and_the_last(records: list[AttemptRecord], limit: int) -> None:
    kept = fit(records, limit)
    assert encoded(kept) <= limit
    names = [(one.run, one.attempt, one.token, one.at, one.outcome, one.worker) for one in records]
    left = [(one.run, one.attempt, one.token, one.at, one.outcome, one.worker) for one in kept]
    assert left[:1] == names[:1]
    assert left[-1:] == names[-1:]
    rest = iter(names)
    assert all(name in rest for name in left), "in their order"


def test_nothing_is_cut_from_what_fits() -> None:
    all_of_them = tuple(attempts(5))
    assert fit(all_of_them, encoded(all_of_them) + 5 * 64) == all_of_them
    assert fit([], 100) == ()


def test_the_traces_of_the_oldest_attempts_go_first() -> None:
    kept = fit(attempts(5), 4_000)
    assert [one.run for one in kept] == [1, 2, 3, 4, 5]
    assert traced(kept) == [3, 4, 5]


def test_then_whole_attempts_go_and_the_first_and_the_last_stay() -> None:
    kept = fit(attempts(100), 5_000)
    runs = [one.run for one in kept]
    assert runs == [1, *range(runs[1], 101)]
    assert 10 < len(runs) < 25
    assert traced(kept) == [100]


def test_an_attempt_without_an_error_has_nothing_to_lose_but_itself() -> None:
    quiet = [replace(one, error=None) for one in attempts(50)]
    kept = fit(quiet, 1_000)
    assert (kept[0], kept[-1]) == (quiet[0], quiet[-1])
    assert 2 < len(kept) < 20


def test_a_last_attempt_that_is_too_long_alone_loses_its_trace_and_the_end_of_its_message() -> None:
    for records in (attempts(1, message="é" * 9_000), attempts(3, message="é" * 9_000)):
        kept = fit(records, 2_001)
        assert encoded(kept) <= 2_001
        assert {one.run for one in kept} == {1, len(records)}
        assert traced(kept) == []
        assert kept[-1].error is not None
        assert 300 < len(kept[-1].error.message) < 1_000
        assert set(kept[-1].error.message) == {"é"}


def test_an_attempt_that_is_short_enough_is_kept_whole_beside_one_that_is_not() -> None:
    first, last = attempts(1)[0], attempts(1, message="x" * 9_000)[0]
    kept = fit([first, last], 3_000)
    assert kept[0].error == Failure(type="ValueError", message="m" * 100)
    assert encoded(kept) <= 3_000


@pytest.mark.parametrize("type_", ["T" * 9_000, "T"])
def test_a_name_of_an_error_without_end_is_cut_too(type_: str) -> None:
    (record,) = attempts(1)
    error = Failure(type=type_, message="m" * 9_000)
    (kept,) = fit([replace(record, error=error)], 1_000)
    assert encoded((kept,)) <= 1_000
    assert kept.error is not None
    assert kept.error.type == type_[: len(kept.error.type)] != ""


def test_the_numbers_and_lengths_of_an_attempt_take_no_more_than_is_reckoned() -> None:
    worst = AttemptRecord(
        run=2**31 - 1, attempt=2**31 - 1, worker="w" * 300, token=2**63 - 1, at=2**63 - 1, outcome="o" * 300,
        error=Failure(type="t" * 9_000, message="m" * 9_000, trace="x" * 9_000),
    )  # fmt: skip
    for count in (1, 2, 30):
        records = [worst] * count
        reckoned = count * (64 + 600 + 27_000)
        assert encoded(tuple(records)) <= reckoned
        assert fit(records, reckoned) == tuple(records)
        assert fit(records, reckoned - 1) != tuple(records)


def test_a_retry_carries_an_attempt_without_its_trace_and_with_the_beginning_of_its_message() -> None:
    (record,) = attempts(1, message="é" * 301)
    error = Failure(type="ValueError", message="é" * 300)
    assert brief(record) == replace(record, error=error)
    assert brief(replace(record, error=None)) == replace(record, error=None)


def test_starts_that_nobody_ended_are_told_by_number_and_only_the_latest_few() -> None:
    assert lost(2, 1, 9) == []
    told = [(one.run, one.attempt, one.worker, one.token, one.at, one.outcome) for one in lost(2, 3, 9)]
    assert told == [(2, 1, "", 0, 9, "lost"), (2, 2, "", 0, 9, "lost")]
    assert [one.attempt for one in lost(2, 1_000, 9)] == [995, 996, 997, 998, 999]
