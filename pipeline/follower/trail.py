"""What the home partition of a job says about it: one fold over its records, whatever form its id has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, ScheduleOccurrence, keyed_id, occurrence_of_keyed, parse_id
from pipeline.core.job import Event, KeyState, Run
from pipeline.core.layout import Layout
from pipeline.core.limited import bare
from pipeline.core.schedule import Recent, Schedule, ScheduleSpec
from pipeline.core.step import DELETED, EDITED, PAUSED
from pipeline.follower.values import (
    headers_of,
    place_of,
    readable_command,
    readable_event,
    readable_key_state,
    readable_run,
    readable_schedule,
)
from pipeline.ports import Record

__all__ = [
    "Fold",
    "KeyedFold",
    "Place",
    "ScheduledFold",
    "Trail",
    "fold_of",
    "fold_trail",
    "headers_of",
    "note_skipped",
]

BEFORE_TOMBSTONE_MS = 60_000
"""How far before its tombstone a run may stand on the work topic: one transaction, but several clocks."""
RUN_DIGITS = 9
FIRED, SKIPPED = "fired", "skipped."
"""How a schedule notes an occurrence that fired, and one that did not; the reason follows."""
_GOES_ON = frozenset({"duplicate", "superseded", "moved", "changed", "brought_forward"})
"""Ends of a record that are no end of its job: what it repeats ended, or goes on, as told elsewhere."""


class Place(NamedTuple):
    """Where the runs of a job stand, from which LogAppendTime on."""

    queue: str
    partition: int
    since: int


@dataclass(slots=True)
class Trail:
    """What a home partition says about one job."""

    id: str
    """As asked for: a job id, or an occurrence of a keyed job."""
    incarnation: int | None = None
    """Of a keyed job: the one asked for, else the last."""
    first: Run | None = None
    """The job as created (or changed), even if it is no longer pending."""
    live: dict[bytes, Run] = field(default_factory=dict)
    """Runs to come, by record key."""
    end: str | None = None
    work: Place | None = None
    highest: int = 0
    """The highest run that an owner is known to have emitted."""
    known: bool = False
    """Whether anything readable stands under its keys."""
    unreadable: bool = False
    """Whether a record under its keys cannot be decoded; its owner moves such a record to `dead`."""
    stop: Event | None = None
    """That it was stopped, while no requeue took that back."""
    schedule: Schedule | None = None
    """Of an occurrence of a schedule: the last state of that, of the same incarnation."""
    skipped: str | None = None
    """Why an occurrence of a schedule did not fire, in one word: it was skipped, or cancelled with its schedule."""
    behind: str | None = None
    """The occurrence that one of a schedule waits for."""
    commands: set[bytes] = field(default_factory=set)
    """Create commands of this keyed job that no owner has executed yet."""
    certain: bool = False
    """Of an occurrence of a schedule: whether the place is that of the state which came with the firing, not of a later
    one."""
    guessed: bool = False
    """Of the same: whether its schedule may have been another when it fired, so that its runs may stand elsewhere."""

    @property
    def pending(self) -> Run | None:
        """The first run, if it is still to come."""
        return next((run for key, run in self.live.items() if not key.startswith(keys.RETRY)), None)

    @property
    def retry(self) -> Run | None:
        """The run to come after the first, if one is."""
        return next((run for key, run in self.live.items() if key.startswith(keys.RETRY)), None)

    @property
    def occurrence_id(self) -> str | None:
        """None: of a keyed job, not known any more."""
        if not self.id.startswith("k") or "." in self.id:
            return self.id
        return None if self.incarnation is None else occurrence_of_keyed(self.id, self.incarnation)


def fold_trail(records: Iterable[Record], job_id: str, layout: Layout) -> Trail:
    """What the records of its home partition say about one job. Undecodable if `job_id` is no id."""
    fold = fold_of(job_id, layout)
    fold.take_all(records)
    return fold.trail


def fold_of(job_id: str, layout: Layout) -> Fold:
    """A fold to be fed with the records of the home partition of `job_id`. Undecodable if that is no id."""
    match parse_id(job_id):
        case KeyedId() as keyed:
            return KeyedFold(job_id, keyed)
        case ScheduleOccurrence() as occurrence:
            return ScheduledFold(job_id, occurrence, layout)
        case _:
            return Fold(job_id)


class Fold:
    """Of a job with one record key, `j/`, and `a/` once it was changed."""

    def __init__(self, job_id: str) -> None:
        self.trail = Trail(job_id)
        self._own = (keys.job_key(job_id), keys.changed_key(job_id))
        self._retries = f"r/{job_id}/".encode()
        self._counted = keys.highest_key(job_id)
        self._stopped = keys.stopped_key(job_id)

    def take_all(self, records: Iterable[Record]) -> None:
        for record in records:
            self.take(record.key() or b"", record)

    def pin(self) -> None:
        """What is known by now is the job that is meant, whoever gets its key after it."""

    def take(self, key: bytes, record: Record) -> None:
        if key in self._own or key.startswith(self._retries):
            self._run(key, record, readable_run(record.value()))
        elif key == self._counted:
            self._emitted(record)
        elif key == self._stopped:
            self._stop(record)

    def _stop(self, record: Record) -> None:
        self.trail.stop = readable_event(record.value())

    def _emitted(self, record: Record) -> None:
        """An owner's note of the highest run."""
        value = record.value()
        try:
            highest = None if value is None else codec.HIGHEST.decode(value)
        except Undecodable:
            return
        if highest is None:
            return
        trail = self.trail
        trail.known = True
        if highest.run > trail.highest and trail.end is not None:
            trail.end = "fired"  # it goes on, however an earlier run of it ended
        trail.highest = max(trail.highest, highest.run)
        if trail.work is None:
            trail.work = Place(highest.queue, highest.work_partition, 0)

    def _run(self, key: bytes, record: Record, run: Run | None) -> None:
        """A record whose value is a run to come, or its tombstone."""
        trail = self.trail
        if record.value() is None:
            trail.live.pop(key, None)
            _ended(trail, record)
        elif run is None:
            trail.unreadable = True
        else:
            trail.known = True
            trail.live[key] = run
            if not key.startswith(keys.RETRY):
                trail.first = run


def _ended(trail: Trail, record: Record) -> None:
    headers = headers_of(record)
    trail.known = True
    if (end := headers.get("end", "unknown")) not in _GOES_ON:
        trail.end = end
    _placed(trail, record, headers)


def _placed(trail: Trail, record: Record, headers: dict[str, str]) -> None:
    """Where its runs stand, if the record says so. What stands there before a later run is older, nobody knows by
    how much: then all of it is to be read."""
    place = place_of(headers.get("work", ""))
    if place is None:
        return
    run = _number(headers.get("run", "1"))
    trail.highest = max(trail.highest, run)
    if trail.work is None:
        trail.work = Place(*place, record.timestamp()[1] - BEFORE_TOMBSTONE_MS if run == 1 else 0)


def _number(text: str) -> int:
    """Of a run, as a header says it; 1 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= RUN_DIGITS else 1


class KeyedFold(Fold):
    """Of a keyed job: `k/<key>` is its state, under a key of which its id holds no more than a hash, and each
    incarnation is another job. Without one in the id the last is meant."""

    def __init__(self, id_: str, parsed: KeyedId) -> None:
        super().__init__(id_)
        self.trail.incarnation = parsed.incarnation
        self._base = parsed.id
        self._wanted = parsed.incarnation
        self.current: int | None = None
        """Incarnation of the last state read."""
        self._runs = tuple(f"{letter}/{parsed.id}.".encode() for letter in "rhx")

    def pin(self) -> None:
        if self._wanted is None:
            self._wanted = self.trail.incarnation

    def take(self, key: bytes, record: Record) -> None:
        if key.startswith(keys.KEYED):
            if _is_of(key, self._base):
                self._state(key, record)
        elif key.startswith(self._runs):
            self._later_run(key, record)
        elif key.startswith(keys.COMMAND):
            self._command(key, record)

    def _state(self, key: bytes, record: Record) -> None:
        state = readable_key_state(record.value())
        if record.value() is None:
            if self._is_end_of_ours(record):
                self.trail.live.pop(key, None)
                _ended(self.trail, record)
        elif state is None:
            self.trail.unreadable = True
        else:
            self.current = state.incarnation
            if self._chosen(state.incarnation):
                self._stands(key, record, state)
            elif state.incarnation > (self._wanted or 0) and key in self.trail.live:
                del self.trail.live[key]
                self.trail.end = "replaced"

    def _is_end_of_ours(self, record: Record) -> bool:
        """A tombstone names its occurrence; one that does not ends the last state read, if there was one."""
        named = _incarnation(headers_of(record).get("occurrence", ""))
        ended = self.current if named is None else named
        return ended is None or self._chosen(ended)

    def _chosen(self, incarnation: int) -> bool:
        """Whether records of this incarnation count; the last one is looked at anew."""
        if self._wanted is not None:
            return incarnation == self._wanted
        known = self.trail.incarnation
        if known is not None and incarnation < known:
            return False
        if incarnation != known:
            old = self.trail
            self.trail = Trail(old.id, incarnation, commands=old.commands, unreadable=old.unreadable)
        return True

    def _stands(self, key: bytes, record: Record, state: KeyState) -> None:
        trail = self.trail
        trail.known = True
        trail.live.pop(key, None)
        if state.run is not None and state.phase == "pending":
            trail.live[key] = trail.first = state.run
        trail.highest = max(trail.highest, state.highest_run)
        _placed(trail, record, headers_of(record))

    def _later_run(self, key: bytes, record: Record) -> None:
        try:
            incarnation = _incarnation(keys.parse_jobs_key(key).id)
        except Undecodable:
            return
        if incarnation is None or not self._chosen(incarnation):
            return
        if key.startswith(keys.RETRY):
            self._run(key, record, readable_run(record.value()))
        elif key.startswith(keys.STOPPED):
            self._stop(record)
        else:
            self._emitted(record)

    def _command(self, key: bytes, record: Record) -> None:
        self.trail.commands.discard(key)
        command = readable_command(record)
        if command is None or command.key is None or bare(command).verb != "create":
            return
        if keyed_id(command.key) == self._base:
            self.trail.commands.add(key)


def _incarnation(occurrence_id: str) -> int | None:
    """Of the occurrence of a keyed job; None if it is none."""
    try:
        parsed = parse_id(occurrence_id)
    except Undecodable:
        return None
    return parsed.incarnation if isinstance(parsed, KeyedId) else None


def _is_of(key: bytes, base: str) -> bool:
    try:
        return keyed_id(key[2:].decode()) == base
    except UnicodeDecodeError:
        return False


class ScheduledFold(Fold):
    """Of an occurrence of a schedule: before its first run it has no record, only what its schedule says of it."""

    def __init__(self, id_: str, parsed: ScheduleOccurrence, layout: Layout) -> None:
        super().__init__(id_)
        self._of = parsed
        self._layout = layout
        self._schedule = keys.schedule_key(parsed.schedule_id)

    def take(self, key: bytes, record: Record) -> None:
        if key != self._schedule:
            super().take(key, record)
            return
        state = readable_schedule(record.value())
        trail = self.trail
        waited = trail.live.pop(key, None)
        trail.behind = None
        ours = state if state is not None and state.incarnation == self._of.incarnation else None
        if ours is not None:
            self.stands(ours)
        if waited is None or trail.live or trail.certain:
            return
        if trail.end is None:  # by who deleted, edited or paused its schedule
            trail.end, trail.skipped = "cancelled", _taken_away(ours)
        if trail.skipped is not None:
            trail.first = waited

    def follows(self, state: Schedule | None) -> None:
        """That is the last state that was read."""
        if state is not None and state.incarnation == self._of.incarnation:
            self.trail.schedule = state

    def stands(self, state: Schedule) -> None:
        before, self.trail.schedule = self.trail.schedule, state
        nominal, grid = self._of.nominal_at, self._of.kind == "g"
        if grid and nominal in state.buffer:
            self._comes(state, nominal)
            self.trail.behind = state.open[0].occurrence_id if state.open else None
        elif grid and nominal == state.next_nominal:
            self._comes(state, state.next_due or nominal)
        else:
            self._decided(state, before)

    def _comes(self, state: Schedule, due_at: int) -> None:
        trail = self.trail
        trail.known = True
        if trail.skipped is not None:  # its schedule was resumed, or changed back
            trail.end = trail.skipped = trail.first = None
        trail.live[self._schedule] = run_to_come(trail.id, state, self._of.nominal_at, due_at)

    def _decided(self, state: Schedule, before: Schedule | None) -> None:
        """It fired or was skipped; of its last occurrences a state tells which."""
        trail, of = self.trail, self._of
        told = self._told(state)
        if told is not None:
            trail.known = True
        if told is not None and told.outcome.startswith(SKIPPED):
            note_skipped(trail, state, of.nominal_at, told.outcome.removeprefix(SKIPPED))
            return
        spec = state.spec if told is None else self._fired_by(told, state, before)
        if not trail.certain and (spec or state.spec).queue in self._layout.queues:
            trail.certain, trail.guessed = told is not None, spec is None
            trail.work = self._place(state, spec or state.spec)

    def _told(self, state: Schedule) -> Recent | None:
        of = self._of
        return next((r for r in state.recent if (r.nominal_at, r.kind) == (of.nominal_at, of.kind)), None)

    def _fired_by(self, told: Recent, state: Schedule, before: Schedule | None) -> ScheduleSpec | None:
        """The definition by which it fired: what is due when a schedule is changed goes by the one before. None: that
        is not known."""
        if state.revision == 1 or (told.outcome == FIRED and told.at > state.changed_at):
            return state.spec
        if before is None or self._told(before) is not None:
            return None
        return before.spec if told.at <= state.changed_at else state.spec

    def _place(self, state: Schedule, spec: ScheduleSpec) -> Place:
        """Where its first run went by this definition, and since when that may stand there."""
        partition = self._layout.work_partition(spec.queue, spec.serial or self.trail.id)
        earliest = state.created_at if self._of.kind == "b" else self._of.nominal_at
        return Place(spec.queue, partition, max(earliest - BEFORE_TOMBSTONE_MS, 0))


def _taken_away(state: Schedule | None) -> str:
    """Why what was to come is not any more, by the state of its schedule after that; None: it is gone."""
    if state is None:
        return DELETED
    return state.ended or (EDITED if state.paused is None else PAUSED)


def note_skipped(trail: Trail, state: Schedule, nominal_at: int, reason: str | None) -> None:
    """An instant of this schedule was skipped: it is shown as what would have run."""
    trail.known, trail.end, trail.skipped = True, "skipped", reason
    if trail.first is None:
        trail.first = run_to_come(trail.id, state, nominal_at, nominal_at)


def run_to_come(id_: str, state: Schedule, nominal_at: int, due_at: int) -> Run:
    """The first run of an occurrence, by the definition as it stands."""
    spec = state.spec
    return Run(
        job_id=id_,
        occurrence_id=id_,
        schedule_id=spec.id,
        handler=spec.handler,
        queue=spec.queue,
        payload=spec.payload,
        idempotency_key=id_,
        created_at=state.created_at,
        due_at=due_at,
        nominal_at=nominal_at,
        run=1,
        attempt_limit=spec.attempt_limit,
        timeout_ms=spec.timeout_ms,
        serial=spec.serial,
        labels=spec.labels,
        headers=spec.headers,
    )
