"""One job, read once and then followed: for whoever waits until it has ended."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core.errors import InvalidInput, NotFound, Undecodable
from pipeline.core.job import Ack, Run
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.sight import Sight
from pipeline.follower.folds import fold_of
from pipeline.follower.job import Story, fold_acks, fold_runs, result_of, status_of
from pipeline.follower.places import DECIDED_MS, gone, is_place
from pipeline.follower.trail import Place
from pipeline.ports import Reader, Record


class _Partition:
    """What one partition has had since the last look."""

    def __init__(
        self, reader: Reader, topic: str, number: int, since: int | None = None, *, named: bool = True
    ) -> None:
        """`named`: the layout names it, so it is there."""
        self._reader = reader
        self._place = topic, number
        self._since = since
        self._named = named
        self._next: int | None = None

    def news(self) -> Iterator[Record]:
        """Nothing if there is no such topic, for whoever named it may have named anything. StoreUnreachable."""
        since = self._since if self._next is None else None
        try:
            for record in self._reader.read(*self._place, self._next, since):
                self._next = (record.offset() or 0) + 1
                yield record
        except NotFound as error:
            if self._named:
                raise gone(error) from error

    def decided(self) -> None:
        """Wait for what a transaction may hide at its end. StoreUnreachable if it stays open."""
        self._reader.decided(*self._place, DECIDED_MS)


class Watch:
    """Where a job stands, at each look. Of a job with a key: the incarnation that the first look found."""

    def __init__(self, *, reader: Reader, names: Names, layout: Layout, job_id: str) -> None:
        """InvalidInput('id') if it is none."""
        self._reader = reader
        self._names = names
        self._layout = layout
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
        if not (self._fold.trail.known or self._fold.trail.commands):
            # Created a moment ago, it may still stand behind somebody's open transaction.
            self._home.decided()
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
            self._acks = self._place(self._names.acks(work.queue), work)
        for (
            record
        ) in self._acks.news():  # one by one: what was read before the store went away is not read again
            self._seen += fold_acks([record], occurrence_id)

    def run(self) -> Run | None:
        """The last run that was emitted, if it is readable. Raises StoreUnreachable."""
        work = self._fold.trail.work
        if work is None:
            return None
        records = self._place(self._names.work(work.queue), work)
        runs = fold_runs(records.news(), self._fold.trail)
        return runs[max(runs)].run if runs else None

    def _place(self, topic: str, work: Place) -> _Partition:
        named = is_place(self._layout, work.queue, work.partition)
        return _Partition(self._reader, topic, work.partition, work.since, named=named)
