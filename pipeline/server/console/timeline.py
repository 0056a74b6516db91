"""The way of a job in time: created, due, fired, started, finished, and what it waited for between. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pipeline.core.times import parse_instant

ENDED = frozenset({"succeeded", "dead", "cancelled", "stopped", "skipped"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`at` None: still to come. `wait_ms` since the step before (None: unknown), and `wait`, which says until what;
    `colour`: its number among the waits that are drawn."""

    name: str
    at: str | None
    wait: str = ""
    wait_ms: int | None = None
    bad: bool = False
    colour: int = 0


_AGAIN = "again"
_WAITS = {
    "created": "after it was due",
    "due": "until it is due",
    "fired": "until it fired",
    _AGAIN: "in earlier runs and between them",
    "started": "until a worker started it",
    "finished": "until it ended",
}
_SO_FAR = {"pending": "overdue", "queued": "waiting for a worker", "running": "running"}
"""What lasts until now, by status."""
_COLOURS = {"fired": 1, "started": 2, "finished": 3}


def timeline(job: Mapping[str, Any], now: int) -> list[Step]:
    """Of a view of a job. Of several runs the last one's way, and what lay before it as one wait; what is still waited
    for at `now` (epoch ms) as a wait so far."""
    runs: Sequence[Mapping[str, Any]] = job["runs"]
    attempts = runs[-1]["attempts"] if runs else ()
    started = next((each["started_at"] for each in attempts if each["started_at"] is not None), None)
    ends = [each["finished_at"] for each in attempts if each["finished_at"] is not None]
    finished = ends[-1] if ends and job["status"] in ENDED else None
    fired, created = runs[0]["fired_at"] if runs else None, job.get("created_at")
    # while a retry waits, due_at is when that one is due
    due = job["due_at"] if not runs or job["status"] in ENDED or _before(job["due_at"], fired) else None
    places: list[tuple[str, str | None]] = [("created", created), ("due", due)]
    if created != due and _before(due, created):
        places.reverse()
    if runs or job["status"] not in ("cancelled", "skipped"):
        again = [(_AGAIN, runs[-1]["fired_at"])] if len(runs) > 1 else []
        places += [("fired", fired), *again, ("started", started), ("finished", finished)]
    steps = [Step(name=places[0][0], at=places[0][1])]
    for (_, before), (name, at) in pairwise(places):
        shown = f"run {runs[-1]['run']} fired" if name == _AGAIN else name
        bad = name == "finished" and job["status"] == "dead"
        wait, colour = _WAITS[name], _COLOURS.get(name, 0)
        steps.append(Step(name=shown, at=at, wait=wait, wait_ms=_between(before, at), bad=bad, colour=colour))
    steps = _with_open(steps, job["status"], now)
    return [step for step in steps if step.at is not None or step.name not in ("created", "due")]


def _with_open(steps: list[Step], status: str, now: int) -> list[Step]:
    """With the wait that has not ended."""
    place = next(
        (n for n, step in enumerate(steps) if step.at is None and step.name not in ("created", "due")), None
    )
    if place is None or status not in _SO_FAR or (begin := steps[place - 1].at) is None:
        return steps
    passed = now - parse_instant("at", begin)
    if passed < 0:
        return steps
    step = replace(steps[place], wait=f"{_SO_FAR[status]}, so far", wait_ms=passed)
    return [*steps[:place], step, *steps[place + 1 :]]


def shares(steps: Sequence[Step]) -> list[tuple[int, float]]:
    """What each wait after the due time is of all of them: its colour (1 fired, 2 started, 3 finished, 0 earlier runs),
    its share."""
    begin = next((place for place, step in enumerate(steps) if step.colour), len(steps))
    waits = [(step.colour, step.wait_ms) for step in steps[begin:] if step.wait_ms is not None]
    total = sum(ms for _, ms in waits)
    return [(number, ms / total) for number, ms in waits] if total else []


def _between(begin: str | None, end: str | None) -> int | None:
    if begin is None or end is None:
        return None
    return max(0, parse_instant("at", end) - parse_instant("at", begin))


def _before(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one <= other
