"""The way of a job in time: created, due, fired, started, finished, and what it waited for between. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipeline.core.times import parse_instant

ENDED = frozenset({"succeeded", "dead", "cancelled", "stopped", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`at` None: still to come. `wait_ms` since the step before (None: unknown), and `wait`, which says until what."""

    name: str
    at: str | None
    wait: str = ""
    wait_ms: int | None = None
    bad: bool = False


_WAITS = ("until it is due", "until it fired", "until a worker started it", "until it ended")


def timeline(job: Mapping[str, Any]) -> list[Step]:
    """Of a view of a job. Of several runs, due and fired are of the first, finished is the last end."""
    runs: Sequence[Mapping[str, Any]] = job["runs"]
    attempts = [attempt for run in runs for attempt in run["attempts"]]
    started = next((each["started_at"] for each in attempts if each["started_at"] is not None), None)
    ends = [each["finished_at"] for each in attempts if each["finished_at"] is not None]
    finished = ends[-1] if ends and job["status"] in ENDED else None
    fired = runs[0]["fired_at"] if runs else None
    # while a retry waits, due_at is when that one is due
    due = job["due_at"] if not runs or job["status"] in ENDED or _before(job["due_at"], fired) else None
    places: list[tuple[str, str | None]] = [("created", job.get("created_at")), ("due", due)]
    if runs or job["status"] not in ("cancelled", "skipped"):
        places += [("fired", fired), ("started", started), ("finished", finished)]
    steps = [Step(name=places[0][0], at=places[0][1])]
    for place, ((_, before), (name, at)) in enumerate(pairwise(places)):
        bad = name == "finished" and job["status"] == "dead"
        steps.append(Step(name=name, at=at, wait=_WAITS[place], wait_ms=_between(before, at), bad=bad))
    return [step for step in steps if step.at is not None or step.name not in ("created", "due")]


def shares(steps: Sequence[Step]) -> list[tuple[int, float]]:
    """What each wait after the due time is of all of them: its number (1 fired, 2 started, 3 finished), its share."""
    numbers = {"fired": 1, "started": 2, "finished": 3}
    waits = [
        (numbers[step.name], step.wait_ms)
        for step in steps
        if step.name in numbers and step.wait_ms is not None
    ]
    total = sum(ms for _, ms in waits)
    return [(number, ms / total) for number, ms in waits] if total else []


def _between(begin: str | None, end: str | None) -> int | None:
    if begin is None or end is None:
        return None
    return max(0, parse_instant("at", end) - parse_instant("at", begin))


def _before(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one <= other
