"""What did not fire: jobs and occurrences that are due and still pending, and occurrences that a policy skipped.

Both are told by the home partitions: the records that still stand on `jobs`, and the skips on `events`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline import codec
from pipeline.codec.registry import Codec
from pipeline.core import keys
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.ids import due_in, schedule_occurrence
from pipeline.core.job import Event
from pipeline.core.schedule import Schedule, ScheduleSpec, timing_spec
from pipeline.core.timing import Timing, timing_of
from pipeline.ports import Record
from pipeline.survey.ground import Ground
from pipeline.survey.heads import NOBODYS, Head, Sight, read_run, sight_of
from pipeline.survey.seen import Seen, State
from pipeline.survey.spill import Row, Spill
from pipeline.survey.window import Filter, Window

EARLIER_MS = 60_000
_CHANGED = b"a/"
_DIGITS = 16


class Skips(NamedTuple):
    """A stretch of instants that a schedule left out."""

    schedule_id: str
    incarnation: int
    kind: str
    reason: str
    first: int
    last: int
    times: int


def unfired(ground: Ground, window: Window, wanted: Filter) -> Iterator[Seen]:
    """The wanted occurrences of the window that are pending or were skipped, home by home. Reads all of `jobs`."""
    pending, skipped = wanted.wants(State.PENDING), wanted.wants(State.SKIPPED)
    for home in range(ground.layout.partitions if pending or skipped else 0):
        schedules: dict[str, Schedule] = {}
        yield from _jobs(ground, home, window, wanted, schedules)
        owed = (each for state in schedules.values() for each in to_decide(state, window, wanted))
        undecided = {seen.occurrence_id: seen for seen in owed} if pending else {}
        if skipped:
            for seen in _skipped(ground, home, window, wanted, schedules):
                undecided.pop(seen.occurrence_id, None)  # it was decided after its schedule was read
                yield seen
        yield from undecided.values()


# -- pending jobs -------------------------------------------------------------------------------------------


def _jobs(
    ground: Ground, home: int, window: Window, wanted: Filter, schedules: dict[str, Schedule]
) -> Iterator[Seen]:
    """Pending jobs of the window; the schedules that the partition holds are left in `schedules`."""
    span = ground.scan.span(ground.names.jobs, home)
    pending = wanted.wants(State.PENDING)
    with Spill(span.end - span.start) as spill:
        elsewhere: set[bytes] = set()
        for batch in ground.scan.batches(ground.names.jobs, home, span.start, span.end):
            for record in batch:
                key = record.key() or b""
                if key.startswith(keys.SCHEDULE):
                    note_schedule(ground, schedules, key, record.value())
                elif pending and (row := row_of(ground, key, record.value(), window, elsewhere)) is not None:
                    spill.add((row,))
        for group in spill.groups():
            for _, occurrence, sight in {row[0]: row for row in group}.values():
                if sight is not None and _matches(sight[-1], wanted):
                    yield _pending(occurrence, Sight(*sight))


def row_of(
    ground: Ground, key: bytes, value: bytes | None, window: Window, elsewhere: set[bytes]
) -> Row | None:
    """(record key, occurrence, what is to run, or None: nothing any more); None: it is of no concern. `elsewhere`: jobs
    of the window by their records, though not by their ids, whose tombstones have to be noted too."""
    kind = key[:2]
    if kind not in (keys.JOB, _CHANGED, keys.KEYED):
        return None
    plain = kind == keys.JOB and _due_in(key) in window
    if value is None:
        return (key, b"", None) if plain or kind != keys.JOB or key in elsewhere else None
    occurrence, sight = _to_run(key, value)
    if sight is None and ground.is_newer(_codec_of(key), value, ground.names.jobs):
        return None
    if sight is not None and sight.due_at in window:
        if kind == keys.JOB and not plain:
            elsewhere.add(key)
        return key, occurrence, tuple(sight)
    return (key, b"", None) if plain or kind != keys.JOB or key in elsewhere else None


def _due_in(key: bytes) -> int:
    try:
        return due_in(key[2:])
    except Undecodable:
        return -1


def _to_run(key: bytes, value: bytes) -> tuple[bytes, Sight | None]:
    """The occurrence that a record is of, and its run to come; None: there is none, or nobody can read it."""
    if not key.startswith(keys.KEYED):
        return key[2:], read_run(key[2:], value)
    try:
        run = codec.KEY_STATE.decode(value).run
    except Undecodable:
        run = None
    return (b"", None) if run is None else (run.occurrence_id.encode(), sight_of(run))


def _codec_of(key: bytes) -> Codec[Any]:
    return codec.KEY_STATE if key.startswith(keys.KEYED) else codec.RUN


def _matches(head: Head, wanted: Filter) -> bool:
    handler, queue, schedule_id, key, labels = head
    return wanted.queue in (None, queue) and wanted.matches_head(handler, schedule_id, key, labels)


def _pending(occurrence: bytes, sight: Sight) -> Seen:
    job_id, _, due_at, nominal_at, size, head = sight
    return _unfired(occurrence.decode(), job_id.decode(), head, due_at, nominal_at, State.PENDING, size)


def _unfired(
    id_: str,
    job_id: str,
    head: Head,
    due_at: int,
    nominal_at: int,
    state: State,
    size: int,
    reason: str = "",
    times: int = 1,
) -> Seen:
    handler, queue, schedule_id, key, labels = head
    return Seen(
        id_, job_id, handler, queue, schedule_id, key, labels, due_at, nominal_at, None, 0, state, -1, -1, size,
        reason, times,
    )  # fmt: skip


# -- schedules ----------------------------------------------------------------------------------------------


def note_schedule(ground: Ground, schedules: dict[str, Schedule], key: bytes, value: bytes | None) -> None:
    id_ = key[2:].decode("utf-8", "replace")
    schedules.pop(id_, None)
    try:
        state = None if value is None else codec.SCHEDULE.decode(value)
    except Undecodable:
        ground.is_newer(codec.SCHEDULE, value or b"", ground.names.jobs)
        return
    if state is not None:
        schedules[id_] = state


def to_decide(state: Schedule, window: Window, wanted: Filter) -> Iterator[Seen]:
    """Instants that the owner of a schedule has not decided yet, and those that wait behind an open run."""
    head = _head_of(state.spec)
    if not _matches(head, wanted):
        return
    for nominal in state.buffer:
        if nominal in window:
            yield _instant(state, head, nominal, nominal)
    if state.ended or state.paused is not None or state.next_nominal is None:
        return
    timing, nominal = _timing(state.spec), state.next_nominal
    if timing is None or state.spec.after_ms is not None:
        due_at = state.next_due or nominal
        if due_at in window:
            yield _instant(state, head, nominal, due_at)
        return
    following: int | None = nominal
    while following is not None and following < window.to_ms:
        due_at = timing.due_of(following)
        if due_at in window:
            yield _instant(state, head, following, due_at)
        following = timing.next_after(following)


def _instant(state: Schedule, head: Head, nominal: int, due_at: int) -> Seen:
    id_ = schedule_occurrence(state.spec.id, state.incarnation, "g", "", nominal)
    return _unfired(id_, id_, head, due_at, nominal, State.PENDING, len(state.spec.payload))


def _head_of(spec: ScheduleSpec) -> Head:
    return spec.handler, spec.queue, spec.id, None, dict(spec.labels)


def _timing(spec: ScheduleSpec) -> Timing | None:
    try:
        return timing_of(timing_spec(spec))
    except InvalidInput:
        return None


def _skipped(
    ground: Ground, home: int, window: Window, wanted: Filter, schedules: Mapping[str, Schedule]
) -> Iterator[Seen]:
    span = ground.scan.span(ground.names.events, home, window.from_ms - EARLIER_MS)
    for batch in ground.scan.batches(ground.names.events, home, span.start, span.end):
        for record in batch:
            skips = _read_skips(ground, record)
            if skips is not None:
                yield from _instants(skips, window, wanted, schedules.get(skips.schedule_id))


def _read_skips(ground: Ground, record: Record) -> Skips | None:
    value = record.value()
    try:
        event = None if value is None else codec.EVENT.decode(value)
    except Undecodable:
        ground.is_newer(codec.EVENT, value or b"", ground.names.events)
        return None
    if event is None or event.kind != "skipped":
        return None
    numbers = [_number(event, name) for name in ("incarnation", "first", "last", "count")]
    if min(numbers) < 0 or not event.detail.get("schedule"):
        return None
    incarnation, first, last, count = numbers
    detail = event.detail
    return Skips(
        detail["schedule"], incarnation, detail.get("kind", "g"), event.reason or "", first, last, count
    )


def _number(event: Event, name: str) -> int:
    """Of an event's detail; -1 if it is none: whoever may append can say anything."""
    text = event.detail.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else -1


def _instants(skips: Skips, window: Window, wanted: Filter, state: Schedule | None) -> Iterator[Seen]:
    """The skipped instants one by one where the schedule still tells them; else all of them at the first."""
    head: Head = (*NOBODYS[:2], skips.schedule_id, *NOBODYS[3:]) if state is None else _head_of(state.spec)
    if not _matches(head, wanted):
        return
    instants = _told_apart(skips, state)
    times = 1 if instants else skips.times
    for nominal in instants or [skips.first]:
        if nominal in window:
            id_ = f"s:{skips.schedule_id}:{skips.incarnation}:{skips.kind}::{nominal}"
            yield _unfired(id_, id_, head, nominal, nominal, State.SKIPPED, 0, skips.reason, times)


def _told_apart(skips: Skips, state: Schedule | None) -> list[int]:
    """Empty: nobody knows them any more."""
    if skips.times == 1:
        return [skips.first]
    timing = None if state is None or skips.kind != "g" else _timing(state.spec)
    if timing is None or timing.count(skips.first - 1, skips.last) != skips.times:
        return []
    return timing.upcoming(skips.first - 1, skips.times)
