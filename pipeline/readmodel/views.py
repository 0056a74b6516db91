"""Rows of jobs as JSON."""

from __future__ import annotations

from typing import Any

from pipeline.core.job import Ack, AckState
from pipeline.follower.job_view import job_view
from pipeline.follower.values import error_line, shown_instant
from pipeline.readmodel.tale import Tale

View = dict[str, Any]


def listed(id_: str, tale: Tale) -> View:
    """A line of a list (schemas/cli/job_list.json), with what became of it."""
    story = tale.story()
    shown = story.shown
    return {
        "id": id_,
        "handler": shown and shown.handler,
        "status": str(tale.status()),
        "due_at": shown and shown_instant(shown.due_at),
        "queue": shown.queue if shown else tale.queue or None,
        "key": shown and shown.key,
        "run": shown.run if shown is not None and story.trail.live else max(story.highest_run, 1),
        "failures": shown.failures if shown else 0,
        "labels": dict(shown.labels) if shown else {},
        "schedule": shown and shown.schedule_id,
        "ended_at": shown_instant(tale.ended_at) if tale.ended_at else None,
        "error": _error_of(story.last),
    }


def _error_of(last: Ack | None) -> str | None:
    """What went wrong, in one line."""
    return None if last is None or last.state is AckState.SUCCEEDED else error_line(last.error)


def whole(id_: str, tale: Tale, payload: bytes | None) -> View:
    """As `dueline job get` shows it. `payload` None: it is not kept any more."""
    told = tale.ended_at or tale.trail.ended_at
    view = job_view(tale.story(), payload=payload, told=told)
    return {**view, "id": id_, "occurrence": tale.id}


def run_of(tale: Tale, occurrence: str) -> View:
    """One of the recent runs of a schedule."""
    story, status = tale.story(), tale.status()
    first = story.first
    sent = tale.sent.get(min(tale.sent)) if tale.sent else None
    last = story.last
    took = (
        None
        if last is None or last.started_at is None or not last.state.terminal
        else last.at - last.started_at
    )
    return {
        "occurrence": occurrence,
        "due_at": first and shown_instant(first.due_at),
        "nominal_at": first and shown_instant(first.nominal_at),
        "outcome": str(status),
        "lateness_ms": None if sent is None or first is None else max(0, sent.at - first.due_at),
        "took_ms": took,
    }
