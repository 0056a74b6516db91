"""The acks of one worker, written for a fraction of what a value and its codec would cost (DESIGN §7).

Every run costs two: `started`, and its outcome. They begin alike, and what follows the ids at their beginning is the
same for nearly all first attempts of a handler.
"""

from __future__ import annotations

from functools import lru_cache

from pipeline.codec import ack_wire
from pipeline.core.job import Run

REMEMBERED = 1024
"""Combinations of run number, attempt, token and handler of which the bytes are kept at most."""


class AckWriter:
    """Writes the acks of `worker`, the bytes that `codec.ACK.encode` writes. One thread at a time.

    `complete(opening, when, work_offset, started_at, error, result, log_tail, retry_at)`; the last five may be absent.
    All raise InvalidInput naming the field of what cannot be written.
    """

    __slots__ = ("_shared", "_worker")

    when = staticmethod(lru_cache(maxsize=256)(ack_wire.when))
    """`when(state, at)`, for `complete`: mostly that of the ack before."""
    complete = staticmethod(ack_wire.complete)

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._shared: dict[tuple[int, int, int, str], bytes] = {}

    def opening(self, run: Run, attempt: int, token: int) -> bytes:
        """What every ack of this attempt begins with, for `complete`."""
        key = (run.run, attempt, token, run.handler)
        shared = self._shared.get(key) or self._learn(key)
        return ack_wire.begin(run.job_id, run.occurrence_id, shared)

    def _learn(self, key: tuple[int, int, int, str]) -> bytes:
        if len(self._shared) >= REMEMBERED:
            self._shared.clear()
        run, attempt, token, handler = key
        shared = self._shared[key] = ack_wire.share(run, attempt, token, self._worker, handler)
        return shared
