"""What is told of a change: an event `audit` on `events`, beside the answers of owners (docs/access.md)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from random import Random

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.hashing import text_hash
from pipeline.core.job import Event
from pipeline.core.layout import Layout
from pipeline.ports import Put
from pipeline.server.access import Principal

KIND, NEW_JOB = "audit", "job.create"
_random = Random()
TEXT_LIMIT = 500
"""Characters of one fact: whoever asks may say anything."""
TURN_MS = 1_000
"""So long the new jobs of all servers are noted at one partition, then at the next."""


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
    is about stand, but that of a new job beside those of other new jobs: their homes are many, and each would take a
    request to the store of its own. `about`: facts beside; empty ones are left out."""
    event = Event(
        id=f"{_random.getrandbits(128):032x}",
        kind=KIND,
        at=at,
        job_id=job_id,
        outcome=outcome,
        detail={**_asked(who, verb), **_told(about)} if about else _asked(who, verb),
    )
    if verb == NEW_JOB:
        home = at // TURN_MS % layout.partitions
    else:
        home = _home(layout, job_id, (about or {}).get("schedule"))
    return Put(topic, home, event.id.encode(), codec.EVENT.encode(event))


@lru_cache(maxsize=1024)
def _asked(who: Principal, verb: str) -> Mapping[str, str]:
    """Not to be changed: the same from request to request."""
    return _told({"verb": verb, "requested_by": who.name, "role": who.role.word, "token": who.token})


def _told(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: str(fact)[:TEXT_LIMIT] for name, fact in facts.items() if fact not in (None, "")}


def _home(layout: Layout, job_id: str | None, schedule: object) -> int:
    try:
        if job_id is not None:
            return layout.home(job_id)
        if isinstance(schedule, str):
            return layout.home_of_name(schedule)
    except Undecodable:
        pass  # it was asked for all the same
    return text_hash("audit") % layout.partitions
