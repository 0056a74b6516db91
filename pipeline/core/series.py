"""The series of a schedule: which of its instants fire, wait or are skipped (DESIGN §8). Pure: state and time in,
state and what to do out.

Everything at or before `last_nominal` is decided, so a state says all that a restart needs to go on: it never fires an
instant twice and never forgets one. What is due at once may be more than one step should emit; the rest is decided the
same way by the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from pipeline.core.cron import uses_id
from pipeline.core.schedule import Backfill, OpenRun, Schedule, ScheduleSpec, policy, timing_spec
from pipeline.core.step import (
    CANCELLED,
    DELETED,
    EDITED,
    OPEN_LIMIT,
    OVERLAP,
    PAUSED,
    REMOVED,
    SLICE,
    Occurrence,
    Skip,
    Step,
    Work,
    grid_open,
    open_of,
    timing,
    tracks,
)
from pipeline.core.timing import Timing, TimingSpec, timing_of

__all__ = ["DELETED", "REMOVED", "SLICE", "Occurrence", "Rules", "Skip", "Step"]


def wake_at(state: Schedule) -> int | None:
    """When `advance` has something to do next, epoch ms; None: not before something else happens."""
    if not (state.open or state.buffer or state.backfills or state.kept_until is not None):
        return state.next_due
    times = [each for each in (state.next_due, state.kept_until) if each is not None]
    lease = min((each.emitted_at for each in state.open), default=0) + state.spec.overlap_timeout_ms
    if state.buffer and state.paused is None:
        free = policy("overlap", state.spec.overlap)[0] == "allow" or not grid_open(state.open)
        times.append(state.buffer[0] if free else lease)
    elif state.open and state.spec.after_ms is not None and state.next_due is None:
        times.append(lease)
    for backfill in state.backfills:
        waits = backfill.overlap == "buffer_all" and open_of(state.open, backfill.id)
        times.append(lease if waits else backfill.next_at)
    return min(times, default=None)


# -- the plain case -------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """What decides whether an instant that is due simply fires, where nothing else is to be asked of its schedule.
    `timing` None: its instants depend on its id, of which `spec` says nothing."""

    spec: TimingSpec
    timing: Timing | None
    threshold_ms: int
    tracks: bool

    def following(self, id_: str, nominal: int, due: int, now: int) -> tuple[int, int] | None:
        """The instant after `nominal`, and when that is due; None unless this one is due at `now`, late for less than
        the threshold, and alone."""
        if not due <= now < due + self.threshold_ms:
            return None
        timing = self.timing or timing_of(replace(self.spec, schedule_id=id_))
        after = timing.next_after(nominal)
        if after is None or (after_due := timing.due_of(after)) <= now:
            return None
        return after, after_due


def rules_of(spec: ScheduleSpec) -> Rules | None:
    """The rules of all schedules that are alike in this; None: more is to be asked of them. InvalidInput if they are
    none."""
    policy("misfire", spec.misfire)
    policy("overlap", spec.overlap)
    if spec.after_ms is not None or spec.max_occurrences is not None:
        return None
    when = replace(timing_spec(spec), schedule_id="")
    by_id = when.jitter_ms > 0 or (when.cron is not None and uses_id(when.cron))
    return Rules(when, None if by_id else timing_of(when), spec.misfire_threshold_ms, tracks(spec))


# -- what happens to a schedule -----------------------------------------------------------------------------


def created(spec: ScheduleSpec, *, incarnation: int, at: int) -> Schedule:
    """A new schedule; its first instant is after `at`. `spec` is checked already."""
    state = Schedule(
        incarnation=incarnation, revision=1, spec=spec, created_at=at, changed_at=at, last_nominal=at
    )
    return _planned(state, at)


def advance(state: Schedule, now: int, room: int = SLICE) -> Step:
    """Decide what is due at `now`, emitting no more than `room` occurrences."""
    work = Work(state, now, room)
    work.advance()
    return work.step()


def done(
    state: Schedule, occurrence_id: str, kind: str, nominal_at: int, outcome: str, now: int, room: int = SLICE
) -> Step:
    """An occurrence has ended as succeeded, dead or cancelled; what waited for that goes on, as far as there is
    room."""
    work = Work(state, now, room)
    work.closed(occurrence_id, kind, nominal_at, outcome)
    work.advance()
    return work.step()


def paused(state: Schedule, note: str, at: int) -> Step:
    """Nothing of the grid fires until it is resumed; what was due by then still does, what waits does not."""
    work = Work(state, at, SLICE)
    work.advance()
    work.pause(note)
    return work.step(changed=True)


def resumed(state: Schedule, at: int) -> Step:
    """Go on with the first instant after `at`; those of the pause are skipped."""
    work = Work(state, at, 0)
    work.move_on(PAUSED)
    work.note, work.note_at, work.failures = None, None, 0
    work.plan_anew()
    return work.step(changed=True)


def edited(state: Schedule, spec: ScheduleSpec, at: int) -> Step:
    """Another definition from `at` on: what was due before is decided by the one before, nothing before is fired by
    the new one. `spec` is checked already."""
    work = Work(state, at, SLICE)
    work.advance()
    if timing_spec(spec) != timing_spec(state.spec):
        work.move_on(PAUSED if state.paused is not None else EDITED)
    work.respecify(spec)
    return work.step(changed=True)


def triggered(state: Schedule, id: str, at: int, overlap: str) -> Step:
    """One occurrence now, beside the grid; with `overlap` skip none while one is open; with any other it fires,
    since somebody asked for it."""
    work = Work(state, at, 0)
    if policy("overlap", overlap)[0] == "skip" and grid_open(work.open):
        work.skip(OVERLAP, 1, at, at, "t")
    else:
        work.fire(at, at, "t", id)
    return work.step()


def unbuffered(state: Schedule, nominal: int, at: int) -> Step:
    """Somebody cancelled an occurrence that waits."""
    work = Work(state, at, 0)
    work.buffer.remove(nominal)
    work.skip(CANCELLED, 1, nominal, nominal)
    return work.step()


def reopened(state: Schedule, occurrence_id: str, nominal: int, place: str, at: int) -> Schedule:
    """An occurrence runs once more, by somebody's request."""
    if any(each.occurrence_id == occurrence_id for each in state.open) or not tracks(state.spec):
        return state
    run = OpenRun(occurrence_id=occurrence_id, nominal_at=nominal, emitted_at=at, place=place)
    return replace(state, open=(*state.open, run)[-OPEN_LIMIT:])


def backfilled(state: Schedule, backfill: Backfill, at: int, room: int = SLICE) -> Step:
    """Begin to make up a range of the past."""
    return advance(replace(state, backfills=(*state.backfills, backfill)), at, room)


def backfill_cancelled(state: Schedule, id: str) -> Schedule:
    return replace(state, backfills=tuple(each for each in state.backfills if each.id != id))


def given_up(state: Schedule, reason: str, at: int) -> Step:
    """It is to be no more: what waits, or came due by then, does not fire."""
    work = Work(state, at, 0)
    work.give_up(reason)
    return work.step(changed=True)


def removed(state: Schedule, version: str, at: int) -> Step:
    """Nothing fires any more; it is known that `version` of its app removed it."""
    step = given_up(state, REMOVED, at)
    gone = replace(
        step.state, ended=REMOVED, next_nominal=None, next_due=None, kept_until=None, backfills=(),
        spec=replace(state.spec, version=version),
    )  # fmt: skip
    return replace(step, state=gone)


def range_of(state: Schedule, from_at: int, to_at: int) -> int:
    """Number of instants that a backfill of [from_at, to_at) makes up."""
    return timing(state).count(from_at - 1, to_at - 1)


def _planned(state: Schedule, at: int) -> Schedule:
    work = Work(state, at, 0)
    work.plan_anew()
    return work.state()
