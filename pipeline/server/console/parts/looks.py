"""How a status looks: a colour and a shape beside its word. Pure."""

from __future__ import annotations

_KINDS = {
    "wait": ("pending", "assigned", "restoring"),
    "busy": ("queued", "running", "fired"),
    "warn": ("retrying", "paused", "held", "cancelling", "purging"),
    "good": ("succeeded", "active", "finished", "live"),
    "bad": ("dead", "failed", "lost", "interrupted", "stuck", "overdue"),
    "off": ("cancelled", "stopped", "skipped", "ended", "released", "closed"),
}


def kind_of(status: str) -> str:
    """Its class in console.css."""
    word = status.partition(".")[0]
    return next((kind for kind, words in _KINDS.items() if word in words), "idle")
