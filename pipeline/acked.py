"""Runs that were acked, as the acks partition tells it to an owner whose group has forgotten everything.

An owner learns from the group's offset what is finished. A group that was deleted, expired, or set back by hand has
none, and its work topic would run again from the beginning; what was acked must not (DESIGN §2, promise 3).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from pipeline.core.job import Ack, Run


class AckedRuns:
    """Of one work partition. Eight bytes a run, since the topics may hold a month of them."""

    __slots__ = ("_last", "_marks")

    def __init__(self) -> None:
        self._marks = array("q")
        self._last = -1

    def __len__(self) -> int:
        return len(self._marks)

    def learn(self, ack: Ack) -> None:
        """A terminal ack."""
        self._marks.append(_mark(ack.work_offset, ack.occurrence_id, ack.run))
        self._last = max(self._last, ack.work_offset)

    def seal(self) -> None:
        """All is learnt; from now on it may be asked."""
        self._marks = array("q", sorted(self._marks))

    def took(self, offset: int, run: Run) -> bool:
        """Whether the run that was delivered at this offset was acked. Offsets are asked for in ascending order. The
        occurrence counts too: a work topic that was made anew counts its offsets from 0 again."""
        mark = _mark(offset, run.occurrence_id, run.run)
        at = bisect_left(self._marks, mark)
        found = at < len(self._marks) and self._marks[at] == mark
        if offset >= self._last:
            self._marks = array("q")
        return found


def _mark(offset: int, occurrence_id: str, run: int) -> int:
    return hash((offset, occurrence_id, run))
