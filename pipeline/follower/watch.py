"""One job, read once and then followed: for whoever waits until it has ended."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.errors import InvalidInput, NotFound, Undecodable
from pipeline.core.job import Ack, Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.sight import Sight
from pipeline.follower.job import Story, fold_acks, fold_runs, result_of, status_of
from pipeline.follower.trail import Place, fold_of
from pipeline.ports import Reader, Record


class _Partition:
    """What one partition has had since the last look."""

    def __init__(self, reader: Reader, topic: str, number: int, since: int | None = None) -> None:
        self._reader = reader
        self._place = topic, number
        self._since = since
        self._next: int | None = None

    def news(self) -> Iterator[Record]:
        """Nothing if there is no such topic: whoever named it may have named anything."""
        since = self._since if self._next is None else None
        try:
            for record in self._reader.read(*self._place, self._next, since):
                self._next = (record.offset() or 0) + 1
                yield record
        except NotFound:
            return


class Watch:
    """Where a job stands, at each look. Of a job with a key: the incarnation that the first look found."""

    def __init__(self, *, reader: Reader, names: Names, layout: Layout, job_id: str) -> None:
        """InvalidInput('id') if it is none."""
        self._reader = reader
        self._names = names
        try:
            self._home = _Partition(reader, names.jobs, layout.home(job_id))
            self._fold = fold_of(job_id, layout)
        except Undecodable as error:
            raise InvalidInput("id", str(error)) from error
        self._acks: _Partition | None = None
        self._seen: list[Ack] = []

    def look(self) -> Sight | None:
        """None: the store has nothing under the id. Raises StoreUnreachable."""
        self._fold.take_all(self._home.news())
        self._fold.pin()
        trail = self._fold.trail
        if trail.work is not None:
            self._follow(trail.work, trail.occurrence_id)
        if not (trail.known or trail.commands or self._seen):
            return None
        story = Story(trail, {}, self._seen)
        last = story.last
        error = None if last is None else last.error
        return Sight(status_of(story), story.highest_run, result_of(last), error)

    def _follow(self, work: Place, occurrence_id: str | None) -> None:
        if self._acks is None:
            topic = self._names.acks(work.queue)
            self._acks = _Partition(self._reader, topic, work.partition, work.since)
        self._seen += fold_acks(self._acks.news(), occurrence_id)

    def run(self) -> Run | None:
        """The last run that was emitted, if it is readable. Raises StoreUnreachable."""
        work = self._fold.trail.work
        if work is None:
            return None
        records = _Partition(self._reader, self._names.work(work.queue), work.partition, work.since)
        runs = fold_runs(records.news(), self._fold.trail)
        return runs[max(runs)].run if runs else None
