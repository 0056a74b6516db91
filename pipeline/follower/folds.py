"""The fold for an id, whatever form it has."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.core.ids import KeyedId, ScheduleOccurrence, parse_id
from pipeline.core.layout import Layout
from pipeline.follower.occurrence import ScheduledFold
from pipeline.follower.trail import Fold, KeyedFold, Trail
from pipeline.ports import Record


def fold_trail(records: Iterable[Record], job_id: str, layout: Layout) -> Trail:
    """What the records of its home partition say about one job. Undecodable if `job_id` is no id."""
    fold = fold_of(job_id, layout)
    fold.take_all(records)
    return fold.trail


def fold_of(job_id: str, layout: Layout) -> Fold:
    """A fold to be fed with the records of the home partition of `job_id`. Undecodable if that is no id."""
    match parse_id(job_id):
        case KeyedId() as keyed:
            return KeyedFold(job_id, keyed)
        case ScheduleOccurrence() as occurrence:
            return ScheduledFold(job_id, occurrence, layout)
        case _:
            return Fold(job_id)
