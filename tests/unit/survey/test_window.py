"""Windows and filters as a user gives them, and how much of a window is still there."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.survey import Filter, State, Window, check_kept, window
from tests.unit.survey.conftest import DUE, HOUR, Yard

NOW = DUE + 86_400_000


def test_a_window_has_its_beginning_and_not_its_end() -> None:
    assert [at in HOUR for at in (DUE - 1, DUE, DUE + 3_599_999, DUE + 3_600_000)] == [
        False,
        True,
        True,
        False,
    ]


def test_a_window_ends_now_unless_it_is_told() -> None:
    assert window(DUE, None, NOW) == Window(from_ms=DUE, to_ms=NOW)
    assert window(DUE, NOW, NOW) == Window(from_ms=DUE, to_ms=NOW)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "field", "problem"),
    [
        (NOW, None, "--from", "is in the future: the store's clock says 2027-01-16T09:00:00.000Z"),
        (DUE, NOW + 1, "--to", "2027-01-16T09:00:00.001Z is in the future"),
        (DUE, DUE, "--to", "is not after --from"),
        (DUE, DUE - 1, "--to", "2027-01-15T08:59:59.999Z is not after --from, 2027-01-15T09:00:00.000Z"),
    ],
)
def test_a_window_that_makes_no_sense(from_ms: int, to_ms: int | None, field: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        window(from_ms, to_ms, NOW)
    assert refused.value.field == field
    assert problem in refused.value.problem


@pytest.mark.parametrize("name", ["handler", "schedule", "queue"])
def test_a_name_that_can_be_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^--{name}: "):
        Filter(**{name: "No Name"})


@pytest.mark.parametrize(
    ("outcomes", "wanted"),
    [
        ((), set(State)),
        ((State.FAILED,), {State.FAILED, State.DEAD}),
        ((State.DEAD,), {State.DEAD}),
        ((State.UNACKED, State.SKIPPED), {State.UNACKED, State.SKIPPED}),
    ],
)
def test_failed_includes_dead(outcomes: tuple[State, ...], wanted: set[State]) -> None:
    asked = Filter(outcomes=frozenset(outcomes))
    assert {state for state in State if asked.wants(state)} == wanted


def test_a_filter_looks_at_all_that_was_seen(yard: Yard) -> None:
    yard.fire(yard.run(labels={"a": "b"}))
    (seen,) = yard.seen()
    assert Filter(queue="default", labels={"a": "b"}, outcomes=frozenset({State.WAITING})).matches(seen)
    for other in (
        {"queue": "mail"},
        {"handler": "x"},
        {"labels": {"a": "c"}},
        {"outcomes": frozenset({State.DEAD})},
        {"key_prefix": ""},
    ):
        fields: dict[str, Any] = other
        assert not Filter(**fields).matches(seen)


# -- what is kept -------------------------------------------------------------------------------------------


def kept(yard: Yard, wanted: Filter | None = None, when: Window = HOUR) -> int | None:
    return check_kept(yard.ground, when, wanted or Filter(), NOW)


def test_all_is_there_as_long_as_nothing_was_deleted(yard: Yard) -> None:
    assert kept(yard) is None
    yard.fire(yard.run())
    assert kept(yard) is None


def test_what_was_deleted_may_be_of_the_window_up_to_the_first_record_left(yard: Yard) -> None:
    log = yard.store.cluster.partition(yard.store.names.work("default"), 1)
    for n in range(40):
        yard.fire(yard.run(n))
        yard.store.clock.advance(1_000)
    log.start = 5
    first = log.read(5, 1)[0][0].timestamp()[1]
    assert kept(yard) == first
    assert kept(yard, when=Window(from_ms=first, to_ms=first + 1)) is None
    yard.store.add_queues({"mail": 1})
    assert kept(yard, Filter(queue="mail")) is None


def test_a_window_of_which_nothing_is_left_is_refused(yard: Yard) -> None:
    log = yard.store.cluster.partition(yard.store.names.work("default"), 0)
    for n in range(20):
        yard.fire(yard.run(n))
    log.start = log.end
    with pytest.raises(
        InvalidInput, match=r"^--from: all of the window is gone: what was due before "
    ) as refused:
        kept(yard, when=Window(from_ms=NOW - WORK_RETENTION_MS - 10, to_ms=NOW - WORK_RETENTION_MS))
    assert "2026-12-17T09:00:00.000Z is no longer kept" in refused.value.problem
    assert kept(yard, when=Window(from_ms=NOW - WORK_RETENTION_MS - 10, to_ms=NOW)) == NOW - WORK_RETENTION_MS
