"""Running a job once more, and freeing a key by hand."""

from __future__ import annotations

from dataclasses import replace

from pipeline import codec, recurring
from pipeline.commands.answer import Answer, answer_of, too_late
from pipeline.commands.change import reschedule
from pipeline.commands.create import wanted_run
from pipeline.commands.stop import take_back
from pipeline.core.errors import InvalidInput
from pipeline.core.job import Command
from pipeline.core.token import LAST_RUN
from pipeline.emission import Emission
from pipeline.filing import file_run
from pipeline.found import Found
from pipeline.ports import Headers, Put
from pipeline.runs import PENDING, emit_run, holder_by_id, holder_of, told_of
from pipeline.view import END, REQUEUED, RUN


def requeue(command: Command, found: Found, emission: Emission) -> Answer:
    """A further run now. One that is waiting for its back-off is brought forward instead (DESIGN §4).
    With `on_conflict=reject` only if nobody has emitted a later run than the sender saw: so asking twice runs it once.
    """
    if found.pending is not None:
        return answer_of(found, PENDING)
    if found.retry is not None:
        reschedule(replace(command, due_at=emission.now), found, emission)
        return answer_of(found, "brought_forward", due_at=emission.now)
    if found.job_id.startswith("k") and found.occurrence_id == found.job_id:
        raise InvalidInput("job_id", "names no incarnation, and none holds the key")
    if command.seen_run is None and found.ended in ("", "cancelled"):
        return too_late(found)  # nobody saw it run: it may still be on its way
    remembered = emission.view.highest_run(found.occurrence_id)
    if command.on_conflict == "reject" and _seen(command) < remembered:
        return answer_of(found, "superseded", run=remembered)
    highest = max(command.seen_run or 1, remembered)
    if highest >= LAST_RUN:
        raise InvalidInput("run", f"{highest} is the last that has a token")
    # A run that did not say whose key it holds would never free it.
    holder = holder_of(found.occurrence_id, emission)
    key = command.key if holder is None else holder[0].record_key[2:].decode()
    wanted = replace(command, due_at=emission.now, key=key)
    run = replace(wanted_run(wanted, found.job_id, found.occurrence_id, emission), run=highest + 1)
    if found.job_id.startswith("s:"):
        run = recurring.requeued(run, emission)
    take_back(found.occurrence_id, emission)
    mark(found.occurrence_id, run.run, emission)
    place = file_run(emission.site, run, emission.now).place
    emit_run(found.occurrence_id, run.run, place, codec.RUN.encode(run), emission)
    if run.schedule_id is not None:
        recurring.reopen(found.occurrence_id, place, emission)
    return answer_of(found, "requeued", run=run.run, due_at=emission.now)


def _seen(command: Command) -> int:
    if command.seen_run is None:
        raise InvalidInput("seen_run", "missing, and on_conflict is reject")
    return command.seen_run


def mark(occurrence: str, run: int, emission: Emission) -> None:
    """Dead letters of earlier runs are dealt with: whoever lists them sees that."""
    topic, key = emission.site.names.dead, occurrence.encode()
    emission.puts.append(Put(topic, emission.number, key, None, marked(run)))


def marked(run: int) -> Headers:
    """What the mark says: from which run on."""
    return [(END, REQUEUED), (RUN, b"%d" % run)]


def release(_command: Command, found: Found, emission: Emission) -> Answer:
    holder = holder_by_id(found.job_id, emission)
    if holder is None:
        return answer_of(found, "not_found")
    if holder[1].run is not None:
        return answer_of(found, PENDING)
    emission.end(holder[0], "released", told_of(*holder))
    return answer_of(found, "released")
