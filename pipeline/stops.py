"""Stops of one work partition: `x/<occurrence>` on acks says that no further run of it may start (DESIGN §7)."""

from __future__ import annotations

from typing import NamedTuple

from pipeline import codec
from pipeline.core.errors import Undecodable
from pipeline.core.job import Run
from pipeline.core.keys import stopped_key
from pipeline.ports import Record

LIMIT = 10_000
"""Stops kept for one partition; the oldest give way."""
MARGIN_MS = 60_000
"""Brokers' clocks differ: a run appended so much later than a stop cannot be the one that was stopped."""
NEVER = 1 << 63


class Stop(NamedTuple):
    """A stop of runs up to `run` (None = all), where it stands on the acks partition, and when it was appended."""

    run: int | None
    offset: int
    at: int


class Stops:
    """Who is to be stopped, by the record key of the stop. A stop matters until the runs of the partition that are not
    finished are all younger: whoever takes over before then must read it again."""

    def __init__(self) -> None:
        self._stops: dict[bytes, Stop] = {}
        self.news = False
        """Whether a stop came since this was last set to False."""

    def __len__(self) -> int:
        return len(self._stops)

    def learn(self, record: Record) -> None:
        """Take in a record with such a key; its tombstone lifts the stop. Undecodable."""
        key, value = record.key() or b"", record.value()
        self._stops.pop(key, None)
        if value is None:
            return
        event = codec.EVENT.decode(value)
        if event.occurrence_id is None or key != stopped_key(event.occurrence_id):
            raise Undecodable(f"a stop under the key {key[:120]!r}")
        self._stops[key] = Stop(event.run, record.offset() or 0, record.timestamp()[1])
        self.news = True
        if len(self._stops) > LIMIT:
            del self._stops[next(iter(self._stops))]

    def hits(self, run: Run) -> bool:
        """Whether this run is stopped."""
        if not self._stops:
            return False
        stop = self._stops.get(stopped_key(run.occurrence_id))
        return stop is not None and (stop.run is None or run.run <= stop.run)

    def forget(self, oldest: int) -> None:
        """All unfinished runs were appended at `oldest` (epoch ms) or later: what was stopped long before is over."""
        over = [key for key, stop in self._stops.items() if stop.at + MARGIN_MS < oldest]
        for key in over:
            del self._stops[key]

    @property
    def since(self) -> int:
        """The lowest offset of a stop that still matters."""
        return min((stop.offset for stop in self._stops.values()), default=NEVER)
