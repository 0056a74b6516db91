"""The attempts of an occurrence as its retries carry them along and its dead letter shows them (DESIGN §3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.core.job import AttemptRecord, Failure

LOST = "lost"
"""Outcome of an attempt whose run went on without it: its worker died or was cut off."""
BRIEF = 300
"""Characters of a message that `brief` leaves."""
_LOST = 5
"""Lost starts of one run that are told at most."""
_FIXED = 64
"""Bytes that the numbers of one attempt and the lengths of its texts take at most, with its part of the array's."""


def brief(attempt: AttemptRecord) -> AttemptRecord:
    """`attempt` as a retry carries it: without its trace, and of its message the beginning."""
    error = attempt.error
    if error is None:
        return attempt
    return replace(attempt, error=Failure(type=error.type, message=error.message[:BRIEF]))


def lost(run: int, attempt: int, at: int) -> list[AttemptRecord]:
    """The starts of `run` before `attempt`, the latest few: that there were so many is all that is known of them.
    `at` = an instant, epoch ms, at which they were over."""
    return [
        AttemptRecord(run=run, attempt=number, worker="", token=0, at=at, outcome=LOST)
        for number in range(max(1, attempt - _LOST), attempt)
    ]


def fit(attempts: Sequence[AttemptRecord], limit_bytes: int) -> tuple[AttemptRecord, ...]:
    """`attempts`, oldest first, in no more than `limit_bytes` as they are encoded (schemas/dead_letter.avsc).

    What goes first is what tells least: traces, the oldest first and not that of the last attempt; then whole
    attempts, the oldest first. The first and the last always stay. Should those two be too long, they lose their
    traces and the ends of their messages. `limit_bytes` must leave room for the names and numbers of two attempts.
    """
    kept = list(attempts)
    excess = sum(map(_size, kept)) - limit_bytes
    for n, attempt in enumerate(kept[:-1]):
        if excess <= 0:
            break
        kept[n] = _without_trace(attempt)
        excess -= _size(attempt) - _size(kept[n])
    gone = 0
    while excess > 0 and gone < len(kept) - 2:
        gone += 1
        excess -= _size(kept[gone])
    del kept[1 : 1 + gone]
    if excess <= 0:
        return tuple(kept)
    return tuple(_shortened(attempt, limit_bytes // len(kept)) for attempt in kept)


def _size(attempt: AttemptRecord) -> int:
    """Bytes that it takes, or a few more."""
    error = attempt.error
    texts = (error.type, error.message, error.trace or "") if error is not None else ()
    return _FIXED + sum(len(text.encode()) for text in (attempt.worker, attempt.outcome, *texts))


def _without_trace(attempt: AttemptRecord) -> AttemptRecord:
    error = attempt.error
    return attempt if error is None else replace(attempt, error=replace(error, trace=None))


def _shortened(attempt: AttemptRecord, limit_bytes: int) -> AttemptRecord:
    error = attempt.error
    if error is None or _size(attempt) <= limit_bytes:
        return attempt
    room = limit_bytes - _size(replace(attempt, error=None))
    type_ = _cut(error.type, room)
    return replace(
        attempt, error=Failure(type=type_, message=_cut(error.message, room - len(type_.encode())))
    )


def _cut(text: str, size: int) -> str:
    """The beginning of `text` in no more than `size` bytes of UTF-8."""
    return text.encode()[: max(0, size)].decode(errors="ignore")
