"""One job, told from its records: its runs and attempts, and where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.core.attempts import STOPPED, fold_attempts, last_word
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Ack, AckState, JobStatus, Run
from pipeline.follower.trail import Trail
from pipeline.follower.values import readable_ack, readable_run, shown_json
from pipeline.ports import Record

View = dict[str, Any]


class Emitted(NamedTuple):
    """A run on a work topic, its LogAppendTime and its offset."""

    run: Run
    at: int
    offset: int


class Story(NamedTuple):
    """All that the topics say about one job: its home, and the runs and acks where it fired."""

    trail: Trail
    runs: Mapping[int, Emitted]
    acks: list[Ack]

    @property
    def shown(self) -> Run | None:
        """The run to speak of: the one to come, else the first."""
        return self.trail.pending or self.trail.retry or self.first

    @property
    def first(self) -> Run | None:
        """The job as it was first known here."""
        return self.trail.first or (self.runs[min(self.runs)].run if self.runs else None)

    @property
    def highest_run(self) -> int:
        """Of those emitted; 0 if none is known."""
        return max([self.trail.highest, *self.runs, *(ack.run for ack in self.acks)])

    @property
    def last(self) -> Ack | None:
        """The last word on the last run."""
        return last_word(fold_attempts(self.acks).get(self.highest_run, {}))

    @property
    def latest(self) -> Run | None:
        """The run to come, else the last that was emitted, which a requeue may have given another payload."""
        trail = self.trail
        emitted = self.runs[max(self.runs)].run if self.runs else None
        return trail.pending or trail.retry or emitted or trail.first

    @property
    def payload(self) -> bytes | None:
        """Of the latest run; None: it is not kept, or its schedule left it out and gave it none."""
        run = None if self.trail.skipped is not None else self.latest
        return run.payload or None if run else None


def fold_runs(records: Iterable[Record], trail: Trail) -> dict[int, Emitted]:
    """Runs of one occurrence on a work partition, by number; the first record of a run counts. Of a keyed job
    whose incarnation is not known any more: of its last one."""
    if (occurrence_id := trail.occurrence_id) is not None:
        return _runs_of(occurrence_id.encode(), records)
    start = f"{trail.id}.".encode()
    own = [record for record in records if (record.key() or b"").startswith(start)]
    last = max((_incarnation(record) for record in own), default=-1)
    if last < 0:
        return {}
    trail.incarnation = last
    return _runs_of(f"{trail.id}.{last}".encode(), own)


def _runs_of(key: bytes, records: Iterable[Record]) -> dict[int, Emitted]:
    runs: dict[int, Emitted] = {}
    for record in records:
        if record.key() == key and (run := readable_run(record.value())) is not None:
            runs.setdefault(run.run, Emitted(run, record.timestamp()[1], record.offset() or 0))
    return runs


def _incarnation(record: Record) -> int:
    """Of the keyed job a work record belongs to; -1 if its key is no occurrence of one."""
    try:
        parsed = parse_id((record.key() or b"").decode("utf-8", "replace"))
    except Undecodable:
        return -1
    return parsed.incarnation or 0 if isinstance(parsed, KeyedId) else -1


def fold_acks(records: Iterable[Record], occurrence_id: str | None) -> list[Ack]:
    """Started and terminal acks of one occurrence, in log order."""
    if occurrence_id is None:
        return []
    prefixes = (f"s/{occurrence_id}/".encode(), f"t/{occurrence_id}/".encode())
    found = (readable_ack(r.value()) for r in records if (r.key() or b"").startswith(prefixes))
    return [ack for ack in found if ack is not None]


def status_of(story: Story) -> JobStatus:
    """`cancelled` means that it did not fire: what was cancelled after that is stopped. (A handler may cancel its
    own job too; that is told by its ack.)"""
    trail, last = story.trail, story.last
    if trail.pending is not None:
        return JobStatus.PENDING
    if trail.retry is not None:
        return JobStatus.RETRYING
    if trail.end == "cancelled" and story.highest_run:
        return JobStatus.STOPPED
    if trail.end is not None and trail.end in _ENDED:
        return _ENDED[trail.end]
    if last is None:
        return JobStatus.QUEUED
    return JobStatus.STOPPED if _was_stopped(last) else _ATTEMPTED[last.state]


def ended_at(story: Story, told: int | None) -> int | None:
    """When it ended, epoch ms: as the ack of its last attempt has it, else `told`. None: it has not ended."""
    last = story.last
    if last is None or story.trail.end in _ENDED or status_of(story) not in ENDED:
        return told
    return last.at


def told_end(story: Story) -> int | None:
    """When its home said that it has ended, epoch ms. None: it has not."""
    return story.trail.ended_at if status_of(story) in ENDED else None


def _was_stopped(ack: Ack) -> bool:
    return ack.state is AckState.CANCELLED and ack.error is not None and ack.error.type == STOPPED


ENDED = frozenset(
    {JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELLED, JobStatus.STOPPED, JobStatus.SKIPPED}
)
_ENDED = {
    "dead": JobStatus.DEAD,
    "cancelled": JobStatus.CANCELLED,
    "replaced": JobStatus.CANCELLED,
    "stopped": JobStatus.STOPPED,
    "skipped": JobStatus.SKIPPED,
}
_ATTEMPTED = {
    AckState.STARTED: JobStatus.RUNNING,
    AckState.RELEASED: JobStatus.QUEUED,
    AckState.SUCCEEDED: JobStatus.SUCCEEDED,
    AckState.FAILED: JobStatus.DEAD,
    AckState.RETRYING: JobStatus.RETRYING,
    AckState.DEAD: JobStatus.DEAD,
    AckState.CANCELLED: JobStatus.CANCELLED,
}


def result_of(last: Ack | None) -> Any:
    """What the handler returned, from its ack."""
    return None if last is None or last.result is None else shown_json(last.result)
