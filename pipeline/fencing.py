"""Ending the transactions of others that keep a takeover record from coming back (DESIGN §5.2, H18)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pipeline.core.states import PartitionState
from pipeline.heartbeat import Seen
from pipeline.partition import Partition
from pipeline.ports import Clock, Events, GroupLog

UNDECIDED_MS = 500
"""A takeover record not back after this long waits behind somebody's open transaction."""
RECENT_MS = 60_000
"""How far back heartbeats are read for dead processes that hold a transaction open."""


class Fencing:
    """Fences earlier owners, and whoever no longer beats; never our own ids or one that a live heartbeat names."""

    def __init__(
        self,
        log: GroupLog,
        fleet: Callable[[int], Sequence[Seen]],
        session_ms: int,
        clock: Clock,
        events: Events,
    ) -> None:
        """`fleet(since)`: the last heartbeat of all that beat since then; who is silent for `session_ms` is stale."""
        self._log, self._fleet, self._session_ms = log, fleet, session_ms
        self._clock, self._events = clock, events
        self._fenced: dict[str, int] = {}
        """Ids that were fenced, and when (monotonic ms): another partition need not do it again at once."""

    def undecided(self, partitions: Iterable[Partition]) -> None:
        """Once for each takeover that has waited long enough, and all ids at once: meanwhile nothing here fires."""
        late = self._clock.monotonic() - UNDECIDED_MS
        stuck = [
            p
            for p in partitions
            if p.state is PartitionState.RESTORING and not p.fenced_earlier and p.asked_at <= late
        ]
        if not stuck:
            return
        foreign = self._foreign(stuck, late)
        for partition in stuck:
            partition.fenced_earlier = True
        self._fenced.update(dict.fromkeys(foreign, self._clock.monotonic()))
        if foreign:
            numbers = [p.number for p in stuck]
            self._events.on("fencing", partitions=numbers, transactional_ids=foreign)
            self._log.fence(*foreign)

    def _foreign(self, stuck: Sequence[Partition], late: int) -> list[str]:
        live, stale = self._fleet_ids()
        earlier = [id_ for partition in stuck for id_ in partition.earlier_ids()]
        spared = live.union(self._log.transactional_ids)
        return [
            id_
            for id_ in dict.fromkeys((*earlier, *stale))
            if id_ not in spared and self._fenced.get(id_, late) <= late
        ]

    def _fleet_ids(self) -> tuple[set[str], list[str]]:
        """Transactional ids of processes that beat, and of those that no longer do: a worker's or another
        dispatcher's open transaction stands in our way as well as an earlier owner's."""
        now = self._clock.now()
        live: set[str] = set()
        stale: list[str] = []
        for seen in self._fleet(now - RECENT_MS):
            if seen.at < now - self._session_ms:
                stale += seen.heartbeat.transactional_ids
            else:
                live.update(seen.heartbeat.transactional_ids)
        return live, stale
