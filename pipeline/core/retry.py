"""When a failed run is tried again: exponential back-off with full jitter.

After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: full jitter spreads a herd of
jobs that failed together best, at the least work for the resource they failed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from pipeline.core.errors import InvalidInput
from pipeline.core.job import Millis
from pipeline.core.times import Duration, parse_duration


class Jitter(Protocol):
    """The one method of random.Random that back-off uses."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The n-th failure in a row waits from 0 to base * factor**(n - 1), at most cap:
    `RetryPolicy(base="5s", factor=3, cap="10m")`.

    `base` and `cap` are durations. InvalidInput naming the option if it is malformed or absurd.
    """

    base: Duration = "1s"
    factor: float = 2.0
    cap: Duration = "1h"
    base_ms: Millis = field(init=False, repr=False, default=Millis(0))
    cap_ms: Millis = field(init=False, repr=False, default=Millis(0))

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_ms", parse_duration("base", self.base))
        object.__setattr__(self, "cap_ms", parse_duration("cap", self.cap))
        if self.base_ms < 1:
            raise InvalidInput("base", "it must be more than zero")
        if not (isinstance(self.factor, int | float) and 1 <= self.factor < math.inf):
            raise InvalidInput("factor", f"{self.factor!r} is not a number from 1 up")
        if self.cap_ms < self.base_ms:
            raise InvalidInput("cap", f"{self.cap!r} is less than base {self.base!r}")


def backoff(policy: RetryPolicy, failures: int, random: Jitter) -> Millis:
    """How long to wait after the `failures`-th failure (from 1) in a row."""
    return Millis(int(random.random() * _ceiling(policy, failures)))


def _ceiling(policy: RetryPolicy, failures: int) -> float:
    doublings = failures - 1
    # Compared as logarithms: factor ** 2000 is no float.
    if doublings * math.log(policy.factor) >= math.log(policy.cap_ms / policy.base_ms):
        return policy.cap_ms
    return policy.base_ms * policy.factor**doublings
