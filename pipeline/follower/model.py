"""`Follower`: questions about jobs and processes, answered from the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from pipeline import codec
from pipeline.core.backup import Hold
from pipeline.core.errors import InvalidInput, NotFound, Undecodable
from pipeline.core.ids import parse_occurrence
from pipeline.core.job import Ack, Run
from pipeline.core.keys import HOLD_KEY
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.follower.dead import Letter, WantedLetters, read_letters, read_runs
from pipeline.follower.folds import fold_trail
from pipeline.follower.job import Emitted, Story, View, fold_acks, fold_runs, told_end
from pipeline.follower.job_view import job_view
from pipeline.follower.listing import Backlog, Wanted, chosen, fold_backlog, fold_live
from pipeline.follower.places import DECIDED_MS, gone, is_place, known_to_be
from pipeline.follower.schedules import (
    WantedSchedules,
    fold_schedules,
    fold_skips,
    listed_view,
    passing,
    schedule_view,
    states_of,
)
from pipeline.follower.trail import BEFORE_TOMBSTONE_MS, Trail
from pipeline.follower.values import shown_instant
from pipeline.follower.watch import Watch
from pipeline.follower.why import Reason, Surroundings, reason_of
from pipeline.heartbeat import Seen, read_fleet
from pipeline.ports import Reader

FRESH_MS = 5_000
"""Age of a heartbeat up to which its process counts as alive in what is shown; no decision rests on it."""

_NOTHING = "nothing is stored under this id (what ended over 7 days ago is no longer kept)"
_NOTHING_READABLE = "what is stored under this id is no record of a job"
_NOT_EXECUTED = "its create command waits for the owner of its partition"


class Follower:
    """Answers questions from the topics. Every read raises StoreUnreachable if the store does not answer."""

    def __init__(self, *, reader: Reader, names: Names, layout: Layout) -> None:
        self._reader = reader
        self._names = names
        self._layout = layout

    # -- one job --------------------------------------------------------------------------------------------

    def job(self, job_id: str) -> View:
        """The job as `dueline job get` shows it (schemas/cli/job_get.json): from its home partition
        and, if it fired, from the work and acks partition named there.

        Raises InvalidInput('id') if malformed, NotFound if the store has nothing under it.
        """
        story = self._story(job_id)
        return job_view(story, payload=story.payload, told=told_end(story))

    def run_of(self, job_id: str) -> tuple[Run, int]:
        """The job as it is to be run once more, and the highest run emitted so far (0: none). Raises as `job`,
        NotFound also if its records are no longer kept."""
        story = self._story(job_id)
        if (run := story.latest) is None:
            raise NotFound(f"{job_id}: what it was made of is no longer kept")
        return run, story.highest_run

    def watch(self, job_id: str) -> Watch:
        """The job, to be looked at again and again at little cost. InvalidInput('id') if that is none."""
        return Watch(reader=self._reader, names=self._names, layout=self._layout, job_id=job_id)

    def _story(self, job_id: str) -> Story:
        trail = self._trail(job_id)
        runs, acks = self._fired(trail)
        if not runs:
            self._look_for_skip(trail)
        if not trail.known and not runs:
            raise NotFound(f"{job_id}: {_nothing(trail)}{self._last_of_key(trail)}")
        return Story(trail, runs, acks)

    def _look_for_skip(self, trail: Trail) -> None:
        """An occurrence that fired nowhere was skipped if an event says so."""
        if trail.schedule is not None and not trail.live and trail.end is None:
            home = self._home(trail.id)
            since = max(parse_occurrence(trail.id).nominal_at - BEFORE_TOMBSTONE_MS, 0)
            fold_skips(trail, self._reader.read(self._names.events, home, since_ms=since))

    def _trail(self, job_id: str) -> Trail:
        home = self._home(job_id)
        trail = fold_trail(known_to_be(self._reader, self._names.jobs, home), job_id, self._layout)
        if not trail.known:
            # Created a moment ago, it may still stand behind somebody's open transaction.
            self._reader.decided(self._names.jobs, home, DECIDED_MS)
            trail = fold_trail(known_to_be(self._reader, self._names.jobs, home), job_id, self._layout)
        return trail

    def _last_of_key(self, trail: Trail) -> str:
        """Of an incarnation that is not there: what the last one is called."""
        base, dot, _ = trail.id.partition(".") if trail.id.startswith("k") else ("", "", "")
        last = self._trail(base).occurrence_id if dot else None
        return "" if last is None else f"; the last incarnation of its key is {last}"

    def _home(self, job_id: str) -> int:
        try:
            return self._layout.home(job_id)
        except Undecodable as error:
            raise InvalidInput("id", str(error)) from error

    def _fired(self, trail: Trail) -> tuple[dict[int, Emitted], list[Ack]]:
        """What stands at the place that the trail names; nothing if there is no such place. StoreUnreachable."""
        if trail.work is None:
            return {}, []
        queue, partition, since = trail.work
        try:
            work = self._reader.read(self._names.work(queue), partition, since_ms=since)
            runs = fold_runs(work, trail)
            acks = self._reader.read(self._names.acks(queue), partition, since_ms=since)
            return runs, fold_acks(acks, trail.occurrence_id)
        except NotFound as error:
            if is_place(self._layout, queue, partition):
                raise gone(error) from error
            # The header was forged or its topic is gone; what the home says is true all the same.
            return {}, []

    def why(self, job_id: str, now: int) -> Reason:
        """What the job waits for, at `now` (the store's clock, ms). Raises as `job`."""
        trail = self._trail(job_id)
        runs, acks = self._fired(trail)
        if not runs:
            self._look_for_skip(trail)
        if not trail.known and not runs and not trail.commands:
            raise NotFound(f"{job_id}: {_nothing(trail)}{self._last_of_key(trail)}")
        around = Surroundings(
            reader=self._reader,
            names=self._names,
            layout=self._layout,
            processes=self.processes(now),
            now=now,
        )
        return reason_of(Story(trail, runs, acks), around)

    # -- many jobs ------------------------------------------------------------------------------------------

    def jobs(self, wanted: Wanted, limit: int | None = None, fired: Iterable[View] = ()) -> Iterator[View]:
        """Pending and retrying jobs (schemas/cli/job_list.json), and then `fired`, those of `open_jobs`. With `limit`
        the first of all in the order wanted; without, by due time, partition after partition, each in that order, so
        memory holds one partition's matches."""
        live = (
            view
            for partition in range(self._layout.partitions)
            for view in fold_live(self._reader.read(self._names.jobs, partition), wanted)
        )
        return map(_dated, chosen(chain(live, fired), wanted.order, limit))

    def letters(self, wanted: WantedLetters, *, payload: bool = False) -> list[Letter]:
        """Dead letters of jobs that were not requeued since, and of what nobody could read, the latest first
        (schemas/cli/dead_list.json)."""
        return read_letters(self._reader, self._names.dead, wanted, payload=payload)

    def dead_runs(self, letters: Iterable[Letter]) -> Iterator[tuple[Letter, Run]]:
        """The runs of these letters as they are to be requeued, payloads and all; not in their order."""
        return read_runs(self._reader, self._names.dead, letters)

    def backlog(self, partition: int) -> Backlog:
        """What one partition of `jobs` still owes; reads all of it."""
        return self.holdings(partition)[0]

    def holdings(self, partition: int) -> tuple[Backlog, list[Schedule]]:
        """The same, and the schedules of the partition, in one reading."""
        latest: dict[bytes, bytes | None] = {}
        backlog = fold_backlog(passing(self._reader.read(self._names.jobs, partition), latest))
        return backlog, [*states_of(latest).values()]

    # -- schedules ------------------------------------------------------------------------------------------

    def schedule(self, schedule_id: str) -> Schedule:
        """The schedule as its owner keeps it. Raises NotFound."""
        home = self._layout.home_of_name(schedule_id)
        found = self._schedules_at(home).get(schedule_id)
        if found is None:
            self._reader.decided(self._names.jobs, home, DECIDED_MS)
            found = self._schedules_at(home).get(schedule_id)
        if found is None:
            raise NotFound(f"{schedule_id}: there is no schedule of this id")
        return found

    def schedules(self) -> list[Schedule]:
        """All schedules by id, but for those that an app has removed; reads all of `jobs`."""
        homes = range(self._layout.partitions)
        states = (state for home in homes for state in self._schedules_at(home).values())
        return sorted(states, key=lambda state: state.spec.id)

    def schedule_view(self, schedule_id: str, now: int) -> View:
        """The schedule at `now` (the store's clock, ms) as `dueline cron describe` shows it. Raises as `schedule`."""
        return schedule_view(self.schedule(schedule_id), now)

    def schedule_views(self, now: int, **wanted: Any) -> list[View]:
        """Those that are wanted (`WantedSchedules`) as `dueline cron list` shows them."""
        those = WantedSchedules(**wanted)
        return [listed_view(state, now) for state in self.schedules() if those.matches(state, now)]

    def _schedules_at(self, home: int) -> dict[str, Schedule]:
        return fold_schedules(known_to_be(self._reader, self._names.jobs, home))

    # -- the installation -----------------------------------------------------------------------------------

    def hold(self) -> Hold | None:
        """What holds the dispatch; None: nothing does."""
        value = None
        if self._reader.partitions(self._names.meta):
            for record in self._reader.read(self._names.meta, 0):
                value = record.value() if record.key() == HOLD_KEY else value
        return None if value is None else codec.HOLD.decode(value)

    # -- processes ------------------------------------------------------------------------------------------

    def live_handlers(self, now: int) -> frozenset[str]:
        """Handlers of workers whose heartbeat is fresh at `now`, the store's clock in ms."""
        return frozenset(name for seen in self.processes(now) for name in seen.heartbeat.handlers)

    def processes(self, now: int) -> list[Seen]:
        """Processes whose heartbeat is fresh at `now` (the store's clock, ms), by role and name."""
        return sorted(read_fleet(self._reader, self._names.fleet, now - FRESH_MS), key=_by_role)


def _nothing(trail: Trail) -> str:
    if trail.commands:
        return _NOT_EXECUTED
    return _NOTHING_READABLE if trail.unreadable else _NOTHING


def _dated(view: View) -> View:
    return {**view, "due_at": shown_instant(view["due_at"])}


def _by_role(seen: Seen) -> tuple[str, str, tuple[str, ...]]:
    return seen.heartbeat.role, seen.heartbeat.process, seen.heartbeat.queues
