"""`--burst`: work until nothing is left, and know when that is so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

SETTLE_S = 2.0
"""A partition that another member has yet to hand over arrives sooner, and so does what a handler scheduled for now."""


class Idler(Protocol):
    """The part of a Worker that is asked."""

    @property
    def idle(self) -> bool: ...
    @property
    def parked(self) -> int: ...


class Burst:
    """Whether the workers of this process have done all there is; `finished` and `left` say what it came to."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._idle_since: float | None = None
        self.finished = 0
        """Runs whose outcomes were committed."""
        self.left = 0
        """Runs left on the queues, because nobody here knows their handlers."""

    def over(self, workers: Iterable[Idler], *, ready: bool, finished: int) -> bool:
        """Asked after every step: whether all have been idle for `SETTLE_S`. `ready`: the process is in its groups;
        `finished`: runs acked so far."""
        workers = list(workers)
        self.finished, self.left = finished, sum(worker.parked for worker in workers)
        if not ready or not all(worker.idle for worker in workers):
            self._idle_since = None
            return False
        now = self._monotonic()
        self._idle_since = now if self._idle_since is None else self._idle_since
        return now - self._idle_since >= SETTLE_S
