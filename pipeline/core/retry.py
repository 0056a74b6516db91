"""When a failed run is tried again: exponential back-off with full jitter.

After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015: full jitter spreads a herd of
jobs that failed together best, at the least work for the resource they failed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from pipeline.core.errors import InvalidInput
from pipeline.core.job import Millis


class Jitter(Protocol):
    """The one method of random.Random that back-off uses."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The n-th failure waits from 0 to base_ms * factor**(n - 1), at most cap_ms. InvalidInput if absurd."""

    base_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 3_600_000

    def __post_init__(self) -> None:
        if self.base_ms < 1:
            raise InvalidInput("base_ms", f"{self.base_ms} is less than 1")
        if not 1 <= self.factor < math.inf:
            raise InvalidInput("factor", f"{self.factor} is not a number from 1 up")
        if self.cap_ms < self.base_ms:
            raise InvalidInput("cap_ms", f"{self.cap_ms} is less than base_ms {self.base_ms}")


def backoff(policy: RetryPolicy, failures: int, random: Jitter) -> Millis:
    """How long to wait after the `failures`-th failure (from 1) in a row."""
    return Millis(int(random.random() * _ceiling(policy, failures)))


def _ceiling(policy: RetryPolicy, failures: int) -> float:
    doublings = failures - 1
    # Compared as logarithms: factor ** 2000 is no float.
    if doublings * math.log(policy.factor) >= math.log(policy.cap_ms / policy.base_ms):
        return policy.cap_ms
    return policy.base_ms * policy.factor**doublings
