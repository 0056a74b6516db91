"""How a record of `jobs` is filed in the index: what its owner owes it, and when.

Whatever could make an emission fail for ever is decided here, when the record is folded or written (DESIGN §5.8).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pipeline.core import series
from pipeline.core.errors import InvalidInput
from pipeline.core.job import EARLIEST, LATEST, KeyState
from pipeline.core.names import legal
from pipeline.core.schedule import Schedule
from pipeline.core.site import Site
from pipeline.core.times import parse_duration
from pipeline.core.topics import WORK_RETENTION_MS
from pipeline.core.zones import zone_data_version, zone_names
from pipeline.ports import Action, Entry

DETAIL_LIMIT = 500
"""Characters of a reason kept in the index: what a foreign record says of itself has no bound."""
REMOVED_MS = 30 * 86_400_000
NOWHERE = -1
"""The offset of an entry of which nobody asks where its record stands."""
TO_FIRE = (Action.FIRE, Action.GRANTED)
FINISHED, STARTED = "finished", "started"
"""How long a key stays taken: until the job ended, or until its first run is emitted; else a duration."""


class Head(Protocol):
    """What is read of a run to file it: a `Run`, or the leading fields of one."""

    @property
    def job_id(self) -> str: ...
    @property
    def due_at(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def handler(self) -> str: ...
    @property
    def serial(self) -> str | None: ...


class Filed(NamedTuple):
    """Where a run goes (`<queue>/<work partition>`), or else what is wrong with it (`field: problem`)."""

    place: str = ""
    problem: str = ""


def owed(key: bytes, offset: int, action: int, value: bytes, detail: str = "") -> Entry:
    """Something to settle at once, in the order of the log: an offset is less than any due time."""
    return Entry(key, min(offset, EARLIEST), offset, action, value, detail[:DETAIL_LIMIT])


def file_run(site: Site, head: Head, now: int) -> Filed:
    """Where the run goes when its time comes."""
    if not EARLIEST <= head.due_at <= LATEST:
        return Filed(problem=f"due_at: {head.due_at} is absurd")
    for name, text in (("handler", head.handler), ("queue", head.queue)):
        if not legal(text):
            return Filed(problem=f"{name}: illegal name")
    if head.queue not in site.layout.queues and not _found(site, head.queue, now):
        return Filed(problem=f"unknown_queue: {head.queue}")
    return Filed(f"{head.queue}/{site.layout.work_partition(head.queue, head.serial or head.job_id)}")


def _found(site: Site, queue: str, now: int) -> bool:
    """Whether the queue was made after this process read the layout: a job that was acknowledged for it must
    not end as dead for that."""
    return site.look_again(now) and queue in site.layout.queues


def firing(site: Site, key: bytes, head: Head, value: bytes, offset: int, now: int) -> Entry:
    """The entry of a run to come: to fire at its due time, or to bury if it never could be."""
    filed = file_run(site, head, now)
    if filed.problem:
        return owed(key, offset, Action.DEAD, value, filed.problem)
    return Entry(key, head.due_at, offset, Action.FIRE, value, filed.place)


def keyed(
    site: Site, key: bytes, state: KeyState, value: bytes, offset: int, now: int, place: str = ""
) -> Entry:
    """The entry of a keyed job: its run to come, or the key that it keeps, with the place of its last run."""
    if state.run is not None:
        return firing(site, key, state.run, value, offset, now)
    held = hold_of(state.unique)
    until = state.changed_at + (WORK_RETENTION_MS if held is None else held)
    return kept(key, offset, value, until, place)


def kept(key: bytes, offset: int, value: bytes, until: int, detail: str = "") -> Entry:
    """Something the owner keeps until then."""
    return Entry(key, min(max(until, EARLIEST), LATEST), offset, Action.EXPIRE, value, detail[:DETAIL_LIMIT])


def scheduled(key: bytes, state: Schedule, value: bytes) -> Entry:
    """The entry of a schedule: when something of it is to be decided next, or held until somebody changes it. What an
    app removed is remembered for as long as older versions of it may run. Its offset says nothing: it is rewritten
    with each firing, and to file each again for where it has come to stand would cost as much as firing it."""
    if state.ended == series.REMOVED:
        return kept(key, NOWHERE, value, state.changed_at + REMOVED_MS)
    at = series.wake_at(state)
    if at is None or not zone_is_here(state):
        return Entry(key, EARLIEST, NOWHERE, Action.HOLD, value)
    at = EARLIEST if of_other_zone_data(state) else min(max(at, EARLIEST + 1), LATEST)
    # A place of the queue's rate is taken as a job's is; the work partition differs by occurrence.
    return Entry(key, at, NOWHERE, Action.FIRE, value, f"{state.spec.queue}/")


def of_other_zone_data(state: Schedule) -> bool:
    """Whether its next instant was computed with other zone data than there are here: a rule may have moved it, to an
    earlier time even, so it is to be looked at now."""
    spec = state.spec
    by_zone = spec.tz != "UTC" and (spec.cron is not None or bool(spec.exclude))
    return by_zone and state.next_nominal is not None and state.zone_data != zone_data_version()


def zone_is_here(state: Schedule) -> bool:
    """Whether its zone is known; of one that only other zone data have, nothing is decided before an owner has them."""
    return state.zone_data == zone_data_version() or state.spec.tz in zone_names()


def hold_of(unique: str) -> int | None:
    """The milliseconds of a `unique` that is a duration, else None. InvalidInput if it is nothing known."""
    return None if unique in (FINISHED, STARTED) else parse_duration("unique", unique)


def sound_schedule(state: Schedule, schedule_id: str) -> bool:
    """Whether an `s/` record says something that an owner can have written, as far as a glance tells: whether its
    expression is one shows when it is due."""
    instants = (
        state.created_at, state.last_nominal, state.next_nominal, state.next_due, state.kept_until,
        state.last_success_at, state.spec.start_at, state.spec.end_at, *state.buffer,
        *(at for each in state.backfills for at in (each.from_at, each.to_at, each.cursor, each.next_at)),
        *(at for each in state.open for at in (each.nominal_at, each.emitted_at)),
    )  # fmt: skip
    plausible = all(at is None or 0 <= at <= LATEST for at in instants)
    return plausible and state.spec.id == schedule_id and state.incarnation >= 0


def sound(state: KeyState, job_id: str) -> bool:
    """Whether a `k/` record says something that an owner can have written."""
    try:
        hold_of(state.unique)
    except InvalidInput:
        return False
    run = state.run
    fits = run is None or (run.job_id, run.occurrence_id, run.run) == (
        job_id,
        f"{job_id}.{state.incarnation}",
        1,
    )
    return fits and state.incarnation >= 0 and 0 <= state.changed_at <= LATEST
