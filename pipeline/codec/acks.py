"""The acks of one worker, written for a fraction of what a value and its codec would cost (DESIGN §7).

Every run costs two: `started`, and its outcome. They begin alike, and what follows the ids at their beginning is the
same for nearly all first attempts of a handler.
"""

from __future__ import annotations

from typing import Any

from pipeline.codec import ack_wire
from pipeline.core.job import AckState, Run

REMEMBERED = 1024
"""Combinations of run number, attempt, token and handler of which the bytes are kept at most."""


class AckWriter:
    """Writes the acks of `worker`, the bytes that `codec.ACK.encode` writes. One thread at a time.

    All raise InvalidInput naming the field of what cannot be written.
    """

    __slots__ = ("_shared", "_whens", "_worker")

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._shared: dict[tuple[int, int, int, str], bytes] = {}
        self._whens: dict[str, tuple[int, bytes]] = {}
        """By state: when the last ack of it was written, and the bytes that say both."""

    def write(self, opening: bytes, state: AckState, at: int, *own: Any) -> bytes:
        """`own`: work_offset, started_at, error, result, log_tail, retry_at; the last five may be absent."""
        last = self._whens.get(state._value_)  # an enum's own hash is a function in Python
        if last is None or last[0] != at:
            last = self._whens[state._value_] = at, ack_wire.when(state, at)
        return ack_wire.complete(opening, last[1], *own)

    def opening(self, run: Run, attempt: int, token: int) -> bytes:
        """What every ack of this attempt begins with, for `write`."""
        key = (run.run, attempt, token, run.handler)
        shared = self._shared.get(key) or self._learn(key)
        return ack_wire.begin(run.job_id, run.occurrence_id, shared)

    def _learn(self, key: tuple[int, int, int, str]) -> bytes:
        if len(self._shared) >= REMEMBERED:
            self._shared.clear()
        run, attempt, token, handler = key
        shared = self._shared[key] = ack_wire.share(run, attempt, token, self._worker, handler)
        return shared
