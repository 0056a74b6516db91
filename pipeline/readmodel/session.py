"""Following a store that was reached: which topics, from where, and how far all of it is written."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Record
from pipeline.readmodel.folding import Folding
from pipeline.readmodel.processes import LISTEN_MS
from pipeline.readmodel.rows import POSITION, after, position_key
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.source import Place, Source, Start

BATCH = 5_000
POLL_MS = 200
BEGINNING = -1
AGAIN_S = 15.0
"""How often a topic is looked for that should be there."""
NEARLY = 10_000
"""When so little is left of `jobs`, the other topics are read too."""


class Left(NamedTuple):
    """Offsets that are not folded yet, and up to when it is folded where the most is missing (epoch ms); None: nothing
    is missing, or nobody knows."""

    number: int
    since: int | None


class Session:
    """One thread. From the beginning `jobs` is read first: what is read about a job that is not known yet goes the long
    way."""

    def __init__(self, source: Source, folding: Folding, sheet: Sheet, rows: RocksRows) -> None:
        self._source, self._folding, self._sheet = source, folding, sheet
        self._stored = stored_positions(rows)
        self._epochs = {place: epoch for place, (_, epoch) in self._stored.items()}
        self._heard: dict[Place, int] = {}
        """LogAppendTime of the last record of each, epoch ms."""
        self._followed: frozenset[str] = frozenset()
        self._missing: dict[str, float] = {}
        """Topics that are not there, and when they are looked for again."""
        self._all = bool(self._stored)
        self.written: dict[Place, int] = {place: offset for place, (offset, _) in self._stored.items()}
        """The next offset of each partition, as of the last batch."""
        self._follow_new()

    @property
    def complete(self) -> bool:
        """Whether every topic is followed."""
        return self._all

    def step(self, most: int = BATCH) -> Sequence[Record]:
        """Read, fold and write a batch of so many records at most. Raises RebuildPartition, StoreUnreachable."""
        records = self._source.follow.poll(most, POLL_MS)
        self._folding.take(records)
        self._write(records)
        return records

    def left(self) -> Left:
        """What is not folded yet, of what is followed. Follows what is new, and all once this is little."""
        left = self._source.follow.left()
        total = sum(each or 1 for each in left.values())
        if not self._all and None not in left.values() and total < NEARLY:
            self._all = True
        self._follow_new()
        heard = (self._heard[place] for place in left if place in self._heard)
        return Left(total, min(heard, default=None))

    def _wanted(self) -> frozenset[str]:
        names, layout = self._source.names, self._folding.layout
        return frozenset(topics_of(names, layout) if self._all else (names.meta, names.jobs, names.fleet))

    def _follow_new(self) -> None:
        """Follow the topics that are not followed yet: a queue may be new, and so may its topics."""
        follow, fleet = self._source.follow, self._source.names.fleet
        starts: dict[Place, Start] = {}
        for topic in sorted(self._wanted() - self._followed):
            if time.monotonic() < self._missing.get(topic, 0.0):
                continue
            partitions = follow.partitions(topic)
            for place in ((topic, partition) for partition in range(partitions)):
                stored = self._stored.get(place, (BEGINNING, None))
                starts[place] = self._of_late(place) if topic == fleet else stored
            if partitions:
                self._followed |= {topic}
            else:
                self._missing[topic] = time.monotonic() + AGAIN_S
        follow.follow(starts)

    def _of_late(self, place: Place) -> Start:
        """Of `fleet`, where what is old is of no use."""
        return self._source.follow.since(*place, self._source.clock.now() - LISTEN_MS), None

    def follow_fleet(self) -> None:
        """The partitions of `fleet` that are new: there is one for each broker."""
        follow, fleet = self._source.follow, self._source.names.fleet
        places = ((fleet, number) for number in range(follow.partitions(fleet)))
        known = follow.positions()
        follow.follow({place: self._of_late(place) for place in places if place not in known})

    def _write(self, records: Sequence[Record]) -> None:
        """What was folded and how far that is, in one batch."""
        positions = self._source.follow.positions().items()
        moved = {
            place: offset for place, offset in positions if offset >= 0 and self.written.get(place) != offset
        }
        if not (moved or records):
            return
        for place, record in {(r.topic() or "", r.partition() or 0): r for r in records}.items():
            self._epochs[place], self._heard[place] = record.leader_epoch(), record.timestamp()[1]
        for place, offset in moved.items():
            if place[0] != self._source.names.fleet:  # whose records are young or of no use
                self._sheet.put(position_key(*place), json.dumps([offset, self._epochs.get(place)]).encode())
        self._sheet.write()
        self.written.update(moved)


def topics_of(names: Names, layout: Layout) -> list[str]:
    """All that are followed."""
    queues = [of(queue) for queue in layout.queues for of in (names.work, names.acks)]
    return [names.meta, names.jobs, names.events, names.dead, names.fleet, *queues]


def stored_positions(rows: RocksRows) -> dict[Place, Start]:
    found: dict[Place, Start] = {}
    for key, value in rows.scan(POSITION, after(POSITION)):
        offset, epoch = json.loads(value)
        found[key[1:-5].decode(), int.from_bytes(key[-4:], "big")] = offset, epoch
    return found
