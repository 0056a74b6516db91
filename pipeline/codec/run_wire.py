"""Made by tools/generate_codec.py from schemas/run.avsc: do not edit, run it again.

Of a Run framed in single-object encoding: `write`, `read` (strict, to the last byte), `peek` (the leading fields),
and `fixed` with `assemble`, which write many runs that differ in little.
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_array, read_bytes, read_instant, read_int, read_length, read_map, write_array,
    write_bytes, write_int, write_long, write_map, write_string,
)
from pipeline.core.job import AttemptRecord, Failure, Run

FRAME = bytes.fromhex("c301ce6df4272a03ef88")
FINGERPRINT = "88ef032a27f46dce"
OLDER: dict[bytes, tuple[str, ...]] = {
    bytes.fromhex("c3015d9bdd4106dfd3ff"): ('history', 'last_success_at'),
    bytes.fromhex("c301de3dbac7672702d3"): ('last_success_at',),
}
"""By the frames of older versions: the fields put behind theirs since, each one zero byte when empty."""

# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
_Run: Any = Run


class _RunDraft:
    __slots__ = _Run.__slots__


_Failure: Any = Failure


class _FailureDraft:
    __slots__ = _Failure.__slots__


_AttemptRecord: Any = AttemptRecord


class _AttemptRecordDraft:
    __slots__ = _AttemptRecord.__slots__


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


def peek(data: bytes, pos: int) -> RunHead:
    serial: str | None
    begin_job_id = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    job_id = data[pos:end].decode()
    pos = end
    raw_job_id = data[begin_job_id:pos]
    size_job_id = pos - begin_job_id
    if data[pos:pos + size_job_id] == raw_job_id:
        occurrence_id = job_id
        pos += size_job_id
    else:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            end = pos + n
        else:
            pos += 1
            end = pos + (n >> 1)
        occurrence_id = data[pos:end].decode()
        pos = end
    due_at, pos = read_instant(data, pos)
    n = data[pos]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        run, pos = read_int(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    queue = data[pos:end].decode()
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
    created_at, pos = read_instant(data, pos)
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
    if pos > len(data):
        raise Malformed("truncated")
    return tuple.__new__(RunHead, (job_id, occurrence_id, due_at, run, queue, handler, created_at, serial))


def read_failure(data: bytes, pos: int) -> tuple[Failure, int]:
    trace: str | None
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    type = data[pos:end].decode()
    pos = end
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    message = data[pos:end].decode()
    pos = end
    n = data[pos]
    pos += 1
    if n == 0:
        trace = None
    elif n == 2:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            end = pos + n
        else:
            pos += 1
            end = pos + (n >> 1)
        trace = data[pos:end].decode()
        pos = end
    else:
        raise Malformed("no such branch of the union")
    value: Any = _FailureDraft()
    value.type = type
    value.message = message
    value.trace = trace
    value.__class__ = Failure
    return value, pos


def write_failure(value: Failure) -> bytes:
    return b"".join((
        write_string(value.type, 'type'),
        write_string(value.message, 'message'),
        NULL if value.trace is None else SOME + write_string(value.trace, 'trace'),
    ))


def read_attemptrecord(data: bytes, pos: int) -> tuple[AttemptRecord, int]:
    error: Failure | None
    n = data[pos]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        run, pos = read_int(data, pos)
    n = data[pos]
    if n < 128:
        attempt = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        attempt, pos = read_int(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    worker = data[pos:end].decode()
    pos = end
    token, pos = read_instant(data, pos)
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
    n = data[pos]
    pos += 1
    if n == 0:
        error = None
    elif n == 2:
        error, pos = read_failure(data, pos)
    else:
        raise Malformed("no such branch of the union")
    value: Any = _AttemptRecordDraft()
    value.run = run
    value.attempt = attempt
    value.worker = worker
    value.token = token
    value.at = at
    value.outcome = outcome
    value.error = error
    value.__class__ = AttemptRecord
    return value, pos


def write_attemptrecord(value: AttemptRecord) -> bytes:
    return b"".join((
        write_int(value.run, 'run'),
        write_int(value.attempt, 'attempt'),
        write_string(value.worker, 'worker'),
        write_long(value.token, 'token'),
        write_long(value.at, 'at'),
        write_string(value.outcome, 'outcome'),
        NULL if value.error is None else SOME + write_failure(value.error),
    ))


def read(data: bytes, pos: int) -> Run:
    serial: str | None
    schedule_id: str | None
    key: str | None
    attempt_limit: int | None
    timeout_ms: int | None
    labels: dict[str, str]
    headers: dict[str, str]
    history: tuple[AttemptRecord, ...]
    last_success_at: int | None
    begin_job_id = pos
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    job_id = data[pos:end].decode()
    pos = end
    raw_job_id = data[begin_job_id:pos]
    size_job_id = pos - begin_job_id
    if data[pos:pos + size_job_id] == raw_job_id:
        occurrence_id = job_id
        pos += size_job_id
    else:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            end = pos + n
        else:
            pos += 1
            end = pos + (n >> 1)
        occurrence_id = data[pos:end].decode()
        pos = end
    begin_due_at = pos
    due_at, pos = read_instant(data, pos)
    raw_due_at = data[begin_due_at:pos]
    size_due_at = pos - begin_due_at
    n = data[pos]
    if n < 128:
        run = (n >> 1) ^ -(n & 1)
        pos += 1
    else:
        run, pos = read_int(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    queue = data[pos:end].decode()
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
    created_at, pos = read_instant(data, pos)
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
    if data[pos:pos + size_due_at] == raw_due_at:
        nominal_at = due_at
        pos += size_due_at
    else:
        nominal_at, pos = read_instant(data, pos)
    if data[pos:pos + size_job_id] == raw_job_id:
        idempotency_key = job_id
        pos += size_job_id
    else:
        n = data[pos]
        if n & 129:
            n, pos = read_length(data, pos)
            end = pos + n
        else:
            pos += 1
            end = pos + (n >> 1)
        idempotency_key = data[pos:end].decode()
        pos = end
    if data[pos:pos + 7] == b"\0\0\0\0\0\0\0":
        schedule_id = None
        key = None
        failures = 0
        attempt_limit = None
        timeout_ms = None
        labels = {}
        headers = {}
        pos += 7
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            schedule_id = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            schedule_id = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            key = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            key = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        if n < 128:
            failures = (n >> 1) ^ -(n & 1)
            pos += 1
        else:
            failures, pos = read_int(data, pos)
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
    payload, pos = read_bytes(data, pos)
    if data[pos]:
        history, pos = read_array(data, pos, read_attemptrecord)
    else:
        history = ()
        pos += 1
    n = data[pos]
    pos += 1
    if n == 0:
        last_success_at = None
    elif n == 2:
        last_success_at, pos = read_instant(data, pos)
    else:
        raise Malformed("no such branch of the union")
    if pos != len(data):
        raise Malformed("truncated" if pos > len(data) else "trailing bytes")
    value: Any = _RunDraft()
    value.job_id = job_id
    value.occurrence_id = occurrence_id
    value.due_at = due_at
    value.run = run
    value.queue = queue
    value.handler = handler
    value.created_at = created_at
    value.serial = serial
    value.nominal_at = nominal_at
    value.idempotency_key = idempotency_key
    value.schedule_id = schedule_id
    value.key = key
    value.failures = failures
    value.attempt_limit = attempt_limit
    value.timeout_ms = timeout_ms
    value.labels = labels
    value.headers = headers
    value.payload = payload
    value.history = history
    value.last_success_at = last_success_at
    value.__class__ = Run
    built: Run = value
    return built


def write(value: Run) -> bytes:
    return b"".join((
        FRAME,
        (of_job_id := write_string(value.job_id, 'job_id')),
        of_job_id if value.occurrence_id == value.job_id else write_string(value.occurrence_id, 'occurrence_id'),
        (of_due_at := write_long(value.due_at, 'due_at')),
        write_int(value.run, 'run'),
        write_string(value.queue, 'queue'),
        write_string(value.handler, 'handler'),
        write_long(value.created_at, 'created_at'),
        NULL if value.serial is None else SOME + write_string(value.serial, 'serial'),
        of_due_at if value.nominal_at == value.due_at else write_long(value.nominal_at, 'nominal_at'),
        of_job_id if value.idempotency_key == value.job_id else write_string(value.idempotency_key, 'idempotency_key'),
        NULL if value.schedule_id is None else SOME + write_string(value.schedule_id, 'schedule_id'),
        NULL if value.key is None else SOME + write_string(value.key, 'key'),
        write_int(value.failures, 'failures'),
        NULL if value.attempt_limit is None else SOME + write_int(value.attempt_limit, 'attempt_limit'),
        NULL if value.timeout_ms is None else SOME + write_long(value.timeout_ms, 'timeout_ms'),
        write_map(value.labels, 'labels'),
        write_map(value.headers, 'headers'),
        write_bytes(value.payload),
        write_array(value.history, write_attemptrecord) if value.history else NULL,
        NULL if value.last_success_at is None else SOME + write_long(value.last_success_at, 'last_success_at'),
    ))


Fixed = tuple[bytes, bytes, bytes]


def fixed(value: Run) -> Fixed:
    """The bytes of the fields that runs created alike have in common, for `assemble`."""
    return (
        write_int(value.run, 'run') + write_string(value.queue, 'queue') + write_string(value.handler, 'handler'),
        (NULL if value.schedule_id is None else SOME + write_string(value.schedule_id, 'schedule_id')) + (NULL if value.key is None else SOME + write_string(value.key, 'key')) + write_int(value.failures, 'failures') + (NULL if value.attempt_limit is None else SOME + write_int(value.attempt_limit, 'attempt_limit')) + (NULL if value.timeout_ms is None else SOME + write_long(value.timeout_ms, 'timeout_ms')),
        (write_array(value.history, write_attemptrecord) if value.history else NULL) + (NULL if value.last_success_at is None else SOME + write_long(value.last_success_at, 'last_success_at')),
    )


def assemble(
    fixed: Fixed, job_id: bytes, occurrence_id: bytes, due_at: bytes, created_at: bytes, serial: bytes, nominal_at: bytes, idempotency_key: bytes, labels: bytes, headers: bytes, payload: bytes,
) -> bytes:
    """A Run of its encoded fields."""
    return b"".join((FRAME, job_id, occurrence_id, due_at, fixed[0], created_at, serial, nominal_at, idempotency_key, fixed[1], labels, headers, payload, fixed[2]))
