"""Giving way: while somebody takes in many jobs the fold leaves the interpreter to them, so that they get done sooner.

Both are bound by one interpreter's lock, and what comes in must be folded anyway: in either order it takes as long
until all of it is known here. Only whoever sends it waits no longer than needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

GIVEN_S = 0.25
"""So long way is given after a word of somebody who is at it: one who stalls holds nothing back."""
SHARE = 0.1
"""Of the time that the fold takes for itself meanwhile."""
LONGEST_REST_S = 1.0
OLDEST_MS = 30_000
"""No way is given once what is known here is so old: readers have waited enough."""


class Way:
    """Any thread. `monotonic` in seconds."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until = float("-inf")

    def give(self) -> None:
        """Somebody is at it now."""
        self._until = self._monotonic() + GIVEN_S

    def given(self, age_ms: int) -> bool:
        """Whether the fold should hold back, whose rows are so old."""
        return age_ms < OLDEST_MS and self._monotonic() < self._until


def rest_s(spent_s: float) -> float:
    """How long to rest after so much processor time, to keep to the share."""
    return min(spent_s * (1 / SHARE - 1), LONGEST_REST_S)
