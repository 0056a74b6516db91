"""What an owner knows of a job, by its id: of its index, and of what it remembers."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import codec
from pipeline.core import keys
from pipeline.core.ids import occurrence_of_keyed
from pipeline.core.job import KeyState
from pipeline.emission import Emission
from pipeline.filing import TO_FIRE
from pipeline.ports import Entry
from pipeline.runs import FIRED, holder_by_id, holder_of

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


def find(job_id: str, emission: Emission) -> Found:
    """What the owner knows of `job_id`: of a keyed job the incarnation it names, else the one that holds the key."""
    if not job_id.startswith("k"):
        return _found(job_id, job_id, emission, _pending_anonymous(job_id, emission), None)
    base, _, incarnation = job_id.partition(".")
    holder = holder_of(job_id, emission) if incarnation else holder_by_id(base, emission)
    if holder is None:
        return _found(base, job_id, emission, None, None)
    entry, state = holder
    occurrence = occurrence_of_keyed(base, state.incarnation)
    return _found(base, occurrence, emission, entry if state.run is not None else None, state)


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
