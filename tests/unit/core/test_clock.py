"""The store's time: bounds, agreement, steps (DESIGN §6, H23)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.clock import (
    AGREE_US,
    KEEP,
    VOTE_US,
    WINDOW_US,
    Sample,
    Span,
    StoreTime,
    most_agreeing,
)

EPOCH_MS = 1_800_000_000_000
SECOND = 1_000_000
HOUR_MS = 3_600_000
FIVE_MINUTES_MS = 300_000


def probe(broker: int, ahead_ms: int, at_us: int, back_us: int = 0, out_us: int = 0) -> Sample:
    """A probe stamped at `at_us` by a broker whose clock is `ahead_ms` before EPOCH + CLOCK_MONOTONIC."""
    stamp = EPOCH_MS + ahead_ms + at_us // 1_000
    return Sample(broker, stamp, at_us - out_us, at_us + back_us)


def heard(*samples: Sample, leaders: Iterable[int] = ()) -> StoreTime:
    time = StoreTime()
    time.lead(leaders)
    for sample in samples:
        time.sample(sample)
    return time


def ahead(time: StoreTime, at_us: int) -> int:
    """`now` beside EPOCH + CLOCK_MONOTONIC, ms."""
    return time.now(at_us) - EPOCH_MS - at_us // 1_000


# -- bounds of one broker -----------------------------------------------------------------------------------


def test_a_report_bounds_the_time_from_below_by_its_receipt_and_from_above_by_its_sending() -> None:
    time = heard(probe(1, 0, 5 * SECOND, back_us=40_000, out_us=300_000))
    assert ahead(time, 5_040_000) == -41
    assert time.error(5_040_000) in (342, 343)


def test_the_best_of_recent_probes_counts_and_slow_ones_do_no_harm() -> None:
    time = heard(probe(1, 0, SECOND, back_us=1_000))
    quick = time.now(2 * SECOND)
    time.sample(probe(1, 0, SECOND + 1, back_us=900_000, out_us=900_000))
    assert time.now(2 * SECOND) == quick
    time.sample(probe(1, 0, 2 * SECOND - 1_000))
    assert time.now(2 * SECOND) == quick + 1


def test_bounds_widen_by_500_ppm_with_the_age_of_their_probe() -> None:
    time = heard(probe(1, 0, 0))
    assert ahead(time, 100 * SECOND) == -51
    assert time.error(100 * SECOND) in (102, 103)


def test_old_probes_go_when_there_is_a_younger_one() -> None:
    """A step back that is smaller than the round trips shows in no probe."""
    time = heard(probe(1, 0, 0, out_us=50_000))
    time.sample(probe(1, -20, WINDOW_US, out_us=50_000))
    assert ahead(time, WINDOW_US) == -6  # by the first probe, 10 s old
    time.sample(probe(1, -20, WINDOW_US + 1_000, out_us=50_000))
    assert time.held(WINDOW_US + 1_000) == 14


def test_so_many_probes_are_kept_and_no_more() -> None:
    time = heard(probe(1, 0, 0))
    for n in range(KEEP - 1):
        time.sample(probe(1, 0, n, back_us=30_000))
    assert ahead(time, 31_000) == -1
    time.sample(probe(1, 0, KEEP, back_us=30_000))
    assert time.held(31_000) == 30


# -- steps of one broker ------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [1_500, -1_500])
def test_a_small_step_is_followed_at_once(step_ms: int) -> None:
    time = heard(probe(1, 0, 0), probe(1, step_ms, SECOND))
    assert ahead(time, SECOND + 2 * SECOND) in (step_ms - 2, step_ms - 1)


@pytest.mark.parametrize("step_ms", [HOUR_MS, FIVE_MINUTES_MS, 2_100])
def test_h23_a_jump_of_more_than_two_seconds_is_believed_when_a_second_probe_says_it(step_ms: int) -> None:
    time = heard(probe(1, 0, 0), probe(1, step_ms, SECOND))
    assert ahead(time, SECOND) == -1
    time.sample(probe(1, step_ms, 2 * SECOND))
    assert ahead(time, 2 * SECOND) in (step_ms - 1, step_ms)


def test_h23_two_probes_under_way_together_do_not_confirm_each_other() -> None:
    time = heard(probe(1, 0, 0), probe(1, HOUR_MS, SECOND, back_us=20), probe(1, HOUR_MS, SECOND + 10))
    assert ahead(time, 2 * SECOND) == -2


def test_h23_two_jumps_that_contradict_each_other_confirm_nothing() -> None:
    time = heard(probe(1, 0, 0), probe(1, HOUR_MS, SECOND), probe(1, -HOUR_MS, 2 * SECOND))
    assert ahead(time, 2 * SECOND) == -2


def test_h23_a_probe_that_agrees_again_ends_the_doubt() -> None:
    time = heard(
        probe(1, 0, 0), probe(1, HOUR_MS, SECOND), probe(1, 0, 2 * SECOND), probe(1, HOUR_MS, 3 * SECOND)
    )
    assert ahead(time, 3 * SECOND) == -1


def test_h23_a_step_back_holds_the_clock_still_until_the_broker_has_caught_up() -> None:
    time = heard(*(probe(1, 0, n * SECOND) for n in range(3)))
    last = time.now(2 * SECOND)
    time.sample(probe(1, -60_000, 3 * SECOND))
    last = time.now(3 * SECOND)
    time.sample(probe(1, -60_000, 4 * SECOND))
    assert [time.now(n * SECOND) for n in (4, 30, 62)] == [last] * 3
    assert time.held(4 * SECOND) in (59_000, 59_001)
    assert time.error(4 * SECOND) == 0
    time.sample(probe(1, -60_000, 64 * SECOND))
    assert ahead(time, 64 * SECOND) == -60_001
    assert time.held(64 * SECOND) == 0


# -- several brokers ----------------------------------------------------------------------------------------


def three(*offsets: int, at_us: int = 0) -> StoreTime:
    return heard(*(probe(n, ms, at_us) for n, ms in enumerate(offsets)), leaders=range(len(offsets)))


@pytest.mark.parametrize(
    ("offsets", "expected", "outside"),
    [
        ((7,), 7, set()),
        ((HOUR_MS,), HOUR_MS, set()),  # one broker alone is the store's time
        ((0, 900), 0, set()),
        ((0, HOUR_MS), 0, {1}),  # two that disagree: the lower one
        ((0, -HOUR_MS), -HOUR_MS, {0}),
        ((300, 0, 1_900), 0, set()),
        ((0, 0, HOUR_MS), 0, {2}),
        ((0, -HOUR_MS, 5), 0, {1}),
        ((0, HOUR_MS, HOUR_MS), HOUR_MS, {0}),  # the majority is right
        ((0, HOUR_MS, -HOUR_MS), -HOUR_MS, {0, 1}),  # none agrees: the lowest
        ((0, 0, HOUR_MS, HOUR_MS), 0, {2, 3}),  # half is no majority
        ((0, 1_500, 3_000), 0, {2}),  # two majorities: the earlier one
        ((0, 10, 20, HOUR_MS, -HOUR_MS), 0, {3, 4}),
    ],
)
def test_h23_the_time_is_the_lower_bound_of_the_majority_that_agrees(
    offsets: tuple[int, ...], expected: int, outside: set[int]
) -> None:
    time = three(*offsets)
    assert ahead(time, 0) == expected - 1
    assert time.outside == outside


def test_only_a_majority_of_the_known_brokers_agrees() -> None:
    time = StoreTime()
    time.lead([0, 1, 2])
    assert (time.started, time.complete, time.agreed) == (False, False, False)
    time.sample(probe(0, HOUR_MS, 0))
    assert (time.started, time.complete, time.agreed) == (False, False, False)
    time.sample(probe(1, 0, 0))
    assert (time.started, time.complete, time.agreed) == (True, False, False)
    time.sample(probe(2, 0, 0))
    assert (time.started, time.complete, time.agreed) == (True, True, True)
    assert ahead(time, 0) == -1


def test_h23_one_slow_broker_holds_the_time_back_by_two_seconds_at_most() -> None:
    """Its clock may be right, for all we know, so it is not outside."""
    slow = probe(2, 0, 4 * SECOND, back_us=5 * SECOND, out_us=SECOND)
    time = heard(probe(0, 0, 9 * SECOND), probe(1, 0, 9 * SECOND), slow, leaders=range(3))
    assert ahead(time, 9 * SECOND) == -2_001
    assert time.outside == set()


def test_a_broker_that_leads_no_more_does_not_hold_the_time_back() -> None:
    time = three(-500, 0, 0)
    assert ahead(time, 0) == -501
    time.lead([1, 2])
    for at in (WINDOW_US // 2, WINDOW_US + SECOND):
        time.sample(probe(1, 0, at))
        time.sample(probe(2, 0, at))
    assert ahead(time, WINDOW_US + SECOND) == -1


def test_a_leader_that_cannot_be_heard_still_counts_as_slowest() -> None:
    time = three(-500, 0, 0)
    for at in range(SECOND, 30 * SECOND, SECOND):
        time.sample(probe(1, 0, at))
        time.sample(probe(2, 0, at))
    assert ahead(time, 29 * SECOND) == -515  # and its bound sinks by the drift


def test_h23_a_wrong_clock_that_is_the_last_to_be_heard_does_not_become_the_stores() -> None:
    time = three(0, 0, HOUR_MS)
    time.lead([2])
    at = 0
    while at < VOTE_US - SECOND:
        at += 30 * SECOND
        time.sample(probe(2, HOUR_MS, at))
        assert ahead(time, at) <= 0
    assert time.outside == {2}
    time.sample(probe(2, HOUR_MS, VOTE_US + SECOND))
    assert ahead(time, VOTE_US + SECOND) == HOUR_MS - 1  # then it is the only broker there is


def test_the_last_broker_that_was_heard_is_not_forgotten_while_its_jump_is_doubted() -> None:
    time = heard(probe(1, 0, 0), probe(1, HOUR_MS, 2 * VOTE_US))
    assert ahead(time, 2 * VOTE_US) == -601


def test_readings_say_how_far_each_broker_is() -> None:
    time = three(0, HOUR_MS, 40)
    readings = time.readings(0)
    assert {n: (one.ahead_ms, one.outside) for n, one in readings.items()} == {
        0: (0, False), 1: (HOUR_MS, True), 2: (40, False),
    }  # fmt: skip
    assert {one.error_ms for one in readings.values()} == {2}


def test_the_same_brokers_outside_are_the_same_object() -> None:
    """So that a reader of the time sees a change by looking at one attribute."""
    time = three(0, 0, HOUR_MS)
    before = time.outside
    time.sample(probe(2, HOUR_MS, SECOND))
    assert time.outside is before


@given(st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 9_000_000), st.integers(0, 3_000_000))))
def test_the_largest_agreeing_set_is_found(raw: dict[int, tuple[int, int]]) -> None:
    """Beside all windows that begin at any of the ends."""
    spans = {n: Span(low, low + width) for n, (low, width) in raw.items()}
    starts = {end for span in spans.values() for end in (span.low - AGREE_US, span.high)}
    counts = [sum(s.low - AGREE_US <= x <= s.high for s in spans.values()) for x in starts]
    found = most_agreeing(spans)
    assert len(found) == max(counts, default=0)
    if found:
        assert max(spans[n].low for n in found) - min(spans[n].high for n in found) <= AGREE_US


# -- simulated ----------------------------------------------------------------------------------------------


@dataclass
class Broker:
    """A clock that is `ahead_ms`, runs fast or slow, and is set at some instants."""

    ahead_ms: int = 0
    ppm: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)

    def time_us(self, at_us: int) -> int:
        stepped = sum(step_ms for at, step_ms in self.steps if at_us >= at)
        return (EPOCH_MS + self.ahead_ms + stepped) * 1_000 + at_us + at_us * self.ppm // 1_000_000


class Trip(NamedTuple):
    """How one probe fares."""

    out_us: int
    back_us: int
    lost: bool


def trips(random: Random, slowest_us: int, loss: float) -> Trip:
    return Trip(random.randint(1, slowest_us), random.randint(1, slowest_us), random.random() < loss)


def rounds_of(seed: int, count: int, slowest_us: int, loss: float = 0.0) -> list[list[Trip]]:
    """How the probes of five brokers fare, a round a second."""
    random = Random(seed)
    return [[trips(random, slowest_us, loss) for _ in range(5)] for _ in range(count)]


def probed(brokers: list[Broker], rounds: list[list[Trip]]) -> list[Sample]:
    """A probe of each broker a second, in the order in which the reports come in."""
    samples = []
    for n, fares in enumerate(rounds):
        for number, (broker, trip) in enumerate(zip(brokers, fares, strict=False)):
            sent = n * SECOND
            stamp = broker.time_us(sent + trip.out_us) // 1_000
            if not trip.lost:
                samples.append(Sample(number, stamp, sent, sent + trip.out_us + trip.back_us))
    return sorted(samples, key=lambda sample: sample.received_us)


def followed(brokers: list[Broker], rounds: list[list[Trip]], seen: Callable[[int, StoreTime], None]) -> None:
    """Feed the samples; `seen(CLOCK_MONOTONIC, time)` after each and once between, when all brokers were heard."""
    time, begun = StoreTime(), False
    time.lead(range(len(brokers)))
    samples = probed(brokers, rounds)
    for sample, following in zip(samples, [*samples[1:], None], strict=True):
        time.sample(sample)
        begun = begun or time.complete
        if begun:
            seen(sample.received_us, time)
            until = following.received_us if following else sample.received_us + SECOND
            seen((sample.received_us + until) // 2, time)


seeds = st.integers(0, 2**32)
honest = st.builds(Broker, ahead_ms=st.integers(-400, 400), ppm=st.integers(-490, 490))
liar = st.builds(
    Broker,
    ahead_ms=st.sampled_from([0, HOUR_MS, -HOUR_MS]),
    steps=st.lists(
        st.tuples(st.integers(0, 12 * SECOND), st.sampled_from([HOUR_MS, -HOUR_MS, 60_000])), max_size=2
    ),
)


@given(st.lists(honest, min_size=1, max_size=4), st.none() | liar, seeds)
def test_h23_never_backwards_and_never_ahead_of_any_broker_that_is_right(
    right: list[Broker], wrong: Broker | None, seed: int
) -> None:
    """Whatever is lost or late on either way, and whatever one of three or more does."""
    brokers = [*right, wrong] if wrong is not None and len(right) >= 2 else right
    last = 0

    def seen(at: int, time: StoreTime) -> None:
        nonlocal last
        now = time.now(at)
        assert now >= last
        assert now * 1_000 <= min(broker.time_us(at) for broker in right)
        last = now

    followed(brokers, rounds_of(seed, 10, 1_500_000, loss=0.25), seen)


@given(st.lists(honest, min_size=1, max_size=5), seeds)
def test_the_error_covers_the_slowest_broker(brokers: list[Broker], seed: int) -> None:
    def seen(at: int, time: StoreTime) -> None:
        slowest = min(brokers[n].time_us(at) for n in time.readings(at))
        assert (time.now(at) + time.error(at)) * 1_000 >= slowest

    followed(brokers, rounds_of(seed, 10, 1_500_000, loss=0.25), seen)


@given(st.lists(honest, min_size=1, max_size=5), st.sampled_from([HOUR_MS, -HOUR_MS]), seeds)
def test_the_time_is_behind_by_the_way_back_and_no_more(
    right: list[Broker], wrong_ms: int, seed: int
) -> None:
    """150 ms at most here; the way out does not matter."""
    brokers = [*right, Broker(wrong_ms)] if 2 <= len(right) <= 4 else right

    def seen(at: int, time: StoreTime) -> None:
        assert min(broker.time_us(at) for broker in right) // 1_000 - time.now(at) <= 155

    followed(
        brokers,
        [[t._replace(out_us=t.out_us * 5) for t in fares] for fares in rounds_of(seed, 10, 150_000)],
        seen,
    )


steps_at = st.lists(st.integers(4 * SECOND, 6 * SECOND), min_size=1, max_size=3)


@given(steps_at, seeds)
def test_h23_all_brokers_set_forward_are_followed(at: list[int], seed: int) -> None:
    brokers = [Broker(steps=[(when, FIVE_MINUTES_MS)]) for when in at]

    def seen(at_us: int, time: StoreTime) -> None:
        assert time.now(at_us) * 1_000 <= max(broker.time_us(at_us) for broker in brokers)
        if at_us > 9 * SECOND:
            assert min(broker.time_us(at_us) for broker in brokers) // 1_000 - time.now(at_us) <= 160
            assert not time.outside

    followed(brokers, rounds_of(seed, 15, 150_000), seen)


@given(steps_at, seeds)
def test_h23_all_brokers_set_back_hold_the_clock_still(at: list[int], seed: int) -> None:
    brokers = [Broker(steps=[(when, -FIVE_MINUTES_MS)]) for when in at]
    held: set[int] = set()

    def seen(at_us: int, time: StoreTime) -> None:
        assert time.now(at_us) * 1_000 <= EPOCH_MS * 1_000 + at_us
        if at_us > 9 * SECOND:
            held.add(time.now(at_us))
            assert time.held(at_us) > 280_000

    followed(brokers, rounds_of(seed, 15, 150_000), seen)
    assert len(held) == 1
