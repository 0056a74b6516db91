"""Creating a job by a command: of a key, and for senders in other languages without one."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from pipeline import codec
from pipeline.commands.answer import Answer
from pipeline.core import keys
from pipeline.core.errors import InvalidInput
from pipeline.core.ids import command_job_id, keyed_id, occurrence_of_keyed
from pipeline.core.job import EARLIEST, KEY_LIMIT, LATEST, PAYLOAD_CEILING, Command, KeyState, Run
from pipeline.core.limited import is_limited, require_queue
from pipeline.core.topics import DEFAULT_QUEUE
from pipeline.emission import Emission
from pipeline.filing import FINISHED, file_run, firing, hold_of
from pipeline.found import find, queue_of
from pipeline.ports import Entry
from pipeline.runs import PENDING, holder_by_id, keep_state, occurrence_of

TEXTS_CEILING = 160_000
"""Bytes of what a run has beside its payload: the run of a command that was taken must be taken too."""
CONFLICTS = ("existing", "replace", "debounce", "reject")


def create(command: Command, incarnation: int, emission: Emission) -> Answer:
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
    run = wanted_run(command, id_, occurrence_of_keyed(id_, incarnation), emission)
    holder = holder_by_id(id_, emission)
    if holder is not None and _taken(holder[1], emission.now):
        if is_limited(command):
            require_queue(command, queue_of(find(id_, emission), emission))
        return _conflict(command, run, *holder, emission)
    state = KeyState(
        incarnation=incarnation,
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
    run = wanted_run(command, id_, id_, emission)
    key, value, home = keys.job_key(id_), codec.RUN.encode(run), emission.site.layout.home(id_)
    if home != emission.number:
        emission.put_at(home, key, value)
    elif emission.view.ended(id_.encode(), emission.now) is None:
        emission.keep(firing(emission.site, key, run, value, -1, emission.now))
    return _created(run, "created")


def wanted_run(command: Command, job_id: str, occurrence: str, emission: Emission) -> Run:
    """The run a command asks for. InvalidInput naming what could never be emitted; NotAllowed."""
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
    require_queue(command, run.queue)
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
