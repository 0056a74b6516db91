"""Made by tools/generate_codec.py from schemas/ack.avsc: do not edit, run it again.

Of an Ack framed in single-object encoding: `write`, `read` (strict, to the last byte), and `share`, `begin`,
`when` and `complete`, which write the acks of one worker.
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_bytes, read_instant, read_int, read_length, write_bytes, write_int,
    write_long, write_string,
)
from pipeline.core.job import Ack, AckState, Failure

FRAME = bytes.fromhex("c301ade13ebddd28c6f1")
FINGERPRINT = "f1c628ddbd3ee1ad"

# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
_Ack: Any = Ack


class _AckDraft:
    __slots__ = _Ack.__slots__


_Failure: Any = Failure


class _FailureDraft:
    __slots__ = _Failure.__slots__


_read_state = {each.value.encode(): each for each in AckState}
_written_state = {each: write_string(each.value) for each in AckState}


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


def read(data: bytes, pos: int) -> Ack:
    started_at: int | None
    error: Failure | None
    result: bytes | None
    log_tail: str | None
    retry_at: int | None
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
    token, pos = read_instant(data, pos)
    n = data[pos]
    if n & 129:
        n, pos = read_length(data, pos)
        end = pos + n
    else:
        pos += 1
        end = pos + (n >> 1)
    worker = data[pos:end].decode()
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
    try:
        state = _read_state[data[pos:end]]
    except KeyError:
        raise Malformed(f"no such state: {data[pos:end]!r:.80}") from None
    pos = end
    at, pos = read_instant(data, pos)
    work_offset, pos = read_instant(data, pos)
    n = data[pos]
    pos += 1
    if n == 0:
        started_at = None
    elif n == 2:
        started_at, pos = read_instant(data, pos)
    else:
        raise Malformed("no such branch of the union")
    if data[pos:pos + 4] == b"\0\0\0\0":
        error = None
        result = None
        log_tail = None
        retry_at = None
        pos += 4
    else:
        n = data[pos]
        pos += 1
        if n == 0:
            error = None
        elif n == 2:
            error, pos = read_failure(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            result = None
        elif n == 2:
            result, pos = read_bytes(data, pos)
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            log_tail = None
        elif n == 2:
            n = data[pos]
            if n & 129:
                n, pos = read_length(data, pos)
                end = pos + n
            else:
                pos += 1
                end = pos + (n >> 1)
            log_tail = data[pos:end].decode()
            pos = end
        else:
            raise Malformed("no such branch of the union")
        n = data[pos]
        pos += 1
        if n == 0:
            retry_at = None
        elif n == 2:
            retry_at, pos = read_instant(data, pos)
        else:
            raise Malformed("no such branch of the union")
    if pos != len(data):
        raise Malformed("truncated" if pos > len(data) else "trailing bytes")
    value: Any = _AckDraft()
    value.job_id = job_id
    value.occurrence_id = occurrence_id
    value.run = run
    value.attempt = attempt
    value.token = token
    value.worker = worker
    value.handler = handler
    value.state = state
    value.at = at
    value.work_offset = work_offset
    value.started_at = started_at
    value.error = error
    value.result = result
    value.log_tail = log_tail
    value.retry_at = retry_at
    value.__class__ = Ack
    built: Ack = value
    return built


def share(run: int, attempt: int, token: int, worker: str, handler: str) -> bytes:
    """The bytes that many attempts of one worker have in common, for `begin`."""
    return b"".join((
        write_int(run, 'run'),
        write_int(attempt, 'attempt'),
        write_long(token, 'token'),
        write_string(worker, 'worker'),
        write_string(handler, 'handler'),
    ))


def begin(job_id: str, occurrence_id: str, shared: bytes) -> bytes:
    """The bytes that all acks of one attempt begin with, for `complete`."""
    return b"".join((
        FRAME,
        (of_job_id := write_string(job_id, 'job_id')),
        of_job_id if occurrence_id == job_id else write_string(occurrence_id, 'occurrence_id'),
        shared,
    ))


def when(state: AckState, at: int) -> bytes:
    """The bytes that all acks of one state and instant have in common, for `complete`."""
    return b"".join((
        _written_state[state],
        write_long(at, 'at'),
    ))


def complete(opening: bytes, when: bytes, work_offset: int, started_at: int | None = None, error: Failure | None = None, result: bytes | None = None, log_tail: str | None = None, retry_at: int | None = None) -> bytes:
    """An Ack: what `begin` and `when` gave, and what is its own."""
    if error is None and result is None and log_tail is None and retry_at is None:
        return b"".join((
            opening, when,
            write_long(work_offset, 'work_offset'),
            NULL if started_at is None else SOME + write_long(started_at, 'started_at'),
            b"\0\0\0\0",
        ))
    return b"".join((
        opening, when,
        write_long(work_offset, 'work_offset'),
        NULL if started_at is None else SOME + write_long(started_at, 'started_at'),
        NULL if error is None else SOME + write_failure(error),
        NULL if result is None else SOME + write_bytes(result),
        NULL if log_tail is None else SOME + write_string(log_tail, 'log_tail'),
        NULL if retry_at is None else SOME + write_long(retry_at, 'retry_at'),
    ))


def write(value: Ack) -> bytes:
    shared = share(value.run, value.attempt, value.token, value.worker, value.handler)
    return complete(begin(value.job_id, value.occurrence_id, shared), when(value.state, value.at), value.work_offset, value.started_at, value.error, value.result, value.log_tail, value.retry_at)
