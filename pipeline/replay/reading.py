"""The runs of one work partition that are to be replayed: read once more in order, and looked at just before each round
is asked for, so that what was acked meanwhile is left out (H29)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from pipeline.ports import Record, Scan
from pipeline.replay.batches import Found
from pipeline.replay.chosen import Chosen, Spot, Stretch
from pipeline.survey import Ground
from pipeline.survey.marks import ENDED, read_ack

TERMINAL = b"t/"
ROUND_BYTES = 16 * 1024 * 1024
"""Of the runs of one round: payloads may be large."""


class Reread(NamedTuple):
    """A chosen place, and the record that stands there; None: it is gone."""

    spot: Spot
    record: Record | None


class Rereading:
    """One stretch of a replay that began at `created_at`, epoch ms by the store's clock. `acks` reads the one topic
    while `ground` reads the other."""

    def __init__(self, ground: Ground, acks: Scan, stretch: Stretch, created_at: int) -> None:
        self._scan, self._acks_scan = ground.scan, acks
        self._number = stretch.part.partition
        self._work = ground.names.work(stretch.part.queue)
        self._acks = ground.names.acks(stretch.part.queue)
        self._stretch = stretch
        self._next_ack = stretch.acks
        self._created_at = created_at
        self._acked: set[int] = set()
        """Offsets of runs that were seen without an ack, and have one by now."""

    def rounds(self, chosen: Chosen, since: int, size: Callable[[], int]) -> Iterator[list[Reread]]:
        """What stands at the places from offset `since` on, in rounds of as many as `size` says at the time."""
        held: list[Reread] = []
        room = ROUND_BYTES
        for each in self._read(chain.from_iterable(chosen.spots(self._stretch, since))):
            held.append(each)
            room -= len(each.record.value() or b"") if each.record is not None else 0
            if room <= 0 or len(held) >= size():
                yield held
                held, room = [], ROUND_BYTES
        if held:
            yield held

    def _read(self, spots: Iterator[Spot]) -> Iterator[Reread]:
        spot = next(spots, None)
        if spot is None:
            return
        for batch in self._scan.batches(self._work, self._number, spot.offset, self._stretch.last + 1):
            for record in batch:
                offset = record.offset() or 0
                while spot is not None and spot.offset < offset:
                    yield Reread(spot, None)
                    spot = next(spots, None)
                if spot is not None and spot.offset == offset:
                    yield Reread(spot, record)
                    spot = next(spots, None)
        while spot is not None:
            yield Reread(spot, None)
            spot = next(spots, None)

    def fresh(self, round_: Sequence[Reread]) -> tuple[list[Found], int]:
        """Those of a round that are still to be replayed, as of now, and how many are not: acked meanwhile, emitted
        since the replay began (by itself, before it was resumed, or by a retry), or gone from the log."""
        self._look_at_acks()
        found = [
            Found(record.key() or b"", record.value() or b"", spot.dead)
            for spot, record in round_
            if record is not None
            and record.timestamp()[1] <= self._created_at
            and spot.offset not in self._acked
        ]
        return found, len(round_) - len(found)

    def _look_at_acks(self) -> None:
        """An ack of a run that was chosen names an offset up to the last of them; those of what the replay itself has
        emitted lie behind."""
        end = self._acks_scan.span(self._acks, self._number).end
        for batch in self._acks_scan.batches(self._acks, self._number, self._next_ack, end):
            for record in batch:
                key, value = record.key() or b"", record.value()
                word = read_ack(key, value) if key.startswith(TERMINAL) and value is not None else None
                if word is not None and word.code in ENDED and word.offset <= self._stretch.last:
                    self._acked.add(word.offset)
        self._next_ack = max(self._next_ack, end)
