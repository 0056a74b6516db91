"""What firing and commands share: emitting a further run, and the key that a job holds meanwhile."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import keyed_id
from pipeline.core.job import Event, Highest, KeyState
from pipeline.core.keys import KEYED
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.emission import Emission
from pipeline.filing import DETAIL_LIMIT, kept, keyed
from pipeline.ports import Entry, Headers, Put
from pipeline.view import OCCURRENCE, RUN, UNTIL, WORK, header

PENDING, FIRED = "pending", "fired"
"""Phases of a keyed job."""


def emit_run(occurrence: str, run: int, place: str, value: bytes, emission: Emission) -> None:
    """Emit run >= 2 of an occurrence, and remember it as the highest."""
    emission.run(place, occurrence.encode(), value)
    until = emission.now + WORK_RETENTION_MS
    entry = kept(keys.highest_key(occurrence), -1, highest_value(run, place), until)
    emission.keep(entry, [(UNTIL, b"%d" % until)])
    holder = holder_of(occurrence, emission) if occurrence.startswith("k") else None
    if holder is not None and holder[1].run is None:
        after = replace(holder[1], phase=FIRED, highest_run=run, changed_at=emission.now)
        keep_state(holder[0].record_key, after, emission, [("run", b"%d" % run), ("work", place.encode())])


@lru_cache(maxsize=4096)
def highest_value(run: int, place: str) -> bytes:
    """The value of an `h/` record: the same few in a replay of many."""
    queue, _, partition = place.rpartition("/")
    return codec.HIGHEST.encode(Highest(run=run, queue=queue, work_partition=int(partition)))


def holder_of(occurrence: str, emission: Emission) -> tuple[Entry, KeyState] | None:
    """The state of the key that this occurrence holds, if it is a keyed job's and still holds it."""
    id_, _, incarnation = occurrence.partition(".")
    holder = holder_by_id(id_, emission)
    return holder if holder is not None and str(holder[1].incarnation) == incarnation else None


def holder_by_id(job_id: str, emission: Emission) -> tuple[Entry, KeyState] | None:
    """The state of the key of a keyed job, whatever its incarnation."""
    key = emission.view.fact(keys.holder_key(job_id.encode()))
    entry = emission.view.entry(KEYED + key) if key is not None else None
    return None if entry is None else (entry, codec.KEY_STATE.reread(entry.value))


def keep_state(key: bytes, state: KeyState, emission: Emission, headers: Headers | None = None) -> None:
    """Write the state of a key."""
    value = codec.KEY_STATE.encode(state)
    place = header(headers or (), WORK).decode()
    emission.keep(keyed(emission.site, key, state, value, -1, emission.now, place), headers)


def told_of(entry: Entry, state: KeyState) -> Headers:
    """What the tombstone of a key says: whose it was, and where its last run stands. Compaction leaves nothing else."""
    told: Headers = [(OCCURRENCE, occurrence_of(entry.record_key, state))]
    if state.highest_run:
        told.append((RUN, b"%d" % state.highest_run))
    if state.highest_run and entry.detail:
        told.append((WORK, entry.detail.encode()))
    return told


def occurrence_of(record_key: bytes, state: KeyState) -> bytes:
    return f"{keyed_id(record_key[2:].decode())}.{state.incarnation}".encode()


def write_stop(
    emission: Emission,
    occurrence: str,
    job_id: str,
    outcome: str,
    place: str,
    *,
    command_id: str | None = None,
    reason: str | None = None,
) -> None:
    """The stop of an occurrence, up to its highest run: here and, if `place` says where the runs are, for their
    worker."""
    event = Event(
        id=occurrence,
        kind="stopped",
        at=emission.now,
        job_id=job_id,
        occurrence_id=occurrence,
        run=emission.view.highest_run(occurrence),
        command_id=command_id,
        outcome=outcome,
        reason=None if reason is None else reason[:DETAIL_LIMIT],
        detail={WORK: place} if place else {},
    )
    key, value = keys.stopped_key(occurrence), codec.EVENT.encode(event)
    emission.keep(kept(key, -1, value, emission.now + WORK_RETENTION_MS))
    tell_worker(place, key, value, emission)


def tell_worker(place: str, key: bytes, value: bytes | None, emission: Emission) -> None:
    """Put a stop, or its end, where the worker of these runs reads it; nowhere if nobody knows the place."""
    if place:
        queue, _, partition = place.rpartition("/")
        emission.puts.append(Put(emission.site.names.acks(queue), int(partition), key, value))
