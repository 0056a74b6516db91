"""What each record of the topics means for the rows of a read model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pipeline import codec
from pipeline.core import keys
from pipeline.core.errors import Undecodable
from pipeline.core.ids import KeyedId, keyed_id, occurrence_of_keyed, parse_id, parse_occurrence
from pipeline.core.job import AckState, Event, Run
from pipeline.core.keys import LAYOUT_KEY
from pipeline.core.layout import Layout
from pipeline.core.names import Names
from pipeline.core.schedule import Schedule
from pipeline.follower.occurrence import note_skipped
from pipeline.follower.values import (
    headers_of,
    readable_ack,
    readable_event,
    readable_key_state,
    readable_run,
    shown_instant,
)
from pipeline.ports import Record
from pipeline.readmodel import plain
from pipeline.readmodel import tale as tales
from pipeline.readmodel.body import pack, unpack
from pipeline.readmodel.counts import Activity, step_of
from pipeline.readmodel.letters import fold_letter
from pipeline.readmodel.processes import Processes
from pipeline.readmodel.replayed import note_replayed
from pipeline.readmodel.rows import BASE, EVENT, META, PAYLOAD, keyed_key, lateness_of, possible_from
from pipeline.readmodel.series import fold_schedule, note_skip
from pipeline.readmodel.sheet import Sheet
from pipeline.readmodel.tale import Sent, Tale
from pipeline.readmodel.words import HANDLER, QUEUE

PAYLOAD_KEPT = 8 * 1024
"""Bytes of a payload that is kept here; a longer one is read where it stands."""
FAILED = frozenset({AckState.RETRYING, AckState.FAILED, AckState.DEAD})
DEAD = frozenset({AckState.FAILED, AckState.DEAD})
EVENT_TEXT = 500
Taker = Callable[[Record, bytes], None]
_json = json.JSONEncoder(separators=(",", ":")).encode
"""`json.dumps` makes one of these for each value."""


class Folding:
    """One thread. Records of a partition come in order, those of several in any."""

    def __init__(self, names: Names, layout: Layout, sheet: Sheet, processes: Processes) -> None:
        self.names = names
        self._sheet = sheet
        self._processes = processes
        self.layout = layout
        self.quick = True
        """Whether what is plain goes the short way; a test plays both."""
        self._plain_names, self._plain_places = plain.Names(sheet.words), plain.Places(sheet.words)
        self.newest = 0
        """The latest LogAppendTime among all that was folded, epoch ms."""
        self._takers: dict[str, Taker] = {}
        self._learn_topics()

    def _learn_topics(self) -> None:
        names = self.names
        self._takers = {
            names.jobs: self._job,
            names.dead: lambda record, key: fold_letter(record, key, self._sheet),
            names.events: self._event,
            names.meta: self._meta,
            names.fleet: lambda record, key: self._processes.take(record, key),
        }
        for queue in self.layout.queues:
            self._takers[names.work(queue)] = partial(self._work, queue)
            self._takers[names.acks(queue)] = partial(self._ack, queue)

    def take(self, records: Iterable[Record]) -> None:
        """Fold them into the sheet."""
        takers = self._takers
        for record in records:
            at = record.timestamp()[1]
            if at > self.newest:
                self.newest = at
            takers[record.topic() or ""](record, record.key() or b"")

    # -- rows of jobs -------------------------------------------------------------------------------------------

    def _load(self, id_: bytes) -> Tale | None:
        """None if `id_` is none: nobody can ask for it."""
        row = self._sheet.job(id_)
        if row is not None:
            return unpack(id_.decode(), row, self._sheet.words)
        try:
            return tales.new(id_.decode())
        except (Undecodable, UnicodeDecodeError):
            return None

    def _keep(self, id_: bytes, tale: Tale, at: int) -> None:
        status = tale.status()
        if status is not None and status not in tales.ENDED:
            tale.ended_at = 0
        elif not tale.ended_at:
            tale.ended_at = max(at, 1)
        first = tale.trail.first
        if first is not None and _was_given(tale):
            if not _came_again(tale):
                self._keep_payload(id_, first.payload)
            if first.key is not None:
                self._sheet.put(keyed_key(first.key, id_), b"")
        self._sheet.put_job(id_, pack(tale, self._sheet.words))

    def _keep_payload(self, id_: bytes, payload: bytes) -> None:
        self._sheet.put(PAYLOAD + id_, payload if len(payload) <= PAYLOAD_KEPT else None)

    def _activity(self, at: int) -> Activity | None:
        return self._sheet.recent.at(at)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _job(self, record: Record, key: bytes) -> None:
        if key.startswith(keys.JOB) and self.quick and self._plain_job(record, key[2:]):
            return
        match key[:2]:
            case b"j/" | b"a/":
                self._home(key[2:], key, record)
            case b"r/" | b"h/" | b"x/":
                self._later(key, record)
            case b"k/":
                self._keyed(key, record)
            case b"s/":
                fold_schedule(record, key, self)

    def _plain_job(self, record: Record, id_: bytes) -> bool:
        """A plain job that is new, or fires: nearly all are; whether it is one."""
        sheet, value = self._sheet, record.value()
        before = sheet.job(id_)
        if value is None:
            row = None if before is None else plain.fired(before, record, self._plain_places)
            if row is None or self.layout.home(id_.decode()) != record.partition():
                return False
            sheet.put_job(id_, row)
            return True
        run = plain.read_run(id_, value, self._plain_names) if before is None else None
        if run is None or not self._is_home(id_.decode(), record):
            return False
        sheet.put_job(id_, plain.made(run, record.offset() or 0))
        payload = run.payload
        if 0 < len(payload) <= PAYLOAD_KEPT:
            sheet.put(PAYLOAD + id_, payload)
        return True

    def _is_home(self, id_: str, record: Record) -> bool:
        """What stands at another partition than its home its owner moves there."""
        try:
            return self.layout.home(id_) == record.partition()
        except Undecodable:
            return False

    def _later(self, key: bytes, record: Record) -> None:
        try:
            id_ = keys.parse_jobs_key(key).id
            parsed = parse_id(id_)
        except Undecodable:
            return
        if isinstance(parsed, KeyedId):
            if parsed.incarnation is None:
                return
            self._note_incarnation(parsed.id, parsed.incarnation)
        self._home(id_.encode(), key, record)

    def _home(self, id_: bytes, key: bytes, record: Record, current: int | None = None) -> None:
        """A record about one occurrence."""
        if not self._is_home(id_.decode("utf-8", "replace"), record):
            return
        self.fold_home(id_, key, record, current)

    def fold_home(
        self,
        id_: bytes,
        key: bytes,
        record: Record,
        current: int | None = None,
        before: Schedule | None = None,
    ) -> None:
        """The same, of one that is known to be at its home."""
        tale = self._load(id_)
        if tale is None:
            return
        end = tale.trail.end
        tales.fold_home(tale, key, record, self.layout, current, before)
        if _was_given(tale) and not _came_again(tale):
            tale.home_offset = record.offset() or 0
        at = record.timestamp()[1]
        self._keep(id_, tale, at)
        if tale.trail.end == "dead" != end and tale.trail.first is not None:
            self._count_dead(tale.trail.first, at)

    def fold_skip(self, id_: bytes, state: Schedule, reason: str | None, at: int) -> None:
        """An occurrence of this schedule did not fire, unless it is known to have, or what else became of it."""
        tale = self._load(id_)
        if tale is not None and tale.trail.end is None and not (tale.trail.live or tale.story().highest_run):
            note_skipped(tale.trail, state, parse_occurrence(id_.decode()).nominal_at, reason, at)
            self._keep(id_, tale, at)

    def _count_dead(self, run: Run, at: int) -> None:
        activity = self._activity(at)
        if activity is not None:
            activity.failed += 1  # what is dead is among what failed, also where its owner ended it
            activity.dead += 1
            by_handler = activity.handlers.setdefault(
                self._sheet.words.number(HANDLER, run.handler), [0, 0, 0]
            )
            by_handler[1] += 1
            by_handler[2] += 1

    # -- keyed jobs ---------------------------------------------------------------------------------------------

    def _keyed(self, key: bytes, record: Record) -> None:
        """The state of a key, which is about the incarnation that it names, and about the one that was there."""
        try:
            id_ = keyed_id(key[2:].decode())
        except UnicodeDecodeError:
            return
        if not self._is_home(id_, record):
            return
        current, latest = self.incarnations(id_)
        state = readable_key_state(record.value())
        if record.value() is None:
            named = _incarnation(headers_of(record).get("occurrence", ""))
            ended = current if named is None else named
            about = {ended} if ended is not None else set()
        elif state is None:
            return
        else:
            about = {state.incarnation} if current is None else {current, state.incarnation}
        for incarnation in about:
            occurrence = occurrence_of_keyed(id_, incarnation).encode()
            self.fold_home(occurrence, key, record, current)
        if state is not None:
            current = state.incarnation
        self._put_base(id_, current, max([*about, -1 if latest is None else latest]))

    def incarnations(self, id_: str) -> tuple[int | None, int | None]:
        """Of a keyed job: that of the last state under its key, and the highest that was heard of."""
        value = self._sheet.get(BASE + id_.encode())
        if value is None:
            return None, None
        current, latest = json.loads(value)
        return current, latest

    def _note_incarnation(self, id_: str, incarnation: int) -> None:
        current, latest = self.incarnations(id_)
        if latest is None or incarnation > latest:
            self._put_base(id_, current, incarnation)

    def _put_base(self, id_: str, current: int | None, latest: int) -> None:
        if latest >= 0:
            self._sheet.put(BASE + id_.encode(), json.dumps([current, latest]).encode())

    # -- work and acks ------------------------------------------------------------------------------------------

    def _work(self, queue: str, record: Record, key: bytes) -> None:
        if self.quick and self._plain_work(queue, record, key):
            return
        run = readable_run(record.value())
        tale = None if run is None else self._load(key)
        if run is None or tale is None:
            return
        at = record.timestamp()[1]
        if tales.fold_run(tale, run, queue, record.partition() or 0, Sent(at, record.offset() or 0)):
            if run.run == max(tale.sent) and _came_again(tale):  # a requeue may have given it another payload
                tale.home_offset = -1
                self._keep_payload(key, run.payload)
            self._keep(key, tale, at)
            self._count_fired(at, run)
            note_replayed(key, run, self._sheet)

    def _plain_work(self, queue: str, record: Record, key: bytes) -> bool:
        before, value = self._sheet.job(key), record.value()
        if before is None or value is None:
            return False
        run = plain.read_run(key, value, self._plain_names)
        number = self._sheet.words.number(QUEUE, queue)
        row = None if run is None else plain.sent(before, run, number, record)
        if run is None or row is None:
            return False
        self._sheet.put_job(key, row)
        self._count_fired(record.timestamp()[1], run)
        return True

    def _count_fired(self, at: int, run: Run | plain.Plain) -> None:
        activity = self._activity(at)
        if activity is not None:
            activity.fired += 1
            made = possible_from(run) if isinstance(run, Run) else run.created_at
            activity.late[step_of(lateness_of(at, run.due_at, made))] += 1

    def _ack(self, queue: str, record: Record, key: bytes) -> None:
        if key[:2] not in (b"s/", b"t/"):
            return
        id_ = key[2:].partition(b"/")[0]
        ack = readable_ack(record.value())
        if ack is None:
            return
        at = record.timestamp()[1]
        if self.quick and (before := self._sheet.job(id_)) is not None:
            words = self._sheet.words
            row = plain.attempted(before, ack, words.number(QUEUE, queue), record, words)
            if row is not None:
                self._sheet.put_job(id_, row)
                self._count_ack(ack.state, ack.handler, queue, at)
                return
        tale = self._load(id_)
        if tale is not None and tales.fold_ack(tale, ack, queue, record.partition() or 0):
            self._keep(id_, tale, at)
            self._count_ack(ack.state, ack.handler, queue, at)

    def _count_ack(self, state: AckState, handler: str, queue: str, at: int) -> None:
        activity = self._activity(at)
        if activity is None:
            return
        words = self._sheet.words
        counts = activity.queues.setdefault(words.number(QUEUE, queue), [0, 0])
        if state is AckState.STARTED:
            counts[0] += 1
        if not state.terminal:
            return
        counts[1] += 1
        by_handler = activity.handlers.setdefault(words.number(HANDLER, handler), [0, 0, 0])
        if state is AckState.SUCCEEDED:
            activity.succeeded += 1
            by_handler[0] += 1
        if state in FAILED:
            activity.failed += 1
            by_handler[1] += 1
        if state in DEAD:
            activity.dead += 1
            by_handler[2] += 1

    # -- what else there is -------------------------------------------------------------------------------------

    def _event(self, record: Record, key: bytes) -> None:
        event = readable_event(record.value())
        if event is None:
            return
        if event.kind == "skipped":
            note_skip(event, key, record, self)
        first, following = self._sheet.totals.events
        row = EVENT + following.to_bytes(8, "big")
        self._sheet.put(row, _json(event_view(event)).encode())
        self._sheet.totals.events = first, following + 1

    def _meta(self, record: Record, key: bytes) -> None:
        value = record.value()
        self._sheet.put(META + key, value)
        if key == LAYOUT_KEY and value is not None:
            try:
                layout = codec.LAYOUT.decode(value)
            except Undecodable:
                return
            if layout.identity() == self.layout.identity():
                self.layout = layout
                self._learn_topics()

    @property
    def sheet(self) -> Sheet:
        return self._sheet


def event_view(event: Event) -> dict[str, Any]:
    """What a list of events shows."""
    detail = event.detail
    return {
        "at": shown_instant(event.at),
        "kind": event.kind,
        "job": event.job_id,
        "schedule": detail.get("schedule"),
        "outcome": event.outcome,
        "reason": event.reason and event.reason[:EVENT_TEXT],
        "by": detail.get("by") or detail.get("requested_by"),
        "detail": {name: text[:EVENT_TEXT] for name, text in detail.items()},
    }


def _was_given(tale: Tale) -> bool:
    """Whether a payload stands with it; what its schedule left out was given none."""
    first = tale.trail.first
    return first is not None and bool(first.payload) and tale.trail.skipped is None


def _came_again(tale: Tale) -> bool:
    """Whether a run after the first is known, whichever topic was read first: its payload is the one that counts."""
    return max(tale.sent, default=0) > 1


def _incarnation(occurrence: str) -> int | None:
    try:
        parsed = parse_id(occurrence)
    except Undecodable:
        return None
    return parsed.incarnation if isinstance(parsed, KeyedId) else None
