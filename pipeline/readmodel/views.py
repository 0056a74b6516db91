"""Rows of jobs as JSON."""

from __future__ import annotations

from typing import Any

from pipeline.core.job import Ack, AckState
from pipeline.follower.job import job_view
from pipeline.follower.values import shown_instant
from pipeline.follower.why import in_words
from pipeline.readmodel.tale import Tale

View = dict[str, Any]
LINE = 300


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
        "error": error_line(story.last),
    }


def error_line(last: Ack | None) -> str | None:
    """What went wrong, in one line."""
    if last is None or last.error is None or last.state is AckState.SUCCEEDED:
        return None
    lines = last.error.message.splitlines()
    return f"{last.error.type}: {lines[0] if lines else ''}".rstrip(": ")[:LINE]


def whole(id_: str, tale: Tale, payload: bytes | None) -> View:
    """All of `dueline job get`, and what else is known. `payload` None: it is not kept any more."""
    story = tale.story()
    shown = story.shown
    view = job_view(story)
    return {
        **view,
        "id": id_,
        "created_at": shown_instant(shown.created_at) if shown is not None and shown.created_at else None,
        "ended_at": shown_instant(tale.ended_at) if tale.ended_at else None,
        "labels": dict(shown.labels) if shown else {},
        "schedule": shown and shown.schedule_id,
        "occurrence": tale.id,
        "serial": shown and shown.serial,
        "failures": shown.failures if shown else 0,
        "skipped": story.trail.skipped,
        "reason": None if story.trail.skipped is None else in_words(story.trail.skipped),
        "waits_behind": story.trail.behind,
        "kept": payload is not None,
        "payload": None if payload is None else payload.decode("utf-8", "replace"),
    }


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
