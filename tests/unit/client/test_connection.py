"""The parts of the connected half that need no store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.connection import RECENT_MS, Delivery, RecentClock


class SteppedClock:
    """A store whose time stands still between probes, so that who reads it can be told."""

    def __init__(self) -> None:
        self.store, self.here = 1_000_000, 0

    def now(self) -> int:
        return self.store

    def monotonic(self) -> int:
        return self.here


def test_the_time_goes_on_from_a_recent_reading_and_is_read_anew_after_it() -> None:
    clock = SteppedClock()
    recent = RecentClock(clock)
    clock.store, clock.here = 2_000_000, RECENT_MS - 1
    assert recent.now() == 1_000_000 + RECENT_MS - 1
    clock.here = RECENT_MS
    assert recent.now() == 2_000_000
    clock.here = RECENT_MS + 5
    assert recent.now() == 2_000_005
    assert recent.at(RECENT_MS + 7) == 2_000_007


@given(before=st.integers(0, 5), after=st.integers(0, 5), bad=st.none() | st.integers(0, 9))
def test_a_delivery_is_done_when_all_reports_have_come(before: int, after: int, bad: int | None) -> None:
    """Whether `expect` comes before, between or after the reports."""
    delivery = Delivery()
    total = before + after
    errors = [ValueError(str(n)) if n == bad else None for n in range(total)]
    for error in errors[:before]:
        delivery.report(error, 0, 0)
    assert not delivery.future.done()
    delivery.expect(total)
    for n, error in enumerate(errors[before:]):
        assert not delivery.future.done(), n
        delivery.report(error, 0, 0)
    assert delivery.future.done()
    if bad is not None and bad < total:
        with pytest.raises(ValueError, match=str(bad)):
            delivery.future.result()
    else:
        delivery.future.result()
