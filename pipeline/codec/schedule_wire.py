"""Made by tools/generate_codec.py from schemas/schedule.avsc: do not edit, run it again.

Of a Schedule framed in single-object encoding: `write`, `read` (strict, to the last byte), and `places`, where some
of its fields stand.
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_array, read_boolean, read_bytes, read_instant, read_int, read_length,
    read_lists, read_longs, read_map, read_numbers, write_array, write_boolean, write_bytes, write_int,
    write_lists, write_long, write_longs, write_map, write_numbers, write_string,
)
from pipeline.core.schedule import Backfill, OpenRun, Recent, Schedule, ScheduleSpec

FRAME = bytes.fromhex("c301c40fffce0c176cb8")
FINGERPRINT = "b86c170cceff0fc4"

# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
_Schedule: Any = Schedule


class _ScheduleDraft:
    __slots__ = _Schedule.__slots__


_ScheduleSpec: Any = ScheduleSpec


class _ScheduleSpecDraft:
    __slots__ = _ScheduleSpec.__slots__


_OpenRun: Any = OpenRun


class _OpenRunDraft:
    __slots__ = _OpenRun.__slots__


_Backfill: Any = Backfill


class _BackfillDraft:
    __slots__ = _Backfill.__slots__


_Recent: Any = Recent


class _RecentDraft:
    __slots__ = _Recent.__slots__


def read_schedulespec(data: bytes, pos: int) -> tuple[ScheduleSpec, int]:
    cron: str | None
    every_ms: int | None
    after_ms: int | None
    exclude: dict[str, tuple[str, ...]]
    start_at: int | None
    end_at: int | None
    max_occurrences: int | None
    catch_up_ms: int | None
    pause_after: int | None
    attempt_limit: int | None
    timeout_ms: int | None
    serial: str | None
    labels: dict[str, str]
    headers: dict[str, str]
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    id = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    handler = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    queue = data[pos:end].decode()
    pos = end
    payload, pos = read_bytes(data, pos)
    if data[pos:pos + 3] == b"\0\0\0":
        cron = None
        every_ms = None
        after_ms = None
        pos += 3
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            cron = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            cron = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            every_ms = None
        elif n == 2:
            every_ms, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            after_ms = None
        elif n == 2:
            after_ms, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
    phase_ms, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    tz = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    dst_gap = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    dst_overlap = data[pos:end].decode()
    pos = end
    if data[pos:pos + 4] == b"\0\0\0\0":
        exclude = {}
        start_at = None
        end_at = None
        max_occurrences = None
        pos += 4
    else:
        exclude, pos = read_lists(data, pos)
        n = data[pos]
        pos += 1
        if n == 0:
            start_at = None
        elif n == 2:
            start_at, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            end_at = None
        elif n == 2:
            end_at, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            max_occurrences = None
        elif n == 2:
            max_occurrences, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
    jitter_ms, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    misfire = data[pos:end].decode()
    pos = end
    n = data[pos]
    pos += 1
    if n == 0:
        catch_up_ms = None
    elif n == 2:
        catch_up_ms, pos = read_instant(data, pos)
    else:
        raise Malformed("no such branch of the union")
    misfire_threshold_ms, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    overlap = data[pos:end].decode()
    pos = end
    overlap_timeout_ms, pos = read_instant(data, pos)
    if data[pos:pos + 6] == b"\0\0\0\0\0\0":
        pause_after = None
        attempt_limit = None
        timeout_ms = None
        serial = None
        labels = {}
        headers = {}
        pos += 6
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            pause_after = None
        elif n == 2:
            n = data[pos]
            if n < 128:
                pause_after = (n >> 1) ^ -(n & 1)
                pos += 1
            else:
                pause_after, pos = read_int(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            attempt_limit = None
        elif n == 2:
            n = data[pos]
            if n < 128:
                attempt_limit = (n >> 1) ^ -(n & 1)
                pos += 1
            else:
                attempt_limit, pos = read_int(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            timeout_ms = None
        elif n == 2:
            timeout_ms, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            serial = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            serial = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        if data[pos]:
            labels, pos = read_map(data, pos)
        else:
            labels = {}
            pos += 1
        if data[pos]:
            headers, pos = read_map(data, pos)
        else:
            headers = {}
            pos += 1
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    source = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    version = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    note = data[pos:end].decode()
    pos = end
    value: Any = _ScheduleSpecDraft()
    value.id = id
    value.handler = handler
    value.queue = queue
    value.payload = payload
    value.cron = cron
    value.every_ms = every_ms
    value.after_ms = after_ms
    value.phase_ms = phase_ms
    value.tz = tz
    value.dst_gap = dst_gap
    value.dst_overlap = dst_overlap
    value.exclude = exclude
    value.start_at = start_at
    value.end_at = end_at
    value.max_occurrences = max_occurrences
    value.jitter_ms = jitter_ms
    value.misfire = misfire
    value.catch_up_ms = catch_up_ms
    value.misfire_threshold_ms = misfire_threshold_ms
    value.overlap = overlap
    value.overlap_timeout_ms = overlap_timeout_ms
    value.pause_after = pause_after
    value.attempt_limit = attempt_limit
    value.timeout_ms = timeout_ms
    value.serial = serial
    value.labels = labels
    value.headers = headers
    value.source = source
    value.version = version
    value.note = note
    value.__class__ = ScheduleSpec
    return value, pos


def write_schedulespec(value: ScheduleSpec) -> bytes:
    return b"".join((
        write_string(value.id, 'id'),
        write_string(value.handler, 'handler'),
        write_string(value.queue, 'queue'),
        write_bytes(value.payload),
        NULL if value.cron is None else SOME + write_string(value.cron, 'cron'),
        NULL if value.every_ms is None else SOME + write_long(value.every_ms, 'every_ms'),
        NULL if value.after_ms is None else SOME + write_long(value.after_ms, 'after_ms'),
        write_long(value.phase_ms, 'phase_ms'),
        write_string(value.tz, 'tz'),
        write_string(value.dst_gap, 'dst_gap'),
        write_string(value.dst_overlap, 'dst_overlap'),
        write_lists(value.exclude, 'exclude'),
        NULL if value.start_at is None else SOME + write_long(value.start_at, 'start_at'),
        NULL if value.end_at is None else SOME + write_long(value.end_at, 'end_at'),
        NULL if value.max_occurrences is None else SOME + write_long(value.max_occurrences, 'max_occurrences'),
        write_long(value.jitter_ms, 'jitter_ms'),
        write_string(value.misfire, 'misfire'),
        NULL if value.catch_up_ms is None else SOME + write_long(value.catch_up_ms, 'catch_up_ms'),
        write_long(value.misfire_threshold_ms, 'misfire_threshold_ms'),
        write_string(value.overlap, 'overlap'),
        write_long(value.overlap_timeout_ms, 'overlap_timeout_ms'),
        NULL if value.pause_after is None else SOME + write_int(value.pause_after, 'pause_after'),
        NULL if value.attempt_limit is None else SOME + write_int(value.attempt_limit, 'attempt_limit'),
        NULL if value.timeout_ms is None else SOME + write_long(value.timeout_ms, 'timeout_ms'),
        NULL if value.serial is None else SOME + write_string(value.serial, 'serial'),
        write_map(value.labels, 'labels'),
        write_map(value.headers, 'headers'),
        write_string(value.source, 'source'),
        write_string(value.version, 'version'),
        write_string(value.note, 'note'),
    ))


def read_openrun(data: bytes, pos: int) -> tuple[OpenRun, int]:
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    occurrence_id = data[pos:end].decode()
    pos = end
    nominal_at, pos = read_instant(data, pos)
    emitted_at, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    place = data[pos:end].decode()
    pos = end
    value: Any = _OpenRunDraft()
    value.occurrence_id = occurrence_id
    value.nominal_at = nominal_at
    value.emitted_at = emitted_at
    value.place = place
    value.__class__ = OpenRun
    return value, pos


def write_openrun(value: OpenRun) -> bytes:
    return b"".join((
        write_string(value.occurrence_id, 'occurrence_id'),
        write_long(value.nominal_at, 'nominal_at'),
        write_long(value.emitted_at, 'emitted_at'),
        write_string(value.place, 'place'),
    ))


def read_backfill(data: bytes, pos: int) -> tuple[Backfill, int]:
    cursor: int | None
    rate: int | None
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    id = data[pos:end].decode()
    pos = end
    from_at, pos = read_instant(data, pos)
    to_at, pos = read_instant(data, pos)
    n = data[pos]
    pos += 1
    if n == 0:
        cursor = None
    elif n == 2:
        cursor, pos = read_instant(data, pos)
    else:
        raise Malformed("no such branch of the union")
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    overlap = data[pos:end].decode()
    pos = end
    n = data[pos]
    pos += 1
    if n == 0:
        rate = None
    elif n == 2:
        n = data[pos]
        if n < 128:
            rate = (n >> 1) ^ -(n & 1)
            pos += 1
        else:
            rate, pos = read_int(data, pos)
    else:
        raise Malformed("no such branch of the union")
    reverse, pos = read_boolean(data, pos)
    fired, pos = read_instant(data, pos)
    total, pos = read_instant(data, pos)
    next_at, pos = read_instant(data, pos)
    value: Any = _BackfillDraft()
    value.id = id
    value.from_at = from_at
    value.to_at = to_at
    value.cursor = cursor
    value.overlap = overlap
    value.rate = rate
    value.reverse = reverse
    value.fired = fired
    value.total = total
    value.next_at = next_at
    value.__class__ = Backfill
    return value, pos


def write_backfill(value: Backfill) -> bytes:
    return b"".join((
        write_string(value.id, 'id'),
        write_long(value.from_at, 'from_at'),
        write_long(value.to_at, 'to_at'),
        NULL if value.cursor is None else SOME + write_long(value.cursor, 'cursor'),
        write_string(value.overlap, 'overlap'),
        NULL if value.rate is None else SOME + write_int(value.rate, 'rate'),
        write_boolean(value.reverse),
        write_long(value.fired, 'fired'),
        write_long(value.total, 'total'),
        write_long(value.next_at, 'next_at'),
    ))


def read_recent(data: bytes, pos: int) -> tuple[Recent, int]:
    nominal_at, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    kind = data[pos:end].decode()
    pos = end
    at, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    outcome = data[pos:end].decode()
    pos = end
    value: Any = _RecentDraft()
    value.nominal_at = nominal_at
    value.kind = kind
    value.at = at
    value.outcome = outcome
    value.__class__ = Recent
    return value, pos


def write_recent(value: Recent) -> bytes:
    return b"".join((
        write_long(value.nominal_at, 'nominal_at'),
        write_string(value.kind, 'kind'),
        write_long(value.at, 'at'),
        write_string(value.outcome, 'outcome'),
    ))


class Places(NamedTuple):
    """Where these fields begin."""

    id: int
    handler: int
    queue: int
    payload: int
    cron: int
    overlap_timeout_ms: int
    attempt_limit: int
    serial: int
    labels: int
    source: int
    last_nominal: int
    paused: int


def places(data: bytes, pos: int) -> Places:
    """Of a Schedule that `read` has taken before: nothing is checked a second time."""
    while data[pos] > 127:
        pos += 1
    pos += 1
    while data[pos] > 127:
        pos += 1
    pos += 1
    at_id = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    at_handler = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    at_queue = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    at_payload = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    at_cron = pos
    pos += 1
    if data[pos - 1]:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            pos += n
        else:
            pos += 1 + (n >> 1)
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    while data[pos] > 127:
        pos += 1
    pos += 1
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    if data[pos]:
        pos = read_lists(data, pos)[1]
    else:
        pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    while data[pos] > 127:
        pos += 1
    pos += 1
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    while data[pos] > 127:
        pos += 1
    pos += 1
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    at_overlap_timeout_ms = pos
    while data[pos] > 127:
        pos += 1
    pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    at_attempt_limit = pos
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    pos += 1
    if data[pos - 1]:
        while data[pos] > 127:
            pos += 1
        pos += 1
    at_serial = pos
    pos += 1
    if data[pos - 1]:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            pos += n
        else:
            pos += 1 + (n >> 1)
    at_labels = pos
    if data[pos]:
        pos = read_map(data, pos)[1]
    else:
        pos += 1
    if data[pos]:
        pos = read_map(data, pos)[1]
    else:
        pos += 1
    at_source = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        pos += n
    else:
        pos += 1 + (n >> 1)
    while data[pos] > 127:
        pos += 1
    pos += 1
    while data[pos] > 127:
        pos += 1
    pos += 1
    at_last_nominal = pos
    while data[pos] > 127:
        pos += 1
    pos += 1
    return tuple.__new__(Places, (at_id, at_handler, at_queue, at_payload, at_cron, at_overlap_timeout_ms, at_attempt_limit, at_serial, at_labels, at_source, at_last_nominal, pos))


def read(data: bytes, pos: int) -> Schedule:
    paused: str | None
    paused_at: int | None
    next_nominal: int | None
    next_due: int | None
    kept_until: int | None
    open: tuple[OpenRun, ...]
    buffer: tuple[int, ...]
    backfills: tuple[Backfill, ...]
    recent: tuple[Recent, ...]
    counts: dict[str, int]
    last_success_at: int | None
    incarnation, pos = read_instant(data, pos)
    n = data[pos]
    if n < 128:
        revision = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        revision, pos = read_int(data, pos)
    spec, pos = read_schedulespec(data, pos)
    created_at, pos = read_instant(data, pos)
    changed_at, pos = read_instant(data, pos)
    last_nominal, pos = read_instant(data, pos)
    n = data[pos]
    pos += 1
    if n == 0:
        paused = None
    elif n == 2:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            end = pos + n
        else:
            pos += 1
            end = pos + (n >> 1)
        paused = data[pos:end].decode()
        pos = end
    else:
        raise Malformed("no such branch of the union")
    n = data[pos]
    pos += 1
    if n == 0:
        paused_at = None
    elif n == 2:
        paused_at, pos = read_instant(data, pos)
    else:
        raise Malformed("no such branch of the union")
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    ended = data[pos:end].decode()
    pos = end
    if data[pos:pos + 10] == b"\0\0\0\0\0\0\0\0\0\0":
        next_nominal = None
        next_due = None
        kept_until = None
        open = ()
        buffer = ()
        backfills = ()
        recent = ()
        counts = {}
        failures_in_row = 0
        last_success_at = None
        pos += 10
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            next_nominal = None
        elif n == 2:
            next_nominal, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            next_due = None
        elif n == 2:
            next_due, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            kept_until = None
        elif n == 2:
            kept_until, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
        if data[pos]:
            open, pos = read_array(data, pos, read_openrun)
        else:
            open = ()
            pos += 1
        buffer, pos = read_longs(data, pos)
        if data[pos]:
            backfills, pos = read_array(data, pos, read_backfill)
        else:
            backfills = ()
            pos += 1
        if data[pos]:
            recent, pos = read_array(data, pos, read_recent)
        else:
            recent = ()
            pos += 1
        counts, pos = read_numbers(data, pos)
        n = data[pos]
        if n < 128:
            failures_in_row = (n >> 1) ^ -(n & 1)
            pos += 1
        else:
            failures_in_row, pos = read_int(data, pos)
        n = data[pos]
        pos += 1
        if n == 0:
            last_success_at = None
        elif n == 2:
            last_success_at, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    zone_data = data[pos:end].decode()
    pos = end
    if pos != len(data):
        raise Malformed("truncated" if pos > len(data) else "trailing bytes")
    value: Any = _ScheduleDraft()
    value.incarnation = incarnation
    value.revision = revision
    value.spec = spec
    value.created_at = created_at
    value.changed_at = changed_at
    value.last_nominal = last_nominal
    value.paused = paused
    value.paused_at = paused_at
    value.ended = ended
    value.next_nominal = next_nominal
    value.next_due = next_due
    value.kept_until = kept_until
    value.open = open
    value.buffer = buffer
    value.backfills = backfills
    value.recent = recent
    value.counts = counts
    value.failures_in_row = failures_in_row
    value.last_success_at = last_success_at
    value.zone_data = zone_data
    value.__class__ = Schedule
    built: Schedule = value
    return built


def write(value: Schedule) -> bytes:
    return b"".join((
        FRAME,
        write_long(value.incarnation, 'incarnation'),
        write_int(value.revision, 'revision'),
        write_schedulespec(value.spec),
        write_long(value.created_at, 'created_at'),
        write_long(value.changed_at, 'changed_at'),
        write_long(value.last_nominal, 'last_nominal'),
        NULL if value.paused is None else SOME + write_string(value.paused, 'paused'),
        NULL if value.paused_at is None else SOME + write_long(value.paused_at, 'paused_at'),
        write_string(value.ended, 'ended'),
        NULL if value.next_nominal is None else SOME + write_long(value.next_nominal, 'next_nominal'),
        NULL if value.next_due is None else SOME + write_long(value.next_due, 'next_due'),
        NULL if value.kept_until is None else SOME + write_long(value.kept_until, 'kept_until'),
        write_array(value.open, write_openrun) if value.open else NULL,
        write_longs(value.buffer, 'buffer'),
        write_array(value.backfills, write_backfill) if value.backfills else NULL,
        write_array(value.recent, write_recent) if value.recent else NULL,
        write_numbers(value.counts, 'counts'),
        write_int(value.failures_in_row, 'failures_in_row'),
        NULL if value.last_success_at is None else SOME + write_long(value.last_success_at, 'last_success_at'),
        write_string(value.zone_data, 'zone_data'),
    ))
