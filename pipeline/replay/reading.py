"""The runs of one work partition that are to be replayed: read once more in order, and looked at just before each round
is asked for, so that what was acked meanwhile is left out (H29)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.portion import REPLAY_HEADER
from pipeline.ports import Record, Scan
from pipeline.replay.batches import Found
from pipeline.replay.chosen import Chosen, Spot, Stretch
from pipeline.replay.counts import CHANGED, MISSING
from pipeline.replay.record import Replay
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
    """One stretch of a replay. `acks` reads the one topic while `ground` reads the other; `heed` is called now and
    then, however far it is to the next place."""

    def __init__(
        self, ground: Ground, acks: Scan, stretch: Stretch, replay: Replay, heed: Callable[[], None]
    ) -> None:
        self._scan, self._acks_scan = ground.scan, acks
        self._number = stretch.part.partition
        self._work = ground.names.work(stretch.part.queue)
        self._acks = ground.names.acks(stretch.part.queue)
        self._stretch = stretch
        self._next_ack = stretch.acks
        self._replay = replay
        self._heed = heed
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
            self._heed()
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

    def fresh(self, round_: Sequence[Reread]) -> tuple[list[Found], Counter[str]]:
        """Those of a round that are still to be replayed, as of now, and how many are not, and why. Those that this
        replay has emitted itself, before it was resumed, are counted already."""
        self._look_at_acks()
        found, left_out = [], Counter[str]()
        for spot, record in round_:
            if record is None:
                left_out[MISSING] += 1
            elif record.timestamp()[1] > self._replay.created_at:
                left_out[CHANGED] += not emitted_by(self._replay.id, record.value() or b"")
            elif spot.offset in self._acked:
                left_out[CHANGED] += 1
            else:
                found.append(Found(record.key() or b"", record.value() or b"", spot.dead))
        return found, left_out

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


def emitted_by(replay_id: str, value: bytes) -> bool:
    """Whether this replay has emitted the run, or one of which it is a retry."""
    if replay_id.encode() not in value:
        return False
    try:
        return codec.RUN.decode(value).headers.get(REPLAY_HEADER) == replay_id
    except Undecodable:
        return False
