"""Schedules: their states, and what each says about their occurrences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.ids import ScheduleOccurrence, parse_occurrence, schedule_occurrence
from pipeline.core.job import Event
from pipeline.core.layout import Layout
from pipeline.core.names import legal
from pipeline.core.schedule import Schedule
from pipeline.follower.folds import fold_of
from pipeline.follower.occurrence import ScheduledFold, note_skipped
from pipeline.follower.schedules import detail_number, may_be_skipped
from pipeline.follower.trail import Trail
from pipeline.follower.values import readable_schedule
from pipeline.ports import Record
from pipeline.readmodel.rows import GONE, SCHEDULE, SKIPS, UNTOLD, WAITING

if TYPE_CHECKING:
    from pipeline.readmodel.folding import Folding

MOST_SKIPS = 200
"""Skips that are kept of a schedule, each of a range of instants."""
MOST_UNTOLD = 20
"""Occurrences that are kept of a schedule to be looked for in its skips: one is to come at a time, but for a buffer."""


def fold_schedule(record: Record, key: bytes, folding: Folding) -> None:
    """Take in a state of a schedule, or its end. It is told to the occurrences that it is about: what waits, what
    waited until now, and what it has noted as fired or skipped."""
    id_, sheet = key[2:].decode("utf-8", "replace"), folding.sheet
    if not legal(id_) or folding.layout.home_of_name(id_) != record.partition():
        return
    value = record.value()
    name = id_.encode()
    state = readable_schedule(value)
    before = readable_schedule(sheet.get(SCHEDULE + name))
    waited = json.loads(sheet.get(WAITING + name) or b"[]")
    waiting = [] if state is None else waiting_of(id_, state)
    told = set(waited) | set(waiting)
    if state is not None:
        told |= _decided(id_, state, before)
    for occurrence in sorted(told):
        folding.fold_home(occurrence.encode(), key, record, before=before)
    if before is not None and (state is None or state.incarnation != before.incarnation):
        sheet.put(GONE + name, sheet.get(SCHEDULE + name))  # its occurrences may still be asked for
    sheet.put(SCHEDULE + name, None if state is None else value)
    sheet.put(WAITING + name, json.dumps(waiting).encode() if waiting else None)
    if state is not None and (untold := set(waited) - set(waiting) - _noted(id_, state)):
        known = json.loads(sheet.get(UNTOLD + name) or b"[]")
        sheet.put(UNTOLD + name, json.dumps([*known, *sorted(untold)][-MOST_UNTOLD:]).encode())
        for skip in json.loads(sheet.get(SKIPS + name) or b"[]"):
            _leave_out(name, skip, folding)


def waiting_of(id_: str, state: Schedule) -> list[str]:
    """The occurrences that this state says are to come."""
    nominals = [*state.buffer] if state.next_nominal is None else [*state.buffer, state.next_nominal]
    return [*_occurrences(id_, state, nominals)]


def _decided(id_: str, state: Schedule, before: Schedule | None) -> set[str]:
    """What this state notes of the grid and the one before did not. Triggers and backfills have ids that a state does
    not tell; their runs do."""
    same = before is not None and before.incarnation == state.incarnation
    known = set(before.recent) if before is not None and same else set()
    nominals = [each.nominal_at for each in state.recent if each.kind == "g" and each not in known]
    return set(_occurrences(id_, state, nominals))


def _noted(id_: str, state: Schedule) -> set[str]:
    return set(_occurrences(id_, state, (each.nominal_at for each in state.recent if each.kind == "g")))


def _occurrences(id_: str, state: Schedule, nominals: Iterable[int]) -> Iterable[str]:
    for nominal in nominals:
        try:
            yield schedule_occurrence(id_, state.incarnation, "g", "", nominal)
        except ValueError:
            continue  # whoever may append can store any number


def note_skip(event: Event, key: bytes, record: Record, folding: Folding) -> None:
    """Keep that a range of instants was skipped."""
    id_ = key.decode("utf-8", "replace")
    if not legal(id_) or folding.layout.home_of_name(id_) != record.partition():
        return
    detail, sheet = event.detail, folding.sheet
    skip = [
        detail_number(detail.get("first")),
        detail_number(detail.get("last")),
        detail.get("kind"),
        event.reason,
        event.at,
    ]
    known = json.loads(sheet.get(SKIPS + key) or b"[]")
    sheet.put(SKIPS + key, json.dumps([*known, skip][-MOST_SKIPS:]).encode())
    _leave_out(key, skip, folding)


def _leave_out(name: bytes, skip: list[Any], folding: Folding) -> None:
    """Of what a schedule has decided and did not note, tell what this skip is about. Skips and states stand on topics
    of their own, so either may come first."""
    first, last, kind, reason, at = skip
    sheet = folding.sheet
    for occurrence in json.loads(sheet.get(UNTOLD + name) or b"[]"):
        of = parse_occurrence(occurrence)
        state = _state_of(of, sheet.get)
        if state is not None and kind == "g" and first <= of.nominal_at <= last:
            folding.fold_skip(occurrence.encode(), state, reason, at)


def _state_of(of: ScheduleOccurrence, get: Callable[[bytes], bytes | None]) -> Schedule | None:
    """The last state of the schedule that this is an occurrence of; None: there is none."""
    states = (readable_schedule(get(kind + of.schedule_id.encode())) for kind in (SCHEDULE, GONE))
    return next((each for each in states if each is not None and each.incarnation == of.incarnation), None)


def unfired(id_: str, layout: Layout, rows: RocksRows) -> Trail | None:
    """What its schedule says of an occurrence that has no row: only those that came to something have. Undecodable if
    `id_` is none; None: there is no schedule that it is of."""
    of = parse_occurrence(id_)
    state = _state_of(of, rows.get)
    if state is None:
        return None
    fold = fold_of(id_, layout)
    assert isinstance(fold, ScheduledFold), "the id is an occurrence's"
    fold.stands(state)
    trail = fold.trail
    if not trail.live and trail.end is None and may_be_skipped(trail):
        for first, last, kind, reason, at in json.loads(rows.get(SKIPS + of.schedule_id.encode()) or b"[]"):
            if kind == "g" and first <= of.nominal_at <= last:
                note_skipped(trail, state, of.nominal_at, reason, at)
    return trail
