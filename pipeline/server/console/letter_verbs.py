"""Requeuing dead letters: as they are, or one with another payload."""

from __future__ import annotations

from typing import Any

from pipeline.follower import WantedLetters
from pipeline.server.console.parts.basic import counts
from pipeline.server.console.parts.payload_sheet import ask_payload
from pipeline.server.console.visit import Visit

_OUTCOMES = (
    *("requeued", "brought_forward", "superseded", "pending", "cancelled", "stopped", "refused", "not_found"),
    *("unknown", "unreadable"),
)


async def requeue_letters(visit: Visit, wanted: WantedLetters, **how: Any) -> None:
    """As `Actions.requeue_letters`, and tell how many came out how."""
    done = await visit.change(lambda who: visit.actions.requeue_letters(who, wanted, **how))
    if done is not None:
        left = done.view.get("left")
        more = f"; {left:,} were not reached in time: try again" if left else ""
        visit.tell(counts({name: done.view[name] for name in _OUTCOMES}) + more, good=not left)


async def requeue_edited(visit: Visit, job: dict[str, Any]) -> None:
    """One further run of a dead job, with the payload that is asked for first."""
    payload = await ask_payload(visit, job, title="Edit the payload and requeue", verb="Requeue")
    if payload is not None:
        await requeue_letters(visit, WantedLetters(ids=frozenset({job["id"]})), payload=payload)
