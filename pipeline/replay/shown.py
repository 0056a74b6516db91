"""Replays as JSON (schemas/cli/replay_show.json)."""

from __future__ import annotations

from typing import Any

from pipeline.core.times import format_instant
from pipeline.replay.record import Replay
from pipeline.survey import Filter, Window

OUTCOMES = (
    *("replayed", "brought_forward", "superseded", "changed", "missing"),
    *("pending", "stopped", "key_taken", "refused"),
)
"""What becomes of an occurrence that was to be replayed."""
NAMED = ("handler", "schedule", "queue", "key_prefix")
"""What of a filter is one name."""


def asked_of(window: Window, wanted: Filter) -> dict[str, Any]:
    """What a replay asks for, as JSON shows it."""
    return {
        "from": format_instant(window.from_ms),
        "to": format_instant(window.to_ms),
        "only": sorted(state.value for state in wanted.outcomes),
        "handler": wanted.handler,
        "schedule": wanted.schedule,
        "queue": wanted.queue,
        "labels": dict(wanted.labels),
        "key_prefix": wanted.key_prefix,
    }


def view_of(replay: Replay, standing: str) -> dict[str, Any]:
    return {
        "id": replay.id,
        "state": standing,
        **asked_of(replay.window, replay.wanted),
        "rate": replay.rate,
        "requested_by": replay.requested_by,
        "created_at": format_instant(replay.created_at),
        "updated_at": format_instant(replay.updated_at),
        "runner": None if replay.runner is None else str(replay.runner),
        "resumed": replay.resumed,
        "matched": replay.matched,
        "counts": {name: replay.counts.get(name, 0) for name in OUTCOMES},
        "reason": replay.reason or None,
    }
