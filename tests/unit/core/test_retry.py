"""Back-off with full jitter."""

import math
import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import InvalidInput
from pipeline.core.retry import RetryPolicy, backoff


class Always:
    def __init__(self, value):
        self.value = value

    def random(self):
        return self.value


ALMOST_ONE = Always(math.nextafter(1, 0))


def test_the_ceiling_doubles_up_to_the_cap():
    policy = RetryPolicy(base="1s", factor=2.0, cap="10s")
    ceilings = [backoff(policy, failures, Always(1.0)) for failures in range(1, 7)]
    assert ceilings == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


def test_durations_are_what_they_are_everywhere():
    policy = RetryPolicy(base=timedelta(seconds=5), cap=60)
    assert (policy.base_ms, policy.cap_ms) == (5_000, 60_000)
    assert repr(policy) == "RetryPolicy(base=datetime.timedelta(seconds=5), factor=2.0, cap=60)"


def test_the_jitter_is_full():
    policy = RetryPolicy()
    assert backoff(policy, 3, Always(0.0)) == 0
    assert backoff(policy, 3, Always(0.25)) == 1_000


@given(
    st.integers(1, 10**6),
    st.floats(1, 1e300),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
)
def test_never_over_the_cap_never_an_overflow(base, factor, more, failures):
    policy = RetryPolicy(base=f"{base}ms", factor=factor, cap=f"{base + more}ms")
    assert 0 <= backoff(policy, failures, ALMOST_ONE) <= base + more


def test_a_herd_is_spread_evenly():
    rng = random.Random(7)
    waits = [backoff(RetryPolicy(), 1, rng) for _ in range(10_000)]
    assert all(
        abs(sum(low <= wait < low + 100 for wait in waits) - 1_000) < 150 for low in range(0, 1_000, 100)
    )


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("base", {"base": 0}),
        ("base", {"base": "soon"}),
        ("base", {"base": True}),
        ("factor", {"factor": 0.5}),
        ("factor", {"factor": math.nan}),
        ("factor", {"factor": math.inf}),
        ("factor", {"factor": "two"}),
        ("cap", {"cap": None}),
        ("cap", {"base": 10, "cap": "9s"}),
    ],
)
def test_absurd_policies_are_refused(field, values):
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        RetryPolicy(**values)
