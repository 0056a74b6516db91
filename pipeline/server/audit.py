"""What is told of a change: an event `audit` on `events`, beside the answers of owners (docs/access.md)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.hashing import text_hash
from pipeline.core.job import Event
from pipeline.core.layout import Layout
from pipeline.ports import Put
from pipeline.server.access import Principal

KIND = "audit"
_random = Random()
TEXT_LIMIT = 500
"""Characters of one fact: whoever asks may say anything."""


def audit_put(
    who: Principal,
    verb: str,
    *,
    topic: str,
    layout: Layout,
    at: int,
    outcome: str,
    job_id: str | None = None,
    about: Mapping[str, object] | None = None,
) -> Put:
    """The record of a change that was asked for at `at`, the store's clock in ms. It stands where the events of what it
    is about stand. `about`: facts beside; empty ones are left out."""
    facts = {
        "verb": verb,
        "requested_by": who.name,
        "role": who.role.word,
        "token": who.token,
        **(about or {}),
    }
    event = Event(
        id=f"{_random.getrandbits(128):032x}",
        kind=KIND,
        at=at,
        job_id=job_id,
        outcome=outcome,
        detail={name: str(fact)[:TEXT_LIMIT] for name, fact in facts.items() if fact not in (None, "")},
    )
    home = _home(layout, job_id, facts.get("schedule"))
    return Put(topic, home, event.id.encode(), codec.EVENT.encode(event))


def _home(layout: Layout, job_id: str | None, schedule: object) -> int:
    try:
        if job_id is not None:
            return layout.home(job_id)
        if isinstance(schedule, str):
            return layout.home_of_name(schedule)
    except Undecodable:
        pass  # it was asked for all the same
    return text_hash("audit") % layout.partitions
