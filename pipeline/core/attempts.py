"""Attempts of one occurrence, told from its acks: what each came to, in the order of their tokens (DESIGN §3, §7).

A start and its end carry the same token, so that is what tells attempts apart: one that was released is not spent, and
the next has its number again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.core.history import LOST
from pipeline.core.job import Ack, AckState

STOPPED = "Stopped"
"""Type of the error of a run that ended because its job was stopped."""


def fold_attempts(acks: Iterable[Ack]) -> dict[int, dict[int, Ack]]:
    """The last word on each attempt, by run and token: a terminal ack outranks a start whatever the order."""
    runs: dict[int, dict[int, Ack]] = {}
    for ack in acks:
        attempts = runs.setdefault(ack.run, {})
        known = attempts.get(ack.token)
        if known is None or ack.state.terminal or not known.state.terminal:
            attempts[ack.token] = ack
    return runs


def last_word(attempts: Mapping[int, Ack]) -> Ack | None:
    """What stands of one run, by token: its end if it has one, whatever was started beside it; else its last start."""
    ended = [token for token, ack in attempts.items() if ack.state.terminal]
    latest = max(ended or attempts, default=None)
    return None if latest is None else attempts[latest]


def outcome_of(attempts: Mapping[int, Ack], token: int) -> str | None:
    """What an attempt of a run came to; None: it is under way."""
    ack = attempts[token]
    if ack.state is not AckState.STARTED:
        return str(ack.state)
    over = token < max(attempts) or any(other.state.terminal for other in attempts.values())
    return LOST if over else None
