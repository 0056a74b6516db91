"""Whether somebody takes over at once what a draining worker leaves (DESIGN §7, drain).

A worker that drains starts nothing more, and as long as it stays in its group whatever waits on its partitions waits
for its slowest handler. Its leases outlive the partitions, so it need not stay: if another worker takes runs of the
queue, it leaves at once. The last one stays, for nobody else would commit what it finishes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from pipeline.core.errors import DuelineError
from pipeline.heartbeat import Seen

SETTLE_S = 1.0
"""From the signal to the first look: workers that were told to end together have said so by then."""
LOOK_S = 1.0
"""From one look to the next: whoever is started meanwhile takes over then."""
FRESH_MS = 3_000
"""Age of a heartbeat up to which its worker counts as one that takes over. If it is gone all the same, what is finished
here is offered, and the next worker commits it: nothing is lost by the error, only later."""


class Leaver(Protocol):
    """The part of a Worker that is told."""

    @property
    def busy(self) -> bool: ...
    def hand_over(self) -> None: ...


class Heirs:
    """Of the queues of one process, while it drains."""

    def __init__(
        self,
        *,
        process: str,
        read: Callable[[int], Iterable[Seen]],
        now: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read(since)` = the processes that beat since then, by the store's clock `now` in ms."""
        self._process, self._read, self._now, self._monotonic = process, read, now, monotonic
        self._look_at = monotonic() + SETTLE_S

    def look(self, staying: dict[str, Leaver]) -> None:
        """Let those leave whose queue has another worker by now; `staying` are the others, by queue. They are fewer
        afterwards."""
        now = self._monotonic()
        if now < self._look_at or not any(worker.busy for worker in staying.values()):
            return
        served = self._served()
        self._look_at = self._monotonic() + LOOK_S
        for queue in staying.keys() & served:
            staying.pop(queue).hand_over()

    def _served(self) -> frozenset[str]:
        """Queues that somebody else takes runs of. A worker that drains has no handlers in its heartbeat."""
        try:
            seen = self._read(self._now() - FRESH_MS)
            return frozenset(
                queue
                for one in seen
                if one.heartbeat.process != self._process and one.heartbeat.handlers
                for queue in one.heartbeat.queues
            )
        except DuelineError:
            return frozenset()  # nobody can be seen: it stays
