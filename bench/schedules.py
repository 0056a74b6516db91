"""What an owner spends on the occurrences of schedules, without a store: `python bench/schedules.py [SCHEDULES]`.

One partition with its index on disk, so many schedules each due once a minute (2,000). A minute is played in steps of a
second: what is due fires, a worker says that each occurrence succeeded, that is noted, and all that was written is
read back. Prints microseconds of processor time an occurrence, one JSON object: `fire` (due, decide, encode, file),
`read` (what comes back of it), `facts` (reading that they succeeded), `done` (noting it), `again` (what comes back of
that). The client library comes on top: four records appended and four read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core import keys, series
from pipeline.core.job import Event, Takeover
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.schedule import ScheduleSpec
from pipeline.core.site import Site
from pipeline.emission import Emission
from pipeline.partition import Partition
from pipeline.ports import Put

NOW = 1_790_000_040_000
MINUTE, SECOND = 60_000, 1_000
MINUTES = 3
"""The first fills what later ones find."""
NAMES = Names("bench")
PAYLOAD = json.dumps({"to": "somebody@example.com", "text": "x" * 110}).encode()


class Owner:
    """One partition, whose log is written by what it emits."""

    def __init__(self, directory: Path, overlap: str) -> None:
        layout = default_layout(queues={"default": 12})
        site = Site(names=NAMES, layout=layout, cluster_id="c", topic_id="t", stale_after_ms=1_000_000)
        self.index, self.overlap, self.layout = RocksIndex(directory), overlap, layout
        self.partition = Partition(0, site=site, index=self.index)
        self.offset, self.spent = 0, dict[str, float]()
        took = Takeover(process="p", transactional_ids=(), generation=1, nonce="n", at=NOW)
        put = self.partition.takeover(took)
        self.partition.asked(0)
        self.read([put], NOW)

    def read(self, puts: Sequence[Put], now: int, name: str = "begin") -> None:
        records: list[Any] = []
        for put in puts:
            records.append(MemoryRecord(put, self.offset, now, None))
            self.offset += 1
        self.timed(name, lambda: self.partition.ingest(records, self.offset, now))

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        began = process_time()
        found = call()
        self.spent[name] = self.spent.get(name, 0.0) + process_time() - began
        return found

    def schedules(self, count: int) -> None:
        ids = (f"report-{n:06}" for n in range(10**6))
        mine = [
            id_
            for _, id_ in zip(
                range(count), (i for i in ids if self.layout.home_of_name(i) == 0), strict=False
            )
        ]
        puts = []
        for n, id_ in enumerate(mine):
            second = n % 60
            spec = ScheduleSpec(
                id=id_, handler="email.send", cron=f"{second} * * * * *", tz="Europe/Berlin", overlap=self.overlap,
                payload=PAYLOAD,
            )  # fmt: skip
            state = series.created(spec, incarnation=1_000 + n, at=NOW)
            puts.append(Put(NAMES.jobs, 0, keys.schedule_key(id_), codec.SCHEDULE.encode(state)))
        self.read(puts, NOW)

    def settle(self, now: int) -> Emission:
        emission = self.partition.emit(self.partition.due(now, 8_000, 8 << 20), now)
        self.partition.applied(emission)
        return emission

    def second(self, now: int) -> int:
        """Play one; the number of occurrences."""
        fired = self.timed("fire", lambda: self.settle(now))
        own = [put for put in fired.puts if put.topic == NAMES.jobs]
        self.read(own, now, "read")
        runs = [codec.RUN.decode(put.value) for put in fired.puts if put.topic != NAMES.jobs]
        facts = [done(run.occurrence_id, now + 100) for run in runs]
        self.read(facts, now + 100, "facts")
        noted = self.timed("done", lambda: self.settle(now + 200))
        self.read(noted.puts, now + 200, "again")
        return len(runs)


def done(occurrence: str, at: int) -> Put:
    event = Event(
        id=occurrence,
        kind="done",
        at=at,
        job_id=occurrence,
        occurrence_id=occurrence,
        run=1,
        outcome="succeeded",
    )
    return Put(NAMES.jobs, 0, keys.done_key(occurrence, 1), codec.EVENT.encode(event))


def measured(count: int, overlap: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        owner = Owner(Path(name), overlap)
        owner.schedules(count)
        occurrences = 0
        for second in range(MINUTES * 60):
            if second == 60:
                owner.spent, occurrences = {}, 0
            occurrences += owner.second(NOW + 1 + (second + 1) * SECOND)
        owner.index.close()
    assert occurrences == count * (MINUTES - 1), f"{occurrences} occurrences of {count} schedules"
    spent = {name: round(seconds / occurrences * 1e6, 1) for name, seconds in owner.spent.items()}
    return {**spent, "all": round(sum(spent.values()), 1)}


if __name__ == "__main__":
    schedules = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    print(json.dumps({overlap: measured(schedules, overlap) for overlap in ("allow", "skip")}))
