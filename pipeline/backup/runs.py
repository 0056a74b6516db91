"""Which runs on the work topics are open: emitted as far as `jobs` knows at the cut, and not known to have ended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pipeline import codec
from pipeline.acked import AckedRuns
from pipeline.backup.cut import Reach
from pipeline.backup.jobs import JobsState
from pipeline.backup.records import Plain, plain
from pipeline.core import keys, offset_metadata
from pipeline.core.errors import Undecodable
from pipeline.core.ids import parse_occurrence
from pipeline.core.job import Run
from pipeline.core.keys import RETRY
from pipeline.core.layout import Layout
from pipeline.core.offset_metadata import OffsetMetadata, Start
from pipeline.core.schedule import Schedule
from pipeline.ports import Record

FIRST_RUN = 1


class Finished:
    """Which runs of a work partition have ended, as its group says; or, where the group has forgotten, its acks."""

    def __init__(self, reach: Reach, acks: Iterable[Record]) -> None:
        """`acks` = the partition's, which are read only if nothing is committed. StopPartition if the offset's metadata
        cannot be read."""
        committed = reach.committed
        self.mark = 0 if committed is None else committed.offset
        found = (
            OffsetMetadata()
            if committed is None
            else offset_metadata.decode(committed.offset, committed.metadata)
        )
        self._finished = found.finished
        self._starts = dict(found.started)
        self._acked = learn_acks(acks, reach.acked) if committed is None else AckedRuns()

    def has(self, offset: int, run: Run) -> bool:
        """Asked in order of offset."""
        at = bisect_right(self._finished, offset, key=lambda each: each[0]) - 1
        return (at >= 0 and offset <= self._finished[at][1]) or (
            len(self._acked) > 0 and self._acked.took(offset, run)
        )

    def start(self, offset: int) -> Start | None:
        return self._starts.get(offset)


def learn_acks(records: Iterable[Record], end: int) -> AckedRuns:
    """The terminal acks below `end` of a partition whose group has forgotten everything."""
    acked = AckedRuns()
    for record in records:
        value = record.value()
        if value is None or (record.offset() or 0) >= end or not (record.key() or b"").startswith(b"t/"):
            continue
        try:
            acked.learn(codec.ACK.decode(value))
        except Undecodable:
            continue  # no worker wrote it
    acked.seal()
    return acked


@dataclass(slots=True)
class OpenRuns:
    """The open runs of one work partition, one after the other; `unreadable` counts records that are none."""

    queue: str
    finished: Finished
    reach: Reach
    jobs: JobsState
    layout: Layout
    unreadable: int = 0

    def of(self, records: Iterable[Record]) -> Iterator[Plain]:
        """`records` of the partition, from its mark on."""
        for record in records:
            offset, value = record.offset() or 0, record.value()
            if value is None or not self.finished.mark <= offset < self.reach.end:
                continue
            try:
                run = codec.RUN.decode(value)
                wanted = not self.finished.has(offset, run) and self._open(offset, run)
            except Undecodable:
                self.unreadable += 1  # its worker buries it, then as now
                continue
            if wanted:
                yield self._opened(record, self.finished.start(offset))

    def _open(self, offset: int, run: Run) -> bool:
        return still_open(run, self.jobs, self.layout, sure=offset < self.reach.sure)

    def _opened(self, record: Record, start: Start | None) -> Plain:
        opened = plain(f"work.{self.queue}", record)
        return opened if start is None else opened | {"starts": start.starts, "token": start.token}


def still_open(run: Run, jobs: JobsState, layout: Layout, *, sure: bool) -> bool:
    """Whether the run was emitted by the first edge of the cut, and was not followed by anything on `jobs`. Undecodable
    if it is of no job."""
    done, home = keys.done_key(run.occurrence_id, run.run), layout.home(run.job_id)
    if jobs.ended(done) or any(
        jobs.get(home, key) for key in (done, keys.retry_key(run.occurrence_id, run.run))
    ):
        return False
    return emitted(run, jobs, layout, sure=sure)


def emitted(run: Run, jobs: JobsState, layout: Layout, *, sure: bool) -> bool:
    """Whether the run is the highest of its occurrence and was emitted by the first edge of the cut: `sure`, or as far
    as `jobs` tells. The command that triggered it is ended there if it waits still: executed once more it would make
    another occurrence. Undecodable if it is of no job."""
    home, occurrence = layout.home(run.job_id), run.occurrence_id
    highest = jobs.get(home, keys.highest_key(occurrence))
    if run.run != (FIRST_RUN if highest is None else codec.HIGHEST.decode(highest["value"]).run):
        return False
    if sure or run.run > FIRST_RUN:
        return True
    if occurrence.startswith("s:"):
        return _decided(occurrence, home, jobs)
    return not (jobs.makes(occurrence) or jobs.makes(run.job_id) or _pending(run, home, jobs, layout))


def consistent(record: Plain, settled: int, jobs: JobsState, layout: Layout) -> bool:
    """Whether a live record of `jobs` follows from what was there at the first edge. A retry that came later may be of
    a run that was emitted after it, and then what that came of is in the backup."""
    if record["offset"] < settled or not record["key"].startswith(RETRY):
        return True
    try:
        run = codec.RUN.decode(record["value"])
        return emitted(replace(run, run=run.run - 1), jobs, layout, sure=False)
    except Undecodable:
        return True  # its owner buries it, then as now


def _pending(run: Run, home: int, jobs: JobsState, layout: Layout) -> bool:
    """Whether the first run of a job without a schedule is still to come."""
    if run.job_id.startswith("j"):
        firsts = keys.job_key(run.job_id), keys.changed_key(run.job_id)
        # Its maker may have put it anywhere, and its home may not have been looked at since it was moved there.
        return any(jobs.get(number, key) for number in range(layout.partitions) for key in firsts)
    state = jobs.get(home, keys.keyed_key(run.key or ""))
    waiting = None if state is None else codec.KEY_STATE.decode(state["value"]).run
    return waiting is not None and waiting.occurrence_id == run.occurrence_id


def _decided(occurrence: str, home: int, jobs: JobsState) -> bool:
    """Whether the schedule had come to this occurrence, or is no more."""
    parsed = parse_occurrence(occurrence)
    if parsed.manual_id and _asked_for(parsed.manual_id, parsed.kind, home, jobs):
        return False
    found = jobs.get(home, keys.schedule_key(parsed.schedule_id))
    if found is None:
        return True
    state = codec.SCHEDULE.decode(found["value"])
    if state.incarnation != parsed.incarnation:
        return parsed.incarnation < state.incarnation
    if parsed.kind == "b":
        return _made_up(state, parsed.manual_id, parsed.nominal_at)
    return parsed.kind == "t" or (
        parsed.nominal_at <= state.last_nominal and parsed.nominal_at not in state.buffer
    )


def _asked_for(command_id: str, kind: str, home: int, jobs: JobsState) -> bool:
    """Whether the command waits still: a backfill makes the same occurrences again, a trigger another one."""
    key = keys.command_key(command_id)
    if jobs.get(home, key) is None:
        return False
    if kind == "t":
        jobs.end(key)
    return kind == "b"


def _made_up(state: Schedule, backfill_id: str, nominal_at: int) -> bool:
    """Whether a backfill had come to this instant; one that is not there any more has come to its end."""
    backfill = next((each for each in state.backfills if each.id == backfill_id), None)
    if backfill is None:
        return True
    if backfill.cursor is None:
        return False
    return nominal_at >= backfill.cursor if backfill.reverse else nominal_at <= backfill.cursor
