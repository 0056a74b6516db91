"""What the home partition of a job says about it: one fold over its records, of jobs with and without a key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, keyed_id, occurrence_of_keyed, parse_id
from pipeline.core.job import Event, KeyState, Run
from pipeline.core.limited import bare
from pipeline.core.schedule import Schedule
from pipeline.follower.values import (
    headers_of,
    place_of,
    readable_command,
    readable_event,
    readable_key_state,
    readable_run,
)
from pipeline.ports import Record

BEFORE_TOMBSTONE_MS = 60_000
"""How far before its tombstone a run may stand on the work topic: one transaction, but several clocks."""
RUN_DIGITS = 9
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
    ended_at: int | None = None
    """When the record was appended that says so, epoch ms."""
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
        trail.end, trail.ended_at = end, record.timestamp()[1]
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
                self.trail.end, self.trail.ended_at = "replaced", record.timestamp()[1]

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
