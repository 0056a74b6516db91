"""Who changed what: the events `audit`, the latest first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.readmodel.lists import BUDGET, BUDGET_S
from pipeline.readmodel.questions import AuditWanted, View
from pipeline.readmodel.rows import EVENT

AUDIT = b'"kind":"audit"'
LOOK_EACH = 256
"""Events between two looks at the time."""


def found(
    rows: RocksRows, span: tuple[int, int], wanted: AuditWanted, limit: int
) -> tuple[list[View], int | None, int]:
    """Up to `limit` of the events in `span` (their numbers), the number before which to go on, None at the end, and how
    many were looked at."""
    first, following = span
    views: list[View] = []
    deadline = time.monotonic() + BUDGET_S
    scanned = 0
    for number, value in _back(rows, first, following):
        scanned += 1
        if AUDIT in value and (view := _matching(json.loads(value), wanted)) is not None:
            views.append(view)
        if (
            len(views) == limit
            or scanned == BUDGET
            or (scanned % LOOK_EACH == 0 and time.monotonic() > deadline)
        ):
            return views, number if number > first else None, scanned
    return views, None, scanned


def _back(rows: RocksRows, first: int, following: int) -> Iterator[tuple[int, bytes]]:
    low, high = (EVENT + number.to_bytes(8, "big") for number in (first, following))
    for key, value in rows.scan_back(low, high):
        yield int.from_bytes(key[1:], "big"), value


def _matching(event: dict[str, Any], wanted: AuditWanted) -> View | None:
    detail = event["detail"]
    if event["kind"] != "audit":  # some fact of another one is called so
        return None
    if wanted.job not in (None, event["job"]) or wanted.schedule not in (None, event["schedule"]):
        return None
    if wanted.by not in (None, event["by"]):
        return None
    known = ("verb", "requested_by", "role", "token", "schedule")
    return {
        "at": event["at"],
        "by": event["by"],
        "role": detail.get("role"),
        "verb": detail.get("verb"),
        "outcome": event["outcome"],
        "job": event["job"],
        "schedule": event["schedule"],
        "detail": {name: text for name, text in detail.items() if name not in known},
    }
