"""Stopping a job: what has not fired is cancelled, a retry that waits is dropped, and the workers are told of a run
that is queued or running (DESIGN §4, §7).

`x/<occurrence>` stands on `jobs`, where it drops later retries, and on the acks partition of the run, where its worker
reads it. It counts for the runs up to its own: a requeue takes it back, and emits a higher one.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline import codec, recurring
from pipeline.commands.answer import Answer, answer_of, too_late
from pipeline.core import keys
from pipeline.core.errors import InvalidInput
from pipeline.core.job import AckState, Command
from pipeline.core.limited import require_queue
from pipeline.emission import Emission
from pipeline.found import STOPPED, STOPPING, Found, known_place, sound_place
from pipeline.ports import Entry
from pipeline.runs import holder_of, tell_worker, told_of, write_stop
from pipeline.view import OCCURRENCE, REQUEUED, WORK


def cancel(command: Command, found: Found, emission: Emission) -> Answer:
    if found.pending is not None:
        emission.end(found.pending, "cancelled", _occurrence(found))
        return answer_of(found, "cancelled")
    if found.waiting:
        recurring.drop_waiting(found.occurrence_id, emission)
        return answer_of(found, "cancelled")
    if found.retry is not None:
        _drop(command, found, found.retry, "", emission)
        return answer_of(found, STOPPED)
    return too_late(found)


def stop(command: Command, found: Found, emission: Emission) -> Answer:
    """`cancel`, and beyond: of a job that fired, the workers are told, and the outcome stands on the acks."""
    if found.pending is not None or found.waiting:
        return cancel(command, found, emission)
    if found.retry is not None:
        # An earlier run may still be under way, beside the one that a requeue added.
        _drop(command, found, found.retry, found.retry.detail, emission)
        return answer_of(found, STOPPED)
    if found.ended == STOPPING:
        return answer_of(found, STOPPING, run=emission.view.highest_run(found.occurrence_id))
    place = "" if found.ended in ("cancelled", STOPPED) else _place(command, found, emission)
    if not place:
        return too_late(found)
    _write(command, found, STOPPING, place, emission)
    return answer_of(found, STOPPING, run=emission.view.highest_run(found.occurrence_id))


def _occurrence(found: Found) -> list[tuple[str, bytes]]:
    return [] if found.state is None else [(OCCURRENCE, found.occurrence_id.encode())]


def _drop(command: Command, found: Found, retry: Entry, place: str, emission: Emission) -> None:
    """Drop the pending retry; a later one of the occurrence is dropped as well, and its key is free."""
    emission.end(retry, STOPPED)
    _write(command, found, STOPPED, place, emission)
    recurring.end_here(found.occurrence_id, AckState.CANCELLED, emission)
    holder = holder_of(found.occurrence_id, emission)
    if holder is not None:
        emission.end(holder[0], STOPPED, told_of(*holder))


def _write(command: Command, found: Found, outcome: str, place: str, emission: Emission) -> None:
    occurrence, job_id, asked = found.occurrence_id, found.job_id, command.command_id
    write_stop(emission, occurrence, job_id, outcome, place, command_id=asked, reason=command.reason)


def _place(command: Command, found: Found, emission: Emission) -> str:
    """Where the runs of a job that fired stand; empty if nobody knows. What the sender saw is checked for being a
    place at all: a wrong one puts a stop where nobody looks for it."""
    if place := known_place(found, emission):
        return place
    if command.seen_run is None or command.queue is None:
        return ""
    site, queue = emission.site, command.queue
    require_queue(command, queue)
    if queue not in site.layout.queues and not (
        site.look_again(emission.now) and queue in site.layout.queues
    ):
        raise InvalidInput("queue", f"{queue[:80]!r} is unknown")
    return f"{queue}/{site.layout.work_partition(queue, command.serial or found.job_id)}"


def close(retry: Entry, emission: Emission) -> None:
    """A retry was dropped because its job was stopped: the job has ended. The stop says so from now on, and no worker
    will free its key."""
    parsed = keys.parse_jobs_key(retry.record_key)
    entry = emission.view.entry(keys.stopped_key(parsed.id))
    if entry is not None:
        event = codec.EVENT.decode(entry.value)
        if event.outcome == STOPPING:
            value = codec.EVENT.encode(replace(event, outcome=STOPPED))
            emission.keep(entry._replace(offset=-1, value=value))
    recurring.end_here(parsed.id, AckState.CANCELLED, emission)
    holder = holder_of(parsed.id, emission)
    if holder is not None and holder[1].run is None and holder[1].highest_run <= parsed.run:
        emission.end(holder[0], STOPPED, told_of(*holder))


def take_back(occurrence: str, emission: Emission) -> None:
    """The job is to run again: nothing of its stop is left."""
    entry = emission.view.entry(keys.stopped_key(occurrence))
    if entry is None:
        return
    place = codec.EVENT.decode(entry.value).detail.get(WORK, "")
    tell_worker(sound_place(place, emission.site), entry.record_key, None, emission)
    emission.end(entry, REQUEUED.decode())
