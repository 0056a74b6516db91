"""A replay as it is known to everybody: who asked for what, how far it is, and what became of it (pure).

Its record stands on `meta`, which is compacted, so the last word on each replay is all there is to read, however busy
`events` is. It is an Event whose `detail` tells the rest, so it has no schema of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Event
from pipeline.replay.runner import Runner
from pipeline.survey import Filter, Part, State, Window

KIND = "replay"
FIRST = Part("", 0)
"""Before every work partition."""
STALE_MS = 30_000
"""After so long without a word its process counts as gone."""


class ReplayState(StrEnum):
    """What its record says."""

    RUNNING = "running"
    """It is carried out, or was interrupted and can be resumed."""
    FINISHED = "finished"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        """Whether it may go on."""
        return self is ReplayState.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay. Times are epoch ms by the store's clock; `rate` in runs a second, None: no limit.

    `era`: of the installation when it began; in another one its runs may not be there. `matched`: occurrences that were
    to be replayed when it began. `counts`: what became of those settled so far.
    `part`, `offset`: all before this offset of this work partition is settled, and all partitions before it in order.
    `runner`: the process that carries it out, None if none does. `attempt` grows whenever a process takes it up or ends
    it for another one, `resumed` where it goes on.
    `reason`: of the first occurrence that was refused, or why it was cancelled.
    """

    id: str
    state: ReplayState
    window: Window
    wanted: Filter
    requested_by: str
    created_at: int
    updated_at: int
    era: int = 1
    rate: float | None = None
    runner: Runner | None = None
    attempt: int = 0
    matched: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    part: Part = FIRST
    offset: int = 0
    resumed: int = 0
    reason: str = ""

    def alive(self, now: int) -> bool:
        """Whether a process has said of late that it carries it out."""
        running = self.state is ReplayState.RUNNING and self.runner is not None
        return running and now - self.updated_at < STALE_MS

    def asks_as(self, other: Replay) -> bool:
        """Whether both were asked for by the same request."""
        return (self.window, self.wanted) == (other.window, other.wanted)

    def overlaps(self, other: Replay) -> bool:
        """Whether an occurrence could be meant by both."""
        mine, its = self.wanted, other.wanted
        named = ((mine.handler, its.handler), (mine.schedule, its.schedule), (mine.queue, its.queue))
        return (
            self.window.from_ms < other.window.to_ms
            and other.window.from_ms < self.window.to_ms
            and all(None in pair or pair[0] == pair[1] for pair in named)
            and _prefixes_meet(mine.key_prefix, its.key_prefix)
            and all(its.labels.get(name, value) == value for name, value in mine.labels.items())
        )


def _part(text: str) -> Part:
    queue, _, partition = text.rpartition("/")
    return Part(queue, int(partition))


def _prefixes_meet(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one.startswith(other) or other.startswith(one)


def to_event(replay: Replay) -> Event:
    wanted = replay.wanted
    asked = {
        "handler": wanted.handler,
        "schedule": wanted.schedule,
        "queue": wanted.queue,
        "key_prefix": wanted.key_prefix,
        "labels": dict(wanted.labels),
        "outcomes": sorted(wanted.outcomes),
    }
    detail = {
        "from": str(replay.window.from_ms),
        "to": str(replay.window.to_ms),
        "wanted": json.dumps(asked, separators=(",", ":")),
        "requested_by": replay.requested_by,
        "created_at": str(replay.created_at),
        "rate": "" if replay.rate is None else repr(replay.rate),
        "era": str(replay.era),
        "runner": "" if replay.runner is None else replay.runner.text,
        "attempt": str(replay.attempt),
        "matched": str(replay.matched),
        "counts": json.dumps(dict(replay.counts), separators=(",", ":")),
        "part": f"{replay.part.queue}/{replay.part.partition}",
        "offset": str(replay.offset),
        "resumed": str(replay.resumed),
    }
    return Event(
        id=replay.id,
        kind=KIND,
        at=replay.updated_at,
        outcome=replay.state.value,
        reason=replay.reason or None,
        detail=detail,
    )


def of_event(event: Event) -> Replay:
    """Undecodable if it is no record of a replay."""
    detail = event.detail
    try:
        if event.kind != KIND:
            raise ValueError(f"a {event.kind}")
        asked = json.loads(detail["wanted"])
        wanted = Filter(
            handler=asked["handler"],
            schedule=asked["schedule"],
            queue=asked["queue"],
            key_prefix=asked["key_prefix"],
            labels=dict(asked["labels"]),
            outcomes=frozenset(map(State, asked["outcomes"])),
        )
        return Replay(
            id=event.id,
            state=ReplayState(event.outcome or ""),
            window=Window(from_ms=int(detail["from"]), to_ms=int(detail["to"])),
            wanted=wanted,
            requested_by=detail["requested_by"],
            created_at=int(detail["created_at"]),
            updated_at=event.at,
            rate=float(detail["rate"]) if detail["rate"] else None,
            era=int(detail["era"]),
            runner=Runner.of(detail["runner"]) if detail["runner"] else None,
            attempt=int(detail["attempt"]),
            matched=int(detail["matched"]),
            counts={name: int(count) for name, count in json.loads(detail["counts"]).items()},
            part=_part(detail["part"]),
            offset=int(detail["offset"]),
            resumed=int(detail["resumed"]),
            reason=event.reason or "",
        )
    except (KeyError, ValueError, TypeError, AttributeError, InvalidInput) as error:
        raise Undecodable(f"the record of replay {event.id:.80}: {error}") from None
