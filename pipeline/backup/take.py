"""Taking a backup: cut, fold, write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pipeline import codec
from pipeline.backup import files
from pipeline.backup.cut import Cut, Positions, Reach, take_cut
from pipeline.backup.jobs import JobsState, Scratch
from pipeline.backup.manifest import FILES, FileNote, Manifest
from pipeline.backup.records import Plain, plain
from pipeline.backup.runs import Finished, OpenRuns, consistent
from pipeline.codec.registry import FRAME, MAGIC
from pipeline.core.errors import Undecodable
from pipeline.core.keys import HOLD_KEY, KEYED
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.ports import Clock, Reader, Record

META_FILE, JOBS_FILE, RUNS_FILE = FILES
META = "meta"
OF_ONE_STORE = (b"g/", b"writer", HOLD_KEY)
"""Keys of `meta` that say something of processes and topics which a restored installation has not."""
KINDS = {
    b"j/": "jobs",
    b"a/": "changed",
    b"k/": "keys",
    b"r/": "retries",
    b"s/": "schedules",
    b"c/": "commands",
    b"d/": "done_facts",
    b"h/": "highest",
    b"x/": "stops",
}
OTHER, OPEN_RUNS, UNREADABLE, PENDING = "other", "open_runs", "unreadable_runs", "pending"
WAITING = (b"j/", b"a/")
"""Jobs without a key whose first run is to come; whether one with a key is pending its state tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The installation that is backed up, and who takes the backup."""

    reader: Reader
    positions: Positions
    clock: Clock
    names: Names
    layout: Layout
    era: int
    id: str
    product_version: str


def take_backup(
    source: Source, target: Path, open_scratch: Callable[[Path], AbstractContextManager[Scratch]]
) -> Manifest:
    """Write the backup to `target`, a directory that must not exist. Refused, StoreUnreachable: nothing is left."""
    with files.directory(target) as directory:
        created_at = source.clock.now()
        cut = take_cut(source.positions, source.names, source.layout)
        writing = _Writing(source, cut, directory)
        with open_scratch(directory / "scratch") as scratch:
            notes = writing.all(JobsState(scratch, source.layout, source.era))
        manifest = Manifest(
            id=source.id,
            created_at=created_at,
            product_version=source.product_version,
            prefix=source.names.prefix,
            era=source.era,
            layout=source.layout.identity(),
            counts=writing.counts,
            fingerprints=tuple(sorted(writing.fingerprints)),
            cut=cut.as_json(),
            files=notes,
        )
        files.write_manifest(directory, manifest)
    return manifest


class _Writing:
    """The container files of one backup."""

    def __init__(self, source: Source, cut: Cut, directory: Path) -> None:
        self._source = source
        self._cut = cut
        self._directory = directory
        self._frames: set[bytes] = set()
        names = (PENDING, *KINDS.values(), OTHER, OPEN_RUNS, UNREADABLE)
        self.counts: dict[str, int] = dict.fromkeys(names, 0)

    @property
    def fingerprints(self) -> set[str]:
        """Of the values that were written, 16 hex digits each."""
        return {f"{int.from_bytes(frame[2:], 'little'):016x}" for frame in self._frames}

    def all(self, jobs: JobsState) -> tuple[FileNote, ...]:
        """Runs before jobs: a command of which a run came is left out where the run is kept."""
        reader, names = self._source.reader, self._source.names
        for partition, span in enumerate(self._cut.jobs):
            jobs.fold(partition, reader.read(names.jobs, partition), span)
        jobs.settle()
        meta = self._file(META_FILE, self._meta())
        runs = self._file(RUNS_FILE, self._runs(jobs))
        return meta, self._file(JOBS_FILE, self._jobs(jobs)), runs

    def _file(self, name: str, records: Iterator[Plain]) -> FileNote:
        with files.container(self._directory, name) as container:
            for record in records:
                container.add(record)
                frame = record["value"][:FRAME]
                if frame.startswith(MAGIC) and len(frame) == FRAME:
                    self._frames.add(frame)
            return container.finish()

    def _meta(self) -> Iterator[Plain]:
        latest: dict[bytes, Record] = {}
        for record in self._source.reader.read(self._source.names.meta, 0):
            latest[record.key() or b""] = record
        for key, record in sorted(latest.items()):
            if record.value() is not None and not key.startswith(OF_ONE_STORE):
                yield plain(META, record)

    def _jobs(self, jobs: JobsState) -> Iterator[Plain]:
        counts: Counter[bytes] = Counter()
        for partition, span in enumerate(self._cut.jobs):
            for record in jobs.live(partition):
                if not consistent(record, span.settled, jobs, self._source.layout):
                    continue
                counts[record["key"][:2]] += 1
                self.counts[PENDING] += _pending(record)
                yield record
        for kind, count in counts.items():
            self.counts[KINDS.get(kind, OTHER)] += count

    def _runs(self, jobs: JobsState) -> Iterator[Plain]:
        for queue, reaches in self._cut.work.items():
            for partition, reach in enumerate(reaches):
                yield from self._runs_of(queue, partition, reach, jobs)

    def _runs_of(self, queue: str, partition: int, reach: Reach, jobs: JobsState) -> Iterator[Plain]:
        reader, names = self._source.reader, self._source.names
        forgotten = reach.committed is None and reach.acked
        finished = Finished(reach, reader.read(names.acks(queue), partition) if forgotten else ())
        if finished.mark >= reach.end:
            return
        runs = OpenRuns(queue, finished, reach, jobs, self._source.layout)
        for record in runs.of(reader.read(names.work(queue), partition, start=finished.mark)):
            self.counts[OPEN_RUNS] += 1
            yield record
        self.counts[UNREADABLE] += runs.unreadable


def _pending(record: Plain) -> bool:
    """Whether it is of a job whose first run is to come."""
    kind: bytes = record["key"][:2]
    if kind != KEYED:
        return kind in WAITING
    try:
        return codec.KEY_STATE.decode(record["value"]).run is not None
    except Undecodable:
        return False  # its owner buries it, then as now
