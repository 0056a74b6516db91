"""What earlier owners of a work partition started and finished: by the group's committed offset, and by the acks
partition from where that says up to our own takeover record (DESIGN §7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from pipeline.acked import AckedRuns
from pipeline.core import keys, offset_metadata
from pipeline.core.acks import AckTracker
from pipeline.core.job import Ack, AckState
from pipeline.core.offset_metadata import OffsetMetadata, Start
from pipeline.offers import Offer, OfferId
from pipeline.ports import CommittedOffset

LEARNT_LIMIT = 1_000
"""Starts that are kept from the acks partition beside those in the metadata, the ones at the lowest offsets: more than
any window holds, so that only what no worker wrote is ever left out."""
FAR = 1_000_000_000
"""Offsets above the mark: nobody starts a run there while the one at the mark is unfinished."""
NOBODY = "-"
"""As the worker of a start: it was given back, so nobody holds the run."""


class Past:
    """Used by the worker's thread only."""

    def __init__(self, committed: CommittedOffset) -> None:
        """`committed` = the group's stable offset. StopPartition if its metadata cannot be read in full."""
        known = offset_metadata.decode(*committed)
        self._mark, self._finished = committed.offset, known.finished
        self._starts = dict(known.started)
        self._limit = len(known.started) + LEARNT_LIMIT
        self.acks_offset = known.acks_offset
        """Where to begin to read the acks partition."""
        self.forgotten = not known.acks_offset
        """Whether the group may have forgotten what was finished: then acks say so."""
        self.acked = AckedRuns()
        """What they say."""

    def started(self, ack: Ack, offers: Mapping[OfferId, Offer]) -> None:
        """Attempts of one offset are compared by token, which grows; a released one was not spent."""
        if ack.work_offset < self._mark or self._is_finished(ack.work_offset):
            return  # what finished needs no start any more
        if ack.work_offset > self._mark + FAR:
            return  # no worker has read that far: such starts would hold the window for ever
        known = self._starts.get(ack.work_offset)
        if known is not None and (ack.token < known.token or _has_offered(ack, known, offers)):
            return
        self._starts.pop(ack.work_offset, None)
        if ack.state is AckState.STARTED:
            self._starts[ack.work_offset] = Start(ack.attempt, ack.token, ack.worker)
        elif ack.attempt > 1:
            self._starts[ack.work_offset] = Start(ack.attempt - 1, ack.token, NOBODY)
        if len(self._starts) > self._limit:
            del self._starts[max(self._starts)]

    def _is_finished(self, offset: int) -> bool:
        at = bisect_right(self._finished, offset, key=lambda run: run[0]) - 1
        return at >= 0 and offset <= self._finished[at][1]

    def ended(self, key: bytes, ack: Ack) -> None:
        """A terminal ack. Usually the committed offset covers all of them: they commit together."""
        if key != keys.terminal_key(ack.occurrence_id, ack.run, ack.attempt):
            return
        if self._mark <= ack.work_offset <= self._mark + FAR:
            self._starts.pop(ack.work_offset, None)
            self.acked.learn(ack)

    def restored(self, acks_next: int) -> tuple[AckTracker, set[int]]:
        """All is known: a tracker that begins with it, and the tokens of the starts that are kept; `acks_next` = up to
        where acks were read.

        What workers write fits the window. More than that was forged, and would make metadata that nobody takes: the
        highest offsets go. Nothing else may: a start that is forgotten is a run that starts beside its holder."""
        started = sorted(self._starts.items())
        while started and not offset_metadata.fits(self._mark, self._known(started, acks_next)):
            started.pop()
        self.acked.seal()
        tracker = AckTracker(self._mark, self._known(started, acks_next))
        return tracker, {start.token for _, start in started}

    def _known(self, started: Iterable[tuple[int, Start]], acks_next: int) -> OffsetMetadata:
        return OffsetMetadata(acks_offset=acks_next, finished=self._finished, started=tuple(started))


def _has_offered(ack: Ack, known: Start, offers: Mapping[OfferId, Offer]) -> bool:
    """Whether an earlier attempt had offered its outcome when `ack` was written: then no other one counts."""
    offer = offers.get(OfferId(ack.occurrence_id, ack.run, known.token))
    return offer is not None and offer.complete
