"""What an outcome means as a status: done, stored and still to be done, or a problem."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.core.errors import NotFound
from pipeline.server.actions import Done
from pipeline.server.endpoint import Answer
from pipeline.server.problems import NotDone

ACCEPTED = 202
REFUSED: Mapping[str, str] = {
    "too_late": "it fired, is queued or running, or has ended",
    "pending": "it has not fired yet: there is nothing to run once more",
    "rejected": "the key is taken",
    "skipped": "an earlier one still runs",
}
"""Outcomes that are not what was asked for, and why."""


def answer_of(done: Done, *, refused: frozenset[str] = frozenset(REFUSED), status: int = 200) -> Answer:
    """NotFound, Refused by the outcome; 202 where nobody answered in time, though it is stored and will be done."""
    outcome = done.view.get("outcome", done.view.get("status"))
    match outcome:
        case "not_found":
            raise NotFound(f"{done.view['id']}: there is nothing of this id")
        case "unknown" | "accepted":
            status = ACCEPTED
        case str() if outcome in refused:
            reason = REFUSED.get(outcome, "it was ended before it fired")
            raise NotDone(f"{done.view['id']}: {outcome}: {reason}", outcome)
        case _:
            pass
    return Answer(done.view, status, done.positions)
