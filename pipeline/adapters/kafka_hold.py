"""The hold on `meta`, begun by a restore and ended by a release; each change is one transaction of the one writer that
`meta` has at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pipeline import codec
from pipeline.adapters.kafka_meta import Meta, MetaTopic
from pipeline.core.backup import Hold, HoldState
from pipeline.core.errors import Refused, StoreUnreachable
from pipeline.core.keys import ERA_KEY, HOLD_KEY
from pipeline.core.token import LAST_ERA

Puts = Mapping[bytes, bytes | None]


def begin_restore(meta: MetaTopic, *, id: str, era: int, at: int, timeout_ms: int) -> Hold:
    """Write the hold of backup `id` with a new era, at least `era`, and forget all guards; return once everybody can
    read it. One of the same backup that was begun already stays. Refused for that of another."""

    def decide(found: Meta) -> tuple[Puts, Hold]:
        if found.hold is not None:
            return {}, _same(found.hold, id)
        new = max(era, (found.era or 0) + 1)
        if new > LAST_ERA:
            raise Refused(f"era {new} does not fit a token: nothing was changed")
        hold = Hold(id=id, state=HoldState.RESTORING, at=at, era=new)
        puts = {HOLD_KEY: codec.HOLD.encode(hold), ERA_KEY: codec.ERA.encode(codec.Era(era=new))}
        return {**puts, **dict.fromkeys(found.guards)}, hold

    hold = meta.write(decide)
    _await_readable(meta, hold, timeout_ms)
    return hold


def _await_readable(meta: MetaTopic, hold: Hold, timeout_ms: int) -> None:
    """Until no transaction hides it: of a dispatcher that was frozen in a takeover, until the coordinator ends that."""
    deadline = time.monotonic() + timeout_ms / 1000
    while meta.read().hold != hold:
        if time.monotonic() > deadline:
            raise StoreUnreachable("meta: a transaction stays open on it: try again in a minute")
        time.sleep(0.1)


def finish_restore(meta: MetaTopic, id: str) -> Hold:
    """All records of backup `id` are there."""

    def decide(found: Meta) -> tuple[Puts, Hold]:
        hold = _own(found.hold, id)
        held = Hold(id=hold.id, state=HoldState.HELD, at=hold.at, era=hold.era)
        return {HOLD_KEY: codec.HOLD.encode(held)}, held

    return meta.write(decide)


def lift(meta: MetaTopic, id: str) -> None:
    """End the hold of backup `id`; nothing if it has ended."""

    def decide(found: Meta) -> tuple[Puts, None]:
        if found.hold is None:
            return {}, None
        _same(found.hold, id)
        return {HOLD_KEY: None}, None

    meta.write(decide)


def _own(hold: Hold | None, id: str) -> Hold:
    if hold is None:
        raise Refused(f"the hold of backup {id} was released before all of it was written: delete the topics")
    return _same(hold, id)


def _same(hold: Hold, id: str) -> Hold:
    if hold.id != id:
        raise Refused(f"backup {hold.id} was restored here, not {id}, and is {hold.state}")
    return hold
