"""What a home partition says about an occurrence of a schedule: before its first run it has no record of its own."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.core import keys
from pipeline.core.ids import ScheduleOccurrence, schedule_occurrence
from pipeline.core.job import Run
from pipeline.core.layout import Layout
from pipeline.core.schedule import Recent, Schedule, ScheduleSpec
from pipeline.core.step import DELETED, EDITED, PAUSED, REMOVED
from pipeline.follower.trail import BEFORE_TOMBSTONE_MS, Fold, Place, Trail
from pipeline.follower.values import readable_schedule
from pipeline.ports import Record

FIRED, SKIPPED = "fired", "skipped."
"""How a schedule notes an occurrence that fired, and one that did not; the reason follows."""


class ScheduledFold(Fold):
    """Of an occurrence of a schedule: before its first run it has no record, only what its schedule says of it."""

    def __init__(self, id_: str, parsed: ScheduleOccurrence, layout: Layout) -> None:
        super().__init__(id_)
        self._of = parsed
        self._layout = layout
        self._schedule = keys.schedule_key(parsed.schedule_id)

    def take(self, key: bytes, record: Record) -> None:
        if key != self._schedule:
            super().take(key, record)
            return
        state = readable_schedule(record.value())
        trail, before = self.trail, self.trail.schedule
        waited = trail.live.pop(key, None)
        trail.behind = None
        ours = state if state is not None and state.incarnation == self._of.incarnation else None
        if ours is not None:
            self.stands(ours)
        if waited is None or trail.live or trail.certain:
            return
        at = record.timestamp()[1]
        if trail.end is None and ours is not None and _was_due(waited, ours, before, at):
            self._passed(ours, before)
            return
        if trail.end is None:  # by who deleted, edited or paused its schedule
            trail.end, trail.ended_at = "cancelled", at
            trail.skipped = _taken_away(ours)
        if trail.skipped is not None:
            trail.first = waited

    def _passed(self, state: Schedule, before: Schedule | None) -> None:
        """It was one of so many that the state does not say whether it fired: its run does, or an event."""
        spec = state.spec if before is None else before.spec
        if spec.queue in self._layout.queues:
            self.trail.certain, self.trail.work = True, self._place(state, spec)

    def follows(self, state: Schedule | None) -> None:
        """That is the last state that was read."""
        if state is not None and state.incarnation == self._of.incarnation:
            self.trail.schedule = state

    def stands(self, state: Schedule) -> None:
        before, self.trail.schedule = self.trail.schedule, state
        nominal, grid = self._of.nominal_at, self._of.kind == "g"
        if grid and nominal in state.buffer:
            self._comes(state, nominal)
            self.trail.behind = state.open[0].occurrence_id if state.open else None
        elif grid and nominal == state.next_nominal:
            self._comes(state, state.next_due or nominal)
        else:
            self._decided(state, before)

    def _comes(self, state: Schedule, due_at: int) -> None:
        trail = self.trail
        trail.known = True
        if trail.skipped is not None:  # its schedule was resumed, or changed back
            trail.end = trail.skipped = trail.first = None
        trail.live[self._schedule] = run_to_come(trail.id, state, self._of.nominal_at, due_at)

    def _decided(self, state: Schedule, before: Schedule | None) -> None:
        """It fired or was skipped; of its last occurrences a state tells which."""
        trail, of = self.trail, self._of
        told = self._told(state)
        if told is not None:
            trail.known = True
        if told is not None and told.outcome.startswith(SKIPPED):
            note_skipped(trail, state, of.nominal_at, told.outcome.removeprefix(SKIPPED), told.at)
            return
        spec = state.spec if told is None else self._fired_by(told, state, before)
        if not trail.certain and (spec or state.spec).queue in self._layout.queues:
            trail.certain, trail.guessed = told is not None, spec is None
            trail.work = self._place(state, spec or state.spec)

    def _told(self, state: Schedule) -> Recent | None:
        of = self._of
        return next((r for r in state.recent if (r.nominal_at, r.kind) == (of.nominal_at, of.kind)), None)

    def _fired_by(self, told: Recent, state: Schedule, before: Schedule | None) -> ScheduleSpec | None:
        """The definition by which it fired: what is due when a schedule is changed goes by the one before. None: that
        is not known."""
        if state.revision == 1 or (told.outcome == FIRED and told.at > state.changed_at):
            return state.spec
        if before is None or self._told(before) is not None:
            return None
        return before.spec if told.at <= state.changed_at else state.spec

    def _place(self, state: Schedule, spec: ScheduleSpec) -> Place:
        """Where its first run went by this definition, and since when that may stand there."""
        partition = self._layout.work_partition(spec.queue, spec.serial or self.trail.id)
        earliest = state.created_at if self._of.kind == "b" else self._of.nominal_at
        return Place(spec.queue, partition, max(earliest - BEFORE_TOMBSTONE_MS, 0))


def _was_due(waited: Run, state: Schedule, before: Schedule | None, at: int) -> bool:
    """Whether what was to come was due when this state was made, which was stored at `at` (epoch ms): if so it was
    decided, and not taken away."""
    if state.ended == REMOVED:
        return False
    changed = before is None or state.revision != before.revision
    return waited.due_at <= (state.changed_at if changed else at)


def _taken_away(state: Schedule | None) -> str:
    """Why what was to come is not any more, by the state of its schedule after that; None: it is gone."""
    if state is None:
        return DELETED
    return state.ended or (EDITED if state.paused is None else PAUSED)


def note_skipped(trail: Trail, state: Schedule, nominal_at: int, reason: str | None, at: int) -> None:
    """An instant of this schedule was skipped, at that time (epoch ms): it is shown as what would have run."""
    trail.known, trail.end, trail.skipped, trail.ended_at = True, "skipped", reason, at
    if trail.first is None:
        trail.first = run_to_come(trail.id, state, nominal_at, nominal_at)


def run_to_come(id_: str, state: Schedule, nominal_at: int, due_at: int) -> Run:
    """The first run of an occurrence, by the definition as it stands."""
    spec = state.spec
    return Run(
        job_id=id_,
        occurrence_id=id_,
        schedule_id=spec.id,
        handler=spec.handler,
        queue=spec.queue,
        payload=spec.payload,
        idempotency_key=id_,
        created_at=state.created_at,
        due_at=due_at,
        nominal_at=nominal_at,
        run=1,
        attempt_limit=spec.attempt_limit,
        timeout_ms=spec.timeout_ms,
        serial=spec.serial,
        labels=spec.labels,
        headers=spec.headers,
    )


def runs_to_come(state: Schedule) -> Iterator[Run]:
    """The occurrences that a schedule has to come: those that wait behind another, and the next of its grid."""
    for nominal in state.buffer:
        yield from _run_of(state, nominal, nominal)
    if state.next_nominal is not None:
        yield from _run_of(state, state.next_nominal, state.next_due or state.next_nominal)


def _run_of(state: Schedule, nominal: int, due_at: int) -> Iterator[Run]:
    try:
        id_ = schedule_occurrence(state.spec.id, state.incarnation, "g", "", nominal)
    except ValueError:
        return  # whoever may append can store any number
    yield run_to_come(id_, state, nominal, due_at)
