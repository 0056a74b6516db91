"""Made by tools/generate_codec.py from schemas/run.avsc: do not edit, run it again.

Of a Run framed in single-object encoding: `write`, `read` (strict, to the last byte), `peek` (the leading fields),
and `fixed` with `assemble`, which write many runs that differ in little.
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_bytes, read_instant, read_int, read_length, read_map, write_bytes,
    write_int, write_long, write_map, write_string,
)
from pipeline.core.job import Run

FRAME = bytes.fromhex("c3015d9bdd4106dfd3ff")
FINGERPRINT = "ffd3df0641dd9b5d"

_new = object.__new__
_tuple = tuple.__new__
# Through the descriptors of its slots: the __init__ of a frozen dataclass calls object.__setattr__ for each
# field, which would take a third of the time of reading a Run.
_slots: Any = Run
_set_job_id = _slots.job_id.__set__
_set_occurrence_id = _slots.occurrence_id.__set__
_set_due_at = _slots.due_at.__set__
_set_run = _slots.run.__set__
_set_queue = _slots.queue.__set__
_set_handler = _slots.handler.__set__
_set_created_at = _slots.created_at.__set__
_set_serial = _slots.serial.__set__
_set_nominal_at = _slots.nominal_at.__set__
_set_idempotency_key = _slots.idempotency_key.__set__
_set_schedule_id = _slots.schedule_id.__set__
_set_key = _slots.key.__set__
_set_failures = _slots.failures.__set__
_set_attempt_limit = _slots.attempt_limit.__set__
_set_timeout_ms = _slots.timeout_ms.__set__
_set_labels = _slots.labels.__set__
_set_headers = _slots.headers.__set__
_set_payload = _slots.payload.__set__


class RunHead(NamedTuple):
    """The leading fields of a Run: all that is needed to file it in the index."""

    job_id: str
    occurrence_id: str
    due_at: int
    run: int
    queue: str
    handler: str
    created_at: int
    serial: str | None


def peek(data: bytes, at: int) -> RunHead:
    begin_job_id = at
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    job_id = data[at:end].decode()
    at = end
    raw_job_id = data[begin_job_id:at]
    size_job_id = at - begin_job_id
    if data[at:at + size_job_id] == raw_job_id:
        occurrence_id = job_id
        at += size_job_id
    else:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        occurrence_id = data[at:end].decode()
        at = end
    due_at, at = read_instant(data, at)
    n = data[at]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        at += 1
    else:
        run, at = read_int(data, at)
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    queue = data[at:end].decode()
    at = end
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    handler = data[at:end].decode()
    at = end
    created_at, at = read_instant(data, at)
    serial: str | None
    n = data[at]
    at += 1
    if n == 0:
        serial = None
    elif n == 2:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        serial = data[at:end].decode()
        at = end
    else:
        raise Malformed("no such branch of the union")
    if at > len(data):
        raise Malformed("truncated")
    return _tuple(RunHead, (job_id, occurrence_id, due_at, run, queue, handler, created_at, serial))


def read(data: bytes, at: int) -> Run:
    begin_job_id = at
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    job_id = data[at:end].decode()
    at = end
    raw_job_id = data[begin_job_id:at]
    size_job_id = at - begin_job_id
    if data[at:at + size_job_id] == raw_job_id:
        occurrence_id = job_id
        at += size_job_id
    else:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        occurrence_id = data[at:end].decode()
        at = end
    due_at, at = read_instant(data, at)
    n = data[at]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        at += 1
    else:
        run, at = read_int(data, at)
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    queue = data[at:end].decode()
    at = end
    n = data[at]
    if n & 129:
        n, at = read_length(data, at)
        end = at + n
    else:
        at += 1
        end = at + (n >> 1)
    handler = data[at:end].decode()
    at = end
    created_at, at = read_instant(data, at)
    serial: str | None
    n = data[at]
    at += 1
    if n == 0:
        serial = None
    elif n == 2:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        serial = data[at:end].decode()
        at = end
    else:
        raise Malformed("no such branch of the union")
    nominal_at, at = read_instant(data, at)
    if data[at:at + size_job_id] == raw_job_id:
        idempotency_key = job_id
        at += size_job_id
    else:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        idempotency_key = data[at:end].decode()
        at = end
    schedule_id: str | None
    n = data[at]
    at += 1
    if n == 0:
        schedule_id = None
    elif n == 2:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        schedule_id = data[at:end].decode()
        at = end
    else:
        raise Malformed("no such branch of the union")
    key: str | None
    n = data[at]
    at += 1
    if n == 0:
        key = None
    elif n == 2:
        n = data[at]
        if n & 129:
            n, at = read_length(data, at)
            end = at + n
        else:
            at += 1
            end = at + (n >> 1)
        key = data[at:end].decode()
        at = end
    else:
        raise Malformed("no such branch of the union")
    n = data[at]
    if n < 128:
        failures = (n >> 1) ^ -(n & 1)
        at += 1
    else:
        failures, at = read_int(data, at)
    attempt_limit: int | None
    n = data[at]
    at += 1
    if n == 0:
        attempt_limit = None
    elif n == 2:
        n = data[at]
        if n < 128:
            attempt_limit = (n >> 1) ^ -(n & 1)
            at += 1
        else:
            attempt_limit, at = read_int(data, at)
    else:
        raise Malformed("no such branch of the union")
    timeout_ms: int | None
    n = data[at]
    at += 1
    if n == 0:
        timeout_ms = None
    elif n == 2:
        timeout_ms, at = read_instant(data, at)
    else:
        raise Malformed("no such branch of the union")
    if data[at]:
        labels, at = read_map(data, at)
    else:
        labels = {}
        at += 1
    if data[at]:
        headers, at = read_map(data, at)
    else:
        headers = {}
        at += 1
    payload, at = read_bytes(data, at)
    if at != len(data):
        raise Malformed("truncated" if at > len(data) else "trailing bytes")
    value = _new(Run)
    _set_job_id(value, job_id)
    _set_occurrence_id(value, occurrence_id)
    _set_due_at(value, due_at)
    _set_run(value, run)
    _set_queue(value, queue)
    _set_handler(value, handler)
    _set_created_at(value, created_at)
    _set_serial(value, serial)
    _set_nominal_at(value, nominal_at)
    _set_idempotency_key(value, idempotency_key)
    _set_schedule_id(value, schedule_id)
    _set_key(value, key)
    _set_failures(value, failures)
    _set_attempt_limit(value, attempt_limit)
    _set_timeout_ms(value, timeout_ms)
    _set_labels(value, labels)
    _set_headers(value, headers)
    _set_payload(value, payload)
    return value


def write(value: Run) -> bytes:
    return b"".join((
        FRAME,
        write_string(value.job_id),
        write_string(value.occurrence_id),
        write_long(value.due_at, 'due_at'),
        write_int(value.run, 'run'),
        write_string(value.queue),
        write_string(value.handler),
        write_long(value.created_at, 'created_at'),
        NULL if value.serial is None else SOME + write_string(value.serial),
        write_long(value.nominal_at, 'nominal_at'),
        write_string(value.idempotency_key),
        NULL if value.schedule_id is None else SOME + write_string(value.schedule_id),
        NULL if value.key is None else SOME + write_string(value.key),
        write_int(value.failures, 'failures'),
        NULL if value.attempt_limit is None else SOME + write_int(value.attempt_limit, 'attempt_limit'),
        NULL if value.timeout_ms is None else SOME + write_long(value.timeout_ms, 'timeout_ms'),
        write_map(value.labels),
        write_map(value.headers),
        write_bytes(value.payload),
    ))


Fixed = tuple[bytes, bytes]


def fixed(value: Run) -> Fixed:
    """The bytes of the fields that runs created alike have in common, for `assemble`."""
    return (
        write_int(value.run, 'run') + write_string(value.queue) + write_string(value.handler),
        (NULL if value.schedule_id is None else SOME + write_string(value.schedule_id)) + (NULL if value.key is None else SOME + write_string(value.key)) + write_int(value.failures, 'failures') + (NULL if value.attempt_limit is None else SOME + write_int(value.attempt_limit, 'attempt_limit')) + (NULL if value.timeout_ms is None else SOME + write_long(value.timeout_ms, 'timeout_ms')),
    )


def assemble(
    fixed: Fixed, job_id: bytes, occurrence_id: bytes, due_at: bytes, created_at: bytes, serial: bytes, nominal_at: bytes, idempotency_key: bytes, labels: bytes, headers: bytes, payload: bytes,
) -> bytes:
    """A Run of its encoded fields."""
    return b"".join((FRAME, job_id, occurrence_id, due_at, fixed[0], created_at, serial, nominal_at, idempotency_key, fixed[1], labels, headers, payload))
