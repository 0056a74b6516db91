"""What an owner knows of a job, by its id: of its index, and of what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import occurrence_of_keyed
from pipeline.core.job import KeyState
from pipeline.core.site import Site
from pipeline.emission import Emission
from pipeline.filing import TO_FIRE
from pipeline.ports import Entry
from pipeline.recurring import known, place_of
from pipeline.runs import FIRED, holder_by_id, holder_of
from pipeline.view import CHANGED

STOPPED, STOPPING = "stopped", "stopping"
"""What a stop says of itself: no run of the job is left, or workers have been told and one may be under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the owner knows of a job: the entry of its first run if that is still to come, the entry of a retry,
    how it ended; nothing of it."""

    job_id: str
    occurrence_id: str
    pending: Entry | None = None
    state: KeyState | None = None
    retry: Entry | None = None
    ended: str = ""
    waiting: bool = False
    """Of an occurrence of a schedule: it waits for an earlier one to end."""
    to_come_of: str | None = None
    """The schedule that has it still to come, as its next instant or waiting: only that can be changed."""


def find(job_id: str, emission: Emission) -> Found:
    """What the owner knows of `job_id`: of a keyed job the incarnation it names, else the one that holds the key."""
    if job_id.startswith("s:"):
        return _occurrence(job_id, emission)
    if not job_id.startswith("k"):
        return _found(job_id, job_id, emission, _pending_anonymous(job_id, emission), None)
    base, _, incarnation = job_id.partition(".")
    holder = holder_of(job_id, emission) if incarnation else holder_by_id(base, emission)
    if holder is None:
        return _found(base, job_id, emission, None, None)
    entry, state = holder
    occurrence = occurrence_of_keyed(base, state.incarnation)
    return _found(base, occurrence, emission, entry if state.run is not None else None, state)


def _occurrence(id_: str, emission: Emission) -> Found:
    """Of an instant of a schedule: what its runs say, else what the schedule still remembers of it."""
    found = _found(id_, id_, emission, None, None)
    parsed, state = known(id_, emission)
    if found.ended or found.retry is not None or state is None:
        return found
    if parsed.kind == "g" and parsed.nominal_at in state.buffer:
        return replace(found, waiting=True, to_come_of=parsed.schedule_id)
    if parsed.kind == "g" and parsed.nominal_at == state.next_nominal:
        return replace(found, to_come_of=parsed.schedule_id)
    same = (parsed.nominal_at, parsed.kind)
    fired = any(each.occurrence_id == id_ for each in state.open) or any(
        (each.nominal_at, each.kind) == same and not each.outcome.startswith("skipped")
        for each in state.recent
    )
    return replace(found, ended=FIRED) if fired else found


def _pending_anonymous(job_id: str, emission: Emission) -> Entry | None:
    view = emission.view
    return _to_fire(view.entry(keys.changed_key(job_id))) or _to_fire(view.entry(keys.job_key(job_id)))


def _to_fire(entry: Entry | None) -> Entry | None:
    """Not one that is to be buried, moved or dropped."""
    return entry if entry is not None and entry.action in TO_FIRE else None


def _found(
    job_id: str, occurrence: str, emission: Emission, pending: Entry | None, state: KeyState | None
) -> Found:
    view = emission.view
    retry, ended = None, view.ended(occurrence.encode(), emission.now) or b""
    if pending is None:
        highest = view.highest_run(occurrence)
        retry = _to_fire(view.entry(keys.retry_key(occurrence, highest)))
        stop = view.entry(keys.stopped_key(occurrence))
        if retry is None and stop is not None:
            ended = (STOPPING if codec.EVENT.decode(stop.value).outcome == STOPPING else STOPPED).encode()
        if ended == CHANGED:
            ended = b""  # a late copy was told so: it says nothing of how the job has ended since
        if not ended and (state is not None or highest > 1 or retry is not None):
            ended = FIRED.encode()
    return Found(
        job_id=job_id,
        occurrence_id=occurrence,
        pending=pending,
        state=state,
        retry=retry,
        ended=ended.decode("utf-8", "replace"),
    )


def known_place(found: Found, emission: Emission) -> str:
    """Where the runs of a job that fired stand, as `<queue>/<work partition>`; empty if its owner does not know."""
    entry = emission.view.entry(keys.highest_key(found.occurrence_id))
    if entry is not None:
        highest = codec.HIGHEST.decode(entry.value)
        return sound_place(f"{highest.queue}/{highest.work_partition}", emission.site)
    holder = holder_of(found.occurrence_id, emission)
    if holder is not None and (place := sound_place(holder[0].detail, emission.site)):
        return place
    return sound_place(place_of(found.occurrence_id, emission), emission.site)


def sound_place(place: str, site: Site) -> str:
    """`place` if it is one, else empty."""
    queue, _, number = place.rpartition("/")
    partitions = site.layout.queues.get(queue, 0)
    return place if number.isascii() and number.isdecimal() and int(number) < partitions else ""


def queue_of(found: Found, emission: Emission) -> str | None:
    """The queue of the run to come, else of the one that was emitted last; None if its owner does not know."""
    coming = found.pending or found.retry
    if coming is None and found.to_come_of is not None:
        state = known(found.occurrence_id, emission)[1]
        return None if state is None else state.spec.queue
    place = known_place(found, emission) if coming is None else coming.detail
    return place.rpartition("/")[0] or None
