"""A survey counted by bucket of due time."""

from __future__ import annotations

import random

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.survey import Seen, State, Window
from pipeline.survey.outage import Delays, Tally, count, width_of

MINUTE = 60_000
WINDOW = Window(from_ms=90_000, to_ms=300_000)


def seen(due_at: int, state: State = State.SUCCEEDED, late: int | None = 0, **fields: object) -> Seen:
    fired_at = None if late is None else due_at + late
    values = ("o", "j", "h", "q", None, None, {}, due_at, due_at, fired_at, 1, state, 0, 0, 0)
    return Seen(*values)._replace(**fields)  # type: ignore[arg-type]


def test_buckets_are_multiples_of_their_width_and_the_first_is_cut_short() -> None:
    lines, total = count([seen(90_000), seen(119_999), seen(120_000), seen(299_999)], WINDOW, MINUTE)
    assert [(line.at, line.tally.due) for line in lines] == [
        (90_000, 2),
        (120_000, 1),
        (180_000, 0),
        (240_000, 1),
    ]
    assert total.due == 4


def test_on_time_is_within_a_second() -> None:
    _, total = count([seen(90_000, late=late) for late in (-5, 0, 1_000, 1_001, 9_000)], WINDOW, MINUTE)
    assert (total.on_time, total.late.count, total.late.longest) == (3, 2, 9_000)


def test_what_did_not_fire_is_neither_on_time_nor_late() -> None:
    _, total = count(
        [seen(90_000, State.PENDING, None), seen(90_000, State.SKIPPED, None, reason="misfire", times=7)],
        WINDOW,
        MINUTE,
    )
    assert (total.due, total.on_time, total.late.count) == (8, 0, 0)
    assert dict(total.skips) == {"misfire": 7}


def test_failed_includes_dead() -> None:
    _, total = count([seen(90_000, state) for state in State if state is not State.SKIPPED], WINDOW, MINUTE)
    assert (total.failed, total.states[State.DEAD], total.due) == (2, 1, len(State) - 1)


def test_percentiles_are_within_two_per_cent_and_the_longest_is_exact() -> None:
    rng = random.Random(7)
    values = sorted(int(rng.lognormvariate(9, 2)) for _ in range(5_000))
    delays = Delays()
    for value in values:
        delays.add(value)
    for percent in (1, 50, 99):
        exact = values[-(-len(values) * percent // 100) - 1]
        assert exact <= delays.within(percent) <= exact * 1.02 + 1
    assert delays.within(100) == delays.longest == values[-1]


def test_small_delays_are_exact_and_none_is_nothing() -> None:
    delays = Delays()
    assert (delays.within(99), delays.count) == (0, 0)
    for value in (3, 1, 2):
        delays.add(value)
    assert [delays.within(percent) for percent in (1, 34, 67, 100)] == [1, 2, 3, 3]


def test_tallies_add_up() -> None:
    one, two = Tally(), Tally()
    for each in (seen(0, late=5_000), seen(0, State.SKIPPED, None, reason="overlap")):
        one.add(each)
    for each in (seen(0), seen(0, State.DEAD, late=70_000)):
        two.add(each)
    one.merge(two)
    assert (one.due, one.on_time, one.late.count, one.late.longest) == (4, 1, 2, 70_000)
    assert dict(one.skips) == {"overlap": 1}


@pytest.mark.parametrize(
    ("length", "width"),
    [
        (30 * MINUTE, MINUTE),
        (60 * MINUTE, MINUTE),
        (61 * MINUTE, 5 * MINUTE),
        (24 * 60 * MINUTE, 30 * MINUTE),
    ],
)
def test_the_width_follows_the_window_unless_it_is_asked_for(length: int, width: int) -> None:
    assert width_of(Window(from_ms=0, to_ms=length), None, MINUTE) == width


def test_the_widest_width_is_a_week_and_the_narrowest_that_of_the_layout() -> None:
    assert width_of(Window(from_ms=0, to_ms=10 * 366 * 86_400_000), None, MINUTE) == 604_800_000
    assert width_of(Window(from_ms=0, to_ms=5 * MINUTE), None, 7_000) == 7_000
    assert width_of(Window(from_ms=0, to_ms=5 * MINUTE), 1_300, MINUTE) == 1_300


@pytest.mark.parametrize(("asked", "problem"), [(0, "more than zero"), (1, "more than 10000 buckets")])
def test_a_width_that_makes_no_sense(asked: int, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"^--by: .*{problem}"):
        width_of(Window(from_ms=0, to_ms=MINUTE), asked, MINUTE)
