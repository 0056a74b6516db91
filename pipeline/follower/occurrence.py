"""What a home partition says about an occurrence of a schedule: before its first run it has no record of its own."""

from __future__ import annotations

from pipeline.core import keys
from pipeline.core.ids import ScheduleOccurrence
from pipeline.core.job import Run
from pipeline.core.layout import Layout
from pipeline.core.schedule import Recent, Schedule, ScheduleSpec
from pipeline.core.step import DELETED, EDITED, PAUSED
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
        trail = self.trail
        waited = trail.live.pop(key, None)
        trail.behind = None
        ours = state if state is not None and state.incarnation == self._of.incarnation else None
        if ours is not None:
            self.stands(ours)
        if waited is None or trail.live or trail.certain:
            return
        if trail.end is None:  # by who deleted, edited or paused its schedule
            trail.end, trail.skipped = "cancelled", _taken_away(ours)
        if trail.skipped is not None:
            trail.first = waited

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
            note_skipped(trail, state, of.nominal_at, told.outcome.removeprefix(SKIPPED))
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


def _taken_away(state: Schedule | None) -> str:
    """Why what was to come is not any more, by the state of its schedule after that; None: it is gone."""
    if state is None:
        return DELETED
    return state.ended or (EDITED if state.paused is None else PAUSED)


def note_skipped(trail: Trail, state: Schedule, nominal_at: int, reason: str | None) -> None:
    """An instant of this schedule was skipped: it is shown as what would have run."""
    trail.known, trail.end, trail.skipped = True, "skipped", reason
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
