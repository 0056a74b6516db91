"""The answer to a command, and the answers that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.core.schedule import NOT_ALONE
from pipeline.found import Found
from pipeline.runs import FIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a command."""

    outcome: str
    job_id: str | None = None
    occurrence_id: str | None = None
    run: int | None = None
    reason: str | None = None
    due_at: int | None = None
    detail: Mapping[str, str] = field(default_factory=dict)
    """Further facts, for a schedule's answer."""


def too_late(found: Found) -> Answer:
    """The answer where nothing can be changed any more; the sender looks further where the owner does not know."""
    if found.ended in ("cancelled", "stopped"):
        return answer_of(found, found.ended)
    return answer_of(found, FIRED if found.ended else "not_found", reason=found.ended or None)


def not_alone(found: Found) -> Answer:
    """The answer about what a schedule has still to come, which nobody can change by itself: the grid knows no gaps but
    those of the schedule's definition."""
    name = found.to_come_of
    if found.waiting:
        what = f"it waits for an earlier occurrence of the schedule {name} and can only be cancelled"
    else:
        what = (
            f"it is the next instant of the schedule {name} and cannot be changed alone: pause {name},"
            " exclude the instant from it, or trigger it for a run at another time"
        )
    return answer_of(found, NOT_ALONE, reason=f"{found.job_id}: {what}")


def answer_of(found: Found, outcome: str, **more: Any) -> Answer:
    return replace(Answer(outcome=outcome, job_id=found.job_id, occurrence_id=found.occurrence_id), **more)
