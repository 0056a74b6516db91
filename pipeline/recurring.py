"""Schedules as their owner keeps them: from the pure series (core.series) to records and back (DESIGN §8, §5.9).

The state of a schedule is one record, `s/<id>`, on the home partition of its id. Whatever fires or ends an occurrence
writes the next state in the same transaction, so a slot that has fired is a slot that is decided: a restart goes on
from there. Within a batch states are kept here and written once, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pipeline import codec, plain_series
from pipeline.core import keys, series
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import ScheduleOccurrence, parse_occurrence, schedule_occurrence
from pipeline.core.job import AckState, Event, Run
from pipeline.core.schedule import OpenRun, Schedule
from pipeline.core.series import Occurrence, Skip, Step
from pipeline.emission import Emission
from pipeline.filing import DETAIL_LIMIT, NOWHERE, TO_FIRE, Filed, file_run, scheduled, zone_is_here
from pipeline.ports import Action, Entry, Put
from pipeline.runs import write_stop

SLICE_BYTES = 1024 * 1024
"""Bytes of payloads that one schedule emits in a step at most."""
BATCH = 2_000
"""Once a transaction has so many runs, each schedule in it emits one."""
AGAIN_MS = 1_000
STOPPED, STOPPING = "stopped", "stopping"
OUTCOMES = (AckState.SUCCEEDED, AckState.DEAD, AckState.CANCELLED)


def load(schedule_id: str, emission: Emission) -> Schedule | None:
    """The state of a schedule as of now, with what this batch has done to it."""
    key = keys.schedule_key(schedule_id)
    known = emission.schedules.get(key)
    if known is not None:
        return known
    entry = emission.view.entry(key)
    if entry is None or entry.action not in (*TO_FIRE, Action.HOLD, Action.EXPIRE):
        return None
    return codec.SCHEDULE.reread(entry.value)


def keep(state: Schedule, emission: Emission) -> None:
    """Have the state written with this batch."""
    emission.schedules[keys.schedule_key(state.spec.id)] = state
    emission.view.note(state.spec.source, state.spec.id)


def write_all(emission: Emission) -> None:
    """Write the states that this batch has changed; at its end."""
    for key in [*emission.rewritten, *emission.schedules]:
        write(key, emission)


def write(key: bytes, emission: Emission) -> None:
    state, entry = emission.schedules.pop(key, None), emission.rewritten.pop(key, None)
    if state is not None:
        emission.keep(scheduled(key, state, codec.SCHEDULE.encode(state)))
    elif entry is not None:
        emission.write(entry)


def remove(state: Schedule, version: str, at: int, emission: Emission) -> None:
    """Its app, in this version, declares it no more."""
    step = sound(state, emission, lambda: series.removed(state, version, at))
    if step is not None:
        carry_out(state, step, emission)


def delete(state: Schedule, at: int, emission: Emission) -> None:
    """Forget the schedule: what is under way goes on, nothing follows."""
    step = sound(state, emission, lambda: series.given_up(state, series.DELETED, at))
    if step is None:
        return  # it was buried
    carry_out(state, step, emission)
    key = keys.schedule_key(state.spec.id)
    write(key, emission)
    entry = emission.view.entry(key)
    assert entry is not None, "it was loaded"
    emission.end(entry, "deleted")


# -- its time has come --------------------------------------------------------------------------------------


def settle(entry: Entry, emission: Emission) -> None:
    """Decide what is due of the schedule in `entry`."""
    if entry.record_key not in emission.schedules and plain_series.fire(entry, emission):
        return
    state = load(keys.parse_jobs_key(entry.record_key).id, emission)
    assert state is not None, "filed to fire because it has a state"
    room = SLICE_BYTES // max(1, len(state.spec.payload))
    room = max(1, min(slice_at_once(state, emission), room, BATCH - emission.fired))
    step = sound(state, emission, lambda: series.advance(state, emission.now, room))
    if step is None:
        return
    if step.state == state:  # it should not have been due: look again, but not at once
        emission.keep(entry._replace(offset=NOWHERE, fire_at=emission.now + AGAIN_MS))
    else:
        carry_out(state, step, emission)


def slice_at_once(state: Schedule, emission: Emission) -> int:
    """What one step may emit of it; nothing where there is a rate, in which each run takes a place: one is given when
    its time has come, and what follows from something else waits for that."""
    return 0 if emission.site.paced(state.spec.queue) else series.SLICE


def sound(state: Schedule, emission: Emission, change: Callable[[], Step]) -> Step | None:
    """What `change` says, or None: no owner can have written this state, and it is buried, as of the command that it
    says made it. One damaged record must not stop the others."""
    try:
        return change()
    except InvalidInput as problem:
        key = keys.schedule_key(state.spec.id)
        emission.schedules.pop(key, None)
        emission.rewritten.pop(key, None)
        entry = emission.view.entry(key)
        if entry is not None:
            detail = f"undecodable: {problem}"[:DETAIL_LIMIT]
            emission.bury(entry._replace(offset=state.incarnation, detail=detail))
            emission.end(entry, "dead")
        return None


def done(entry: Entry, emission: Emission) -> None:
    """A worker's word that a run has ended an occurrence; one of an earlier run or of another incarnation changes
    nothing."""
    occurrence_id, _, run = entry.record_key[2:].decode().rpartition("/")
    outcome = codec.EVENT.reread(entry.value).outcome or ""
    counts = outcome in OUTCOMES and int(run) >= emission.view.highest_run(occurrence_id)
    if counts and not (outcome == AckState.SUCCEEDED and _plainly_succeeded(occurrence_id, emission)):
        _close(occurrence_id, outcome, emission)
    emission.end(entry, "consumed")


def _plainly_succeeded(occurrence_id: str, emission: Emission) -> bool:
    parsed = parse_occurrence(occurrence_id)
    key = keys.schedule_key(parsed.schedule_id)
    held = None if key in emission.schedules else emission.view.entry(key)
    return held is not None and plain_series.succeeded(parsed, occurrence_id, held, emission)


def _close(occurrence_id: str, outcome: str, emission: Emission) -> None:
    parsed, state = known(occurrence_id, emission)
    if state is None or not zone_is_here(state):
        return
    at, kind, now = parsed.nominal_at, parsed.kind, emission.now
    room = slice_at_once(state, emission)
    step = sound(state, emission, lambda: series.done(state, occurrence_id, kind, at, outcome, now, room))
    if step is not None:
        carry_out(state, step, emission)


def known(occurrence_id: str, emission: Emission) -> tuple[ScheduleOccurrence, Schedule | None]:
    """The parts of an occurrence's id, and its schedule if that is still the one it came from."""
    parsed = parse_occurrence(occurrence_id)
    state = load(parsed.schedule_id, emission)
    same = state is not None and state.incarnation == parsed.incarnation and state.ended != series.REMOVED
    return parsed, state if same else None


def end_here(occurrence_id: str, outcome: AckState, emission: Emission) -> None:
    """No worker will say that this occurrence has ended, so its owner does: the fact comes back through the log as a
    worker's would. Nothing for what is no occurrence of a schedule."""
    if not occurrence_id.startswith("s:"):
        return
    run = emission.view.highest_run(occurrence_id)
    event = Event(
        id=occurrence_id,
        kind="done",
        at=emission.now,
        job_id=occurrence_id,
        occurrence_id=occurrence_id,
        run=run,
        outcome=outcome.value,
    )
    key = keys.done_key(occurrence_id, run)
    emission.puts.append(Put(emission.site.names.jobs, emission.number, key, codec.EVENT.encode(event)))


def drop_waiting(occurrence_id: str, emission: Emission) -> None:
    """One that waits for an open run to end will not fire."""
    parsed, state = known(occurrence_id, emission)
    if state is not None:
        carry_out(state, series.unbuffered(state, parsed.nominal_at, emission.now), emission)


def requeued(run: Run, emission: Emission) -> Run:
    """A further run of an occurrence, as its schedule would have made it: so that its end is told to the schedule."""
    parsed, state = known(run.occurrence_id, emission)
    return replace(
        run,
        schedule_id=parsed.schedule_id,
        nominal_at=parsed.nominal_at,
        last_success_at=None if state is None else state.last_success_at,
    )


def reopen(occurrence_id: str, place: str, emission: Emission) -> None:
    """A requeue runs it once more: it is open again to whoever looks at its overlap."""
    parsed, state = known(occurrence_id, emission)
    if state is not None:
        keep(series.reopened(state, occurrence_id, parsed.nominal_at, place, emission.now), emission)


def place_of(occurrence_id: str, emission: Emission) -> str:
    """Where the runs of an open occurrence stand; empty if nobody knows."""
    if not occurrence_id.startswith("s:"):
        return ""
    state = known(occurrence_id, emission)[1]
    runs = () if state is None else state.open
    return next((each.place for each in runs if each.occurrence_id == occurrence_id), "")


# -- carrying out what the series decided ---------------------------------------------------------------------


def carry_out(before: Schedule, step: Step, emission: Emission) -> None:
    """Emit what fires, tell what does not, stop what is to be stopped; the state is written with the batch."""
    places = {each.id: _emit(before, each, emission) for each in step.fire}
    for run in step.stop:
        _stop(run, emission)
    state = step.state
    if places and any(not each.place for each in state.open):
        placed = (replace(e, place=places[e.occurrence_id]) if not e.place else e for e in state.open)
        state = replace(state, open=tuple(placed))
    keep(state, emission)
    for skip in step.skipped:
        _tell_skip(state, skip, emission)
    for each in step.finished:
        detail = {"backfill": each.id, "fired": str(each.fired), "total": str(each.total)}
        _tell(state, "backfilled", None, emission, detail)
    if state.paused is not None and before.paused is None:
        _tell(state, "schedule_paused", state.paused, emission, {})
    if state.ended and not before.ended:
        _tell(state, "schedule_ended", state.ended, emission, {})


def _emit(state: Schedule, occurrence: Occurrence, emission: Emission) -> str:
    """Emit run 1; where it stands. One that can never be emitted is dead at once."""
    run = run_of(state, occurrence.id, occurrence.nominal_at, occurrence.due_at, emission)
    filed = file_run(emission.site, run, emission.now)
    if filed.problem:
        _bury(run, filed, emission)
        return "?"
    emission.run(filed.place, run.occurrence_id.encode(), codec.RUN.encode(run))
    return filed.place


def run_of(state: Schedule, id: str, nominal_at: int, due_at: int, emission: Emission) -> Run:
    """Run 1 of an occurrence."""
    spec = state.spec
    return Run(
        job_id=id,
        occurrence_id=id,
        due_at=due_at,
        run=1,
        queue=spec.queue,
        handler=spec.handler,
        created_at=emission.now,
        nominal_at=nominal_at,
        idempotency_key=id,
        payload=spec.payload,
        serial=spec.serial,
        schedule_id=spec.id,
        attempt_limit=spec.attempt_limit,
        timeout_ms=spec.timeout_ms,
        labels=spec.labels,
        headers=spec.headers,
        last_success_at=state.last_success_at,
    )


def _bury(run: Run, filed: Filed, emission: Emission) -> None:
    key = keys.schedule_key(run.schedule_id or "")
    emission.bury(Entry(key, 0, -1, Action.DEAD, codec.RUN.encode(run), filed.problem))
    end_here(run.occurrence_id, AckState.DEAD, emission)


def _stop(run: OpenRun, emission: Emission) -> None:
    """Stop an open run, as a stop command would: drop the retry that waits, or tell its worker."""
    view, occurrence = emission.view, run.occurrence_id
    if view.entry(keys.stopped_key(occurrence)) is not None:
        return
    retry = view.entry(keys.retry_key(occurrence, view.highest_run(occurrence)))
    reason = "the next occurrence is due"
    if retry is not None and retry.action in TO_FIRE:
        emission.end(retry, STOPPED)
        write_stop(emission, occurrence, occurrence, STOPPED, "", reason=reason)
        end_here(occurrence, AckState.CANCELLED, emission)
    else:
        write_stop(emission, occurrence, occurrence, STOPPING, run.place, reason=reason)


# -- telling ------------------------------------------------------------------------------------------------


def _tell_skip(state: Schedule, skip: Skip, emission: Emission) -> None:
    emission.skipped[skip.reason] += skip.count
    occurrence = None
    if skip.count == 1 and skip.kind == "g":
        occurrence = schedule_occurrence(state.spec.id, state.incarnation, "g", "", skip.first)
    detail = {
        "kind": skip.kind,
        "count": str(skip.count),
        "first": str(skip.first),
        "last": str(skip.last),
    }
    _tell(state, "skipped", skip.reason, emission, detail, occurrence)


def _tell(
    state: Schedule,
    kind: str,
    reason: str | None,
    emission: Emission,
    detail: Mapping[str, str],
    occurrence: str | None = None,
) -> None:
    event = Event(
        id=f"s/{state.spec.id}",
        kind=kind,
        at=emission.now,
        job_id=occurrence,
        occurrence_id=occurrence,
        reason=reason,
        detail={"schedule": state.spec.id, "incarnation": str(state.incarnation), **detail},
    )
    emission.tell(state.spec.id.encode(), event)
