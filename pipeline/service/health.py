"""Whether this process is alive and whether it does its work, as its owner's thread last saw it (H26).

Written by that thread after every step, read by the one that answers probes: whole values only, no locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pipeline.core.states import PartitionState

READY_STEP_S = 10.0
"""An owner that has not polled for this long does not do its work, though the watchdog still waits."""
READY_MEMBER_S = 10.0
"""A rebalance passes sooner; a process that is out of its group for longer is not ready."""
READY_RESTORE_S = {"dispatcher": 120.0, "worker": 30.0}
"""A partition that is not running for longer than this keeps its process from being ready: a cold rebuild of ten
million jobs takes less; a worker only waits for the open transaction of one that died, ten seconds at most."""


class Health:
    """The owner's last step, its memberships and its partitions. Times are CLOCK_MONOTONIC in seconds."""

    def __init__(
        self,
        *,
        role: str,
        hang_s: float,
        stopping: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hang_s`: a step that takes longer is a hang, which the watchdog ends."""
        self._restore_s = READY_RESTORE_S[role]
        self._hang_s = hang_s
        self._stopping = stopping
        self._monotonic = monotonic
        self._stepped_at = monotonic()
        self._members: Mapping[str, float] = {}
        """When each owner, by queue, was last seen to be a member of its group."""
        self._waiting: Mapping[tuple[str, int], float] = {}
        """Partitions not running, by queue and number, and since when."""

    # -- the owner's thread ---------------------------------------------------------------------------------

    def stepped(self, now: float) -> None:
        self._stepped_at = now

    def saw(self, queue: str, *, member: bool, states: Mapping[int, PartitionState]) -> None:
        """One owner's membership and partitions; `queue` is empty for `jobs`."""
        now = self._monotonic()
        self._members = {**self._members, queue: now if member else self._members.get(queue, float("-inf"))}
        others = {place: since for place, since in self._waiting.items() if place[0] != queue}
        idle = (number for number, state in states.items() if state is not PartitionState.RUNNING)
        self._waiting = others | {(queue, n): self._waiting.get((queue, n), now) for n in idle}

    # -- any thread -----------------------------------------------------------------------------------------

    def unhealthy(self) -> str | None:
        """Why this process should be ended; None if it should not."""
        idle = self._monotonic() - self._stepped_at
        return f"no step for {idle:.0f} s" if idle > self._hang_s else None

    def unready(self) -> str | None:
        """Why this process does not do its work; None if it does."""
        now = self._monotonic()
        if self._stopping():
            return "stopping"
        if now - self._stepped_at > READY_STEP_S:
            return f"no step for {now - self._stepped_at:.0f} s"
        if not self._members:
            return "starting"
        for queue, seen_at in self._members.items():
            if now - seen_at > READY_MEMBER_S:
                return f"not a member of the group of {queue or 'dispatchers'}"
        for (queue, number), since in self._waiting.items():
            if now - since > self._restore_s:
                return f"partition {queue or 'jobs'}/{number} not running for {now - since:.0f} s"
        return None
