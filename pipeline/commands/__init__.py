"""Commands, executed by the owner of the home partition in the order of the log (DESIGN §4, §9).

An answer is an event; the tombstone of the command carries it too, and a command that comes again within the
memory is answered again the same way. Whoever else may ask for a change, only the owner writes it: so `cancelled`
is true, and an update can never be buried by a firing that had not seen it (H7).
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline import codec
from pipeline.commands.again import release, requeue
from pipeline.commands.answer import Answer, not_alone
from pipeline.commands.change import reschedule, update
from pipeline.commands.create import create
from pipeline.commands.retain import retain
from pipeline.commands.schedules import change_schedule
from pipeline.commands.stop import cancel, stop
from pipeline.core.errors import InvalidInput, NotAllowed, Undecodable
from pipeline.core.ids import KeyedId, parse_id
from pipeline.core.job import Command, Event
from pipeline.core.limited import NOT_ALLOWED, bare, is_limited, require_queue
from pipeline.emission import Emission
from pipeline.filing import DETAIL_LIMIT
from pipeline.fold import ANSWERED, SCHEDULE_VERBS
from pipeline.found import Found, find, queue_of
from pipeline.portion import REPLAY, batch_of
from pipeline.ports import Entry
from pipeline.view import OUTCOME

ANSWER, RETAIN = "answer", "schedule.retain"


def execute(entry: Entry, emission: Emission) -> None:
    """Execute the command in `entry`, answer it and tombstone it."""
    event = codec.EVENT.reread(entry.value) if entry.detail == ANSWERED else _event(entry, emission)
    told = emission.tell(entry.record_key[2:], event)
    emission.end(entry, "executed", [(OUTCOME, told)])
    waited = emission.now - int(entry.detail) if entry.detail.isdecimal() else -1
    emission.answered.append((event, waited))


def _event(entry: Entry, emission: Emission) -> Event:
    command = bare(codec.COMMAND.reread(entry.value))
    answer = _answer(command, entry, emission)
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
        | ({} if answer.due_at is None else {"due_at": str(answer.due_at)})
        | dict(answer.detail),
    )


def _answer(command: Command, entry: Entry, emission: Emission) -> Answer:
    verb = _VERBS.get(command.verb)
    try:
        if command.delay_ms is not None:  # one that could be resolved is a due time by now
            raise InvalidInput("delay_ms", "excludes due_at" if command.due_at is not None else "is negative")
        if command.verb == "create":
            return create(command, emission.site.incarnation(entry.offset), emission)
        if command.verb.startswith(SCHEDULE_VERBS):
            # What was asked for while its owner was away counts from when it was asked.
            at = min(int(entry.detail) if entry.detail.isdecimal() else emission.now, emission.now)
            if command.verb == RETAIN and not is_limited(command):
                return retain(command, at, emission)
            return change_schedule(command, emission.site.incarnation(entry.offset), at, emission)
        if command.verb == REPLAY:
            batch_of(command)  # it is filed as a command only because this raises
        if verb is None:
            raise InvalidInput("verb", f"{command.verb[:80]!r} is unknown")
        found = _found(command, emission)
        return not_alone(found) if _is_not_alone(command, found) else verb(command, found, emission)
    except (InvalidInput, Undecodable) as error:
        return Answer(outcome="refused", reason=str(error)[:DETAIL_LIMIT])
    except NotAllowed as error:
        return Answer(outcome=NOT_ALLOWED, reason=str(error))


def _is_not_alone(command: Command, found: Found) -> bool:
    """One that waits can be cancelled, and that is all."""
    return found.to_come_of is not None and not (found.waiting and command.verb in ("cancel", "stop"))


def _found(command: Command, emission: Emission) -> Found:
    """NotAllowed if the job is on another's queue. Of what is known nothing of, there is nothing to change."""
    found = find(_job_id(command, emission), emission)
    if is_limited(command):
        queue = queue_of(found, emission)
        if queue is not None or found.state is not None:
            require_queue(command, queue)
    return found


def _job_id(command: Command, emission: Emission) -> str:
    if command.job_id is None:
        raise InvalidInput("job_id", "missing")
    parsed = parse_id(command.job_id)
    if emission.site.layout.home(command.job_id) != emission.number:
        raise InvalidInput("job_id", "has another home")
    return parsed.id if isinstance(parsed, KeyedId) and parsed.incarnation is None else command.job_id


_VERBS: dict[str, Callable[[Command, Found, Emission], Answer]] = {
    "cancel": cancel,
    "stop": stop,
    "reschedule": reschedule,
    "update": update,
    "requeue": requeue,
    "release": release,
}
