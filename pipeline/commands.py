"""Commands, executed by the owner of the home partition in the order of the log (DESIGN §4, §9).

An answer is an event; the tombstone of the command carries it too, and a command that comes again within the
memory is answered again the same way. Whoever else may ask for a change, only the owner writes it: so `cancelled`
is true, and an update can never be buried by a firing that had not seen it (H7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.ids import KeyedId, command_job_id, keyed_id, occurrence_of_keyed, parse_id
from pipeline.core.job import EARLIEST, KEY_LIMIT, LATEST, PAYLOAD_CEILING, Command, Event, KeyState, Run
from pipeline.core.token import LAST_RUN
from pipeline.core.topics import DEFAULT_QUEUE, WORK_RETENTION_MS
from pipeline.emission import Emission
from pipeline.filing import DETAIL_LIMIT, FINISHED, file_run, firing, hold_of, kept
from pipeline.fold import ANSWERED
from pipeline.found import Found, find
from pipeline.ports import Entry
from pipeline.runs import (
    FIRED,
    PENDING,
    emit_run,
    holder_by_id,
    holder_of,
    keep_state,
    occurrence_of,
    told_of,
)
from pipeline.view import OCCURRENCE, OUTCOME, REQUEUED

TEXTS_CEILING = 160_000
"""Bytes of what a run has beside its payload: the run of a command that was taken must be taken too."""
CONFLICTS = ("existing", "replace", "debounce", "reject")
ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a command."""

    outcome: str
    job_id: str | None = None
    occurrence_id: str | None = None
    run: int | None = None
    reason: str | None = None
    due_at: int | None = None


def execute(entry: Entry, emission: Emission) -> None:
    """Execute the command in `entry`, answer it and tombstone it."""
    event = codec.EVENT.reread(entry.value) if entry.detail == ANSWERED else _event(entry, emission)
    told = emission.tell(entry.record_key[2:], event)
    emission.end(entry, "executed", [(OUTCOME, told)])
    waited = emission.now - int(entry.detail) if entry.detail.isdecimal() else -1
    emission.answered.append((event, waited))


def _event(entry: Entry, emission: Emission) -> Event:
    command = codec.COMMAND.reread(entry.value)
    answer = _answer(command, entry.offset, emission)
    return Event(
        id=command.command_id,
        kind=ANSWER,
        at=emission.now,
        job_id=answer.job_id,
        occurrence_id=answer.occurrence_id,
        run=answer.run,
        command_id=command.command_id,
        outcome=answer.outcome,
        reason=answer.reason,
        detail={"verb": command.verb[:80]}
        | ({} if answer.due_at is None else {"due_at": str(answer.due_at)}),
    )


def _answer(command: Command, offset: int, emission: Emission) -> Answer:
    verb = _VERBS.get(command.verb)
    try:
        if command.delay_ms is not None:  # one that could be resolved is a due time by now
            raise InvalidInput("delay_ms", "excludes due_at" if command.due_at is not None else "is negative")
        if command.verb == "create":
            return _create(command, offset, emission)
        if verb is None:
            raise InvalidInput("verb", f"{command.verb[:80]!r} is unknown")
        return verb(command, find(_job_id(command, emission), emission), emission)
    except (InvalidInput, Undecodable) as error:
        return Answer(outcome="refused", reason=str(error)[:DETAIL_LIMIT])


def _job_id(command: Command, emission: Emission) -> str:
    if command.job_id is None:
        raise InvalidInput("job_id", "missing")
    parsed = parse_id(command.job_id)
    if emission.site.layout.home(command.job_id) != emission.number:
        raise InvalidInput("job_id", "has another home")
    return parsed.id if isinstance(parsed, KeyedId) and parsed.incarnation is None else command.job_id


def _too_late(found: Found) -> Answer:
    """The answer where nothing can be changed any more; the sender looks further where the owner does not know."""
    if found.ended in ("cancelled", "stopped"):
        return _of(found, found.ended)
    return _of(found, FIRED if found.ended else "not_found", reason=found.ended or None)


def _of(found: Found, outcome: str, **more: Any) -> Answer:
    return replace(Answer(outcome=outcome, job_id=found.job_id, occurrence_id=found.occurrence_id), **more)


# -- creating -------------------------------------------------------------------------------------------------


def _create(command: Command, offset: int, emission: Emission) -> Answer:
    if command.key is None:
        return _create_anonymous(command, emission)
    id_ = keyed_id(command.key)
    if emission.site.layout.home(id_) != emission.number:
        raise InvalidInput("key", "has another home")
    if not command.key or "\0" in command.key or len(command.key.encode()) > KEY_LIMIT:
        raise InvalidInput("key", f"is empty, holds a NUL or is longer than {KEY_LIMIT} bytes")
    if command.on_conflict not in (None, *CONFLICTS):
        raise InvalidInput("on_conflict", f"is none of {', '.join(CONFLICTS)}")
    hold_of(command.unique or FINISHED)
    run = _run(command, id_, occurrence_of_keyed(id_, offset), emission)
    holder = holder_by_id(id_, emission)
    if holder is not None and _taken(holder[1], emission.now):
        return _conflict(command, run, *holder, emission)
    state = KeyState(
        incarnation=offset,
        phase=PENDING,
        highest_run=0,
        unique=command.unique or FINISHED,
        changed_at=emission.now,
        run=run,
    )
    keep_state(keys.keyed_key(command.key), state, emission)
    return _created(run, "created")


def _create_anonymous(command: Command, emission: Emission) -> Answer:
    assert command.due_at is not None, "resolved when it was folded"
    if not EARLIEST <= command.due_at <= LATEST:
        raise InvalidInput("due_at", f"{command.due_at} is absurd")
    id_ = command_job_id(command.due_at, command.command_id)
    run = _run(command, id_, id_, emission)
    key, value, home = keys.job_key(id_), codec.RUN.encode(run), emission.site.layout.home(id_)
    if home != emission.number:
        emission.put_at(home, key, value)
    elif emission.view.ended(id_.encode(), emission.now) is None:
        emission.keep(firing(emission.site, key, run, value, -1, emission.now))
    return _created(run, "created")


def _run(command: Command, job_id: str, occurrence: str, emission: Emission) -> Run:
    """The run a command asks for. InvalidInput naming what could never be emitted."""
    if command.handler is None:
        raise InvalidInput("handler", "missing")
    due_at = emission.now if command.due_at is None else command.due_at
    run = Run(
        job_id=job_id,
        occurrence_id=occurrence,
        due_at=due_at,
        run=1,
        queue=command.queue or DEFAULT_QUEUE,
        handler=command.handler,
        created_at=emission.now,
        nominal_at=due_at,
        idempotency_key=command.idempotency_key or occurrence,
        payload=b"{}" if command.payload is None else command.payload,
        serial=command.serial,
        key=command.key,
        attempt_limit=command.attempt_limit,
        timeout_ms=command.timeout_ms,
        labels=command.labels,
        headers=command.headers,
    )
    _check(run, emission)
    return run


def _check(run: Run, emission: Emission) -> None:
    for name, number in (("attempt_limit", run.attempt_limit), ("timeout_ms", run.timeout_ms)):
        if number is not None and number < 1:
            raise InvalidInput(name, "must be at least 1")
    if len(run.payload) > PAYLOAD_CEILING:
        raise InvalidInput("payload", f"is longer than {PAYLOAD_CEILING} bytes")
    texts = (run.idempotency_key, run.serial or "", *chain(*run.labels.items(), *run.headers.items()))
    if sum(len(text.encode()) for text in texts) > TEXTS_CEILING:
        raise InvalidInput("labels", f"and other texts are longer than {TEXTS_CEILING} bytes together")
    if problem := file_run(emission.site, run, emission.now).problem:
        raise InvalidInput(*problem.split(": ", 1))


def _created(run: Run, outcome: str) -> Answer:
    return Answer(outcome=outcome, job_id=run.job_id, occurrence_id=run.occurrence_id, due_at=run.due_at)


def _taken(state: KeyState, now: int) -> bool:
    """Whether the key is held: by a job that has not fired, always; then as its create command wanted."""
    if state.run is not None or state.unique == FINISHED:
        return True
    held = hold_of(state.unique)
    return held is not None and now < state.changed_at + held


def _conflict(command: Command, wanted: Run, entry: Entry, state: KeyState, emission: Emission) -> Answer:
    current = state.run
    existing = Answer(
        outcome="rejected" if command.on_conflict == "reject" else "existing",
        job_id=wanted.job_id,
        occurrence_id=occurrence_of(entry.record_key, state).decode(),
        due_at=_due_of(state, occurrence_of(entry.record_key, state).decode(), emission),
        reason=state.phase,
    )
    if current is None:
        return existing
    match command.on_conflict:
        case "replace":
            # The job stays the one it is: its occurrence, and what its effect is made unique by.
            run = replace(
                wanted,
                occurrence_id=current.occurrence_id,
                created_at=current.created_at,
                idempotency_key=command.idempotency_key or current.idempotency_key,
            )
            outcome = "replaced"
        case "debounce":
            later = max(wanted.due_at, current.due_at)
            run, outcome = replace(current, due_at=later, nominal_at=later), "debounced"
        case _:
            return existing
    keep_state(entry.record_key, replace(state, run=run, changed_at=emission.now), emission)
    return _created(run, outcome)


def _due_of(state: KeyState, occurrence: str, emission: Emission) -> int:
    """When the run that is to come is due, else when the last one was emitted."""
    if state.run is not None:
        return state.run.due_at
    retry = emission.view.entry(keys.retry_key(occurrence, state.highest_run))
    return state.changed_at if retry is None else retry.fire_at


# -- changing what is pending -----------------------------------------------------------------------------------


def _cancel(command: Command, found: Found, emission: Emission) -> Answer:
    if found.pending is not None:
        emission.end(found.pending, "cancelled", _occurrence(found))
        return _of(found, "cancelled")
    if found.retry is not None:
        _stop(command, found, found.retry, emission)
        return _of(found, "stopped")
    return _too_late(found)


def _occurrence(found: Found) -> list[tuple[str, bytes]]:
    return [] if found.state is None else [(OCCURRENCE, found.occurrence_id.encode())]


def _stop(command: Command, found: Found, retry: Entry, emission: Emission) -> None:
    """Drop the pending retry; a later one of the occurrence is dropped as well, and its key is free."""
    emission.end(retry, "stopped")
    event = Event(
        id=found.occurrence_id,
        kind="stopped",
        at=emission.now,
        job_id=found.job_id,
        occurrence_id=found.occurrence_id,
        command_id=command.command_id,
        reason=command.reason,
    )
    stopped = codec.EVENT.encode(event)
    key = keys.stopped_key(found.occurrence_id)
    emission.keep(kept(key, -1, stopped, emission.now + WORK_RETENTION_MS))
    holder = holder_of(found.occurrence_id, emission)
    if holder is not None:
        emission.end(holder[0], "stopped", told_of(*holder))


def _reschedule(command: Command, found: Found, emission: Emission) -> Answer:
    due_at = command.due_at
    if due_at is None:
        raise InvalidInput("due_at", "missing, and so is delay_ms")
    if not EARLIEST <= due_at <= LATEST:
        raise InvalidInput("due_at", f"{due_at} is absurd")
    if found.retry is not None:
        run = replace(codec.RUN.decode(found.retry.value), due_at=due_at)
        _rewrite(found.retry.record_key, run, emission)
    elif found.pending is not None:
        _change(found, emission, due_at=due_at, nominal_at=due_at)
    else:
        return _too_late(found)
    return _of(found, "rescheduled", due_at=due_at)


def _update(command: Command, found: Found, emission: Emission) -> Answer:
    if command.payload is None:
        raise InvalidInput("payload", "missing")
    if len(command.payload) > PAYLOAD_CEILING:
        raise InvalidInput("payload", f"is longer than {PAYLOAD_CEILING} bytes")
    if found.pending is None:
        return _too_late(found)
    _change(found, emission, payload=command.payload)
    return _of(found, "updated")


def _change(found: Found, emission: Emission, **changes: Any) -> None:
    """Write the pending run anew: a keyed job's under its key, an anonymous one's as `a/`, with the tombstone of
    what its creator put."""
    entry = found.pending
    assert entry is not None
    if found.state is not None and found.state.run is not None:
        run = replace(found.state.run, **changes)
        keep_state(entry.record_key, replace(found.state, run=run, changed_at=emission.now), emission)
        return
    run = replace(codec.RUN.decode(entry.value), **changes)
    key = keys.changed_key(found.job_id)
    if entry.record_key != key:
        emission.end(entry, "changed")
    _rewrite(key, run, emission)


def _rewrite(key: bytes, run: Run, emission: Emission) -> None:
    emission.keep(firing(emission.site, key, run, codec.RUN.encode(run), -1, emission.now))


# -- running again ------------------------------------------------------------------------------------------------


def _requeue(command: Command, found: Found, emission: Emission) -> Answer:
    """A further run now. One that is waiting for its back-off is brought forward instead (DESIGN §4)."""
    if found.pending is not None:
        return _of(found, PENDING)
    if found.retry is not None:
        _reschedule(replace(command, due_at=emission.now), found, emission)
        return _of(found, "brought_forward", due_at=emission.now)
    if found.job_id.startswith("k") and found.occurrence_id == found.job_id:
        raise InvalidInput("job_id", "names no incarnation, and none holds the key")
    if command.seen_run is None and found.ended in ("", "cancelled"):
        return _too_late(found)  # nobody saw it run: it may still be on its way
    highest = max(command.seen_run or 1, emission.view.highest_run(found.occurrence_id))
    if highest >= LAST_RUN:
        raise InvalidInput("run", f"{highest} is the last that has a token")
    # A run that did not say whose key it holds would never free it.
    holder = holder_of(found.occurrence_id, emission)
    key = command.key if holder is None else holder[0].record_key[2:].decode()
    wanted = replace(command, due_at=emission.now, key=key)
    run = replace(_run(wanted, found.job_id, found.occurrence_id, emission), run=highest + 1)
    stopped = emission.view.entry(keys.stopped_key(found.occurrence_id))
    if stopped is not None:
        emission.end(stopped, REQUEUED.decode())
    place = file_run(emission.site, run, emission.now).place
    emit_run(found.occurrence_id, run.run, place, codec.RUN.encode(run), emission)
    return _of(found, "requeued", run=run.run, due_at=emission.now)


def _release(_command: Command, found: Found, emission: Emission) -> Answer:
    holder = holder_by_id(found.job_id, emission)
    if holder is None:
        return _of(found, "not_found")
    if holder[1].run is not None:
        return _of(found, PENDING)
    emission.end(holder[0], "released", told_of(*holder))
    return _of(found, "released")


_VERBS: dict[str, Callable[[Command, Found, Emission], Answer]] = {
    "cancel": _cancel,
    "reschedule": _reschedule,
    "update": _update,
    "requeue": _requeue,
    "release": _release,
}
