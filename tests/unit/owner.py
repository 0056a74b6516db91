"""An owner of one partition, whose log a test writes record by record."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from pipeline import codec
from pipeline.adapters.memory_cluster import MemoryRecord
from pipeline.adapters.memory_index import MemoryIndex
from pipeline.core import keys
from pipeline.core.job import Command, Event, Run
from pipeline.core.layout import default_layout
from pipeline.core.names import Names
from pipeline.core.site import Site
from pipeline.emission import Emission
from pipeline.partition import Partition
from pipeline.ports import Entry, Put

NOW = 1_790_000_000_000
NAMES = Names("t")
LAYOUT = default_layout(queues={"default": 12})
SITE = Site(names=NAMES, layout=LAYOUT, cluster_id="c", topic_id="t", stale_after_ms=1_000_000)


def run_of(job_id: str, **changes: Any) -> Run:
    run = Run(
        job_id=job_id,
        occurrence_id=job_id,
        due_at=NOW + 5_000,
        run=1,
        queue="default",
        handler="email.send",
        created_at=NOW,
        nominal_at=NOW + 5_000,
        idempotency_key=job_id,
        payload=b"{}",
    )
    return replace(run, **changes)


class Owner:
    """A partition with an index and a log that a test writes, record by record."""

    def __init__(self, number: int, site: Site = SITE, index: MemoryIndex | None = None) -> None:
        self.index = index or MemoryIndex()
        self.partition = Partition(number, site=site, index=self.index)
        self.number = number
        self.offset = 0

    def read(self, key: bytes, value: bytes | None, *, at: int = NOW, headers: Any = None) -> int:
        record = MemoryRecord(Put(NAMES.jobs, self.number, key, value, headers), self.offset, at, None)
        self.partition.ingest([record], self.offset + 1, at)
        self.offset += 1
        return self.offset - 1

    def entry(self, key: bytes) -> Entry:
        found = self.index.entry(self.number, key)
        assert found is not None
        return found

    def settle(self, key: bytes) -> Emission:
        emission = self.partition.emit([self.entry(key)], NOW)
        self.partition.applied(emission)
        return emission

    def commit(self, until: int) -> Emission:
        """Settle all that is due by then in one batch, and read back what was written here."""
        emission = self.partition.emit(self.index.due(self.number, until, 100), until)
        self.partition.applied(emission)
        self.echo(emission)
        return emission

    def echo(self, emission: Emission) -> None:
        for put in emission.puts:
            if put.topic == NAMES.jobs and put.partition == self.number:
                self.read(put.key, put.value, at=emission.now, headers=put.headers)

    def command(self, verb: str, at: int = NOW, **fields: Any) -> Event:
        """Put a command, execute it, and give its answer."""
        self.ask(verb, at, **fields)
        return self.answers(self.commit(at))[-1]

    def ask(self, verb: str, at: int = NOW, **fields: Any) -> None:
        """Put a command, which the next commit executes."""
        command = Command(command_id=str(uuid.uuid4()), verb=verb, **fields)
        self.read(keys.command_key(command.command_id), codec.COMMAND.encode(command), at=at)

    @staticmethod
    def answers(emission: Emission) -> list[Event]:
        events = (codec.EVENT.decode(put.value or b"") for put in emission.puts if put.topic == NAMES.events)
        return [event for event in events if event.kind == "answer"]
