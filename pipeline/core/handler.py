"""What becomes of a run, by what its handler answered (DESIGN §7). What a handler may be stands in `registry`, what it
may answer in `verbs`; both are handed on from here."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from types import CoroutineType
from typing import NamedTuple

from pipeline.core.job import LATEST, Failure, Millis, Run
from pipeline.core.registry import DEFAULT_MAX_ATTEMPTS, HandlerSpec, Pool, Registry
from pipeline.core.retry import Jitter, backoff
from pipeline.core.times import Duration
from pipeline.core.verbs import (
    Cancel,
    Dead,
    Fenced,
    InvalidPayload,
    RemoteError,
    Retry,
    Snooze,
    Stopped,
    TimedOut,
)

__all__ = [
    "DEFAULT_MAX_ATTEMPTS",
    "RESULT_LIMIT",
    "Cancel",
    "Cancelled",
    "Dead",
    "DeadEnd",
    "Decision",
    "Duration",
    "Fenced",
    "HandlerSpec",
    "InvalidPayload",
    "Kept",
    "Pool",
    "Registry",
    "RemoteError",
    "Retry",
    "Retrying",
    "Snooze",
    "Stopped",
    "Succeeded",
    "TimedOut",
    "decide",
    "encode_result",
    "failure_of",
]

RESULT_LIMIT = 64 * 1024
"""Bytes of a result's JSON (DESIGN §3)."""
_MESSAGE_LIMIT = 2_000
_TRACE_LIMIT = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The job is done. `result` is JSON, None for a handler that returned nothing."""

    result: bytes | None


class Kept(NamedTuple):
    """A returned value that was encoded where its handler ran (`encode_result`)."""

    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Another run at `at` (epoch ms), carrying `failures`; `spends` False = no attempt was spent (snooze)."""

    at: Millis
    failures: int
    error: Failure | None
    spends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """The job goes to `dead`. `reason` is a word for machines: `max_attempts`, `dead_by_handler`, `invalid_payload`,
    `max_age` …"""

    reason: str
    error: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The job ends as cancelled: by its handler or a sink that fenced it, or `stopped` from outside."""

    reason: str


Decision = Succeeded | Retrying | DeadEnd | Cancelled
_DONE = Succeeded(result=None)
_NO_RESULT = (BaseException, CoroutineType)


def decide(
    spec: HandlerSpec,
    run: Run,
    *,
    value: object = None,
    error: BaseException | None = None,
    now: int,
    random: Jitter,
) -> Decision:
    """What becomes of a run whose handler returned `value` or raised `error`, at the store's time `now`."""
    if error is None and not isinstance(value, _NO_RESULT):
        return _DONE if value is None else Succeeded(result=encode_result(value))
    match value if error is None else error:
        case Snooze(for_ms=wait):
            return Retrying(at=_after(now, wait), failures=run.failures, error=None, spends=False)
        case Cancel(reason=reason):
            return Cancelled(reason=_text(reason)[:_MESSAGE_LIMIT])
        case InvalidPayload() as verdict:
            return DeadEnd(reason="invalid_payload", error=failure_of(verdict))
        case Dead() as verdict:
            return DeadEnd(reason="dead_by_handler", error=failure_of(verdict))
        case Retry(after_ms=wait) as verdict:
            return _failed(spec, run, failure_of(verdict), wait, now, random)
        case CoroutineType() as coroutine:
            coroutine.close()  # else Python warns of it, at a place that helps nobody
            problem = Failure(
                type="NotAwaited", message=f"{spec.name} returned a coroutine that nobody awaits"
            )
            return _failed(spec, run, problem, None, now, random)
        case _ if error is not None:
            return _raised(spec, run, error, now, random)
        case result:  # an exception that is no verb, returned: no JSON, but done
            return Succeeded(result=encode_result(result))


def _raised(spec: HandlerSpec, run: Run, error: BaseException, now: int, random: Jitter) -> Decision:
    """What becomes of a run whose handler raised what is no verb."""
    match error:
        case Stopped():
            return Cancelled(reason="stopped")
        case TimedOut():
            limit = (run.timeout_ms or spec.timeout_ms or 0) / 1000
            late = Failure(type="TimedOut", message=f"{spec.name} did not come back within {limit:g} s")
            return _failed(spec, run, late, None, now, random)
        case _:
            return _failed(spec, run, failure_of(error), None, now, random)


def failure_of(error: BaseException) -> Failure:
    """An exception as data; of a verb raised `from` an error, that error."""
    if isinstance(error, (Retry, Dead)) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, RemoteError):
        return error.failure
    return Failure(
        type=_text(type(error).__qualname__),
        message=_text(error)[:_MESSAGE_LIMIT],
        # The end of a trace names the place.
        trace=None if error.__traceback__ is None else _trace(error)[-_TRACE_LIMIT:],
    )


def encode_result(value: object) -> bytes | None:
    """A returned value as JSON, None as None.

    A value that cannot be kept is replaced by `{"result_dropped": why}`: the effect is done, so failing the
    run over its answer would only repeat the effect.
    """
    if value is None:
        return None
    if isinstance(value, Kept):
        return value.data
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except BaseException as error:  # noqa: BLE001 - a user's class may raise anything while it is encoded
        return _dropped(f"not JSON: {_text(error)[:200]}")
    if len(data) > RESULT_LIMIT:
        return _dropped(f"{len(data)} bytes of JSON are more than {RESULT_LIMIT}")
    return data


def _failed(
    spec: HandlerSpec, run: Run, error: Failure, wait: int | None, now: int, random: Jitter
) -> Decision:
    failures = run.failures + 1
    limit = spec.max_attempts if run.attempt_limit is None else run.attempt_limit
    if failures >= limit:
        return DeadEnd(reason="max_attempts", error=error)
    if wait is None:
        wait = backoff(spec.retry, failures, random)
    return Retrying(at=_after(now, wait), failures=failures, error=error, spends=True)


def _after(now: int, wait: int) -> Millis:
    return Millis(min(now + wait, LATEST))


def _trace(error: BaseException) -> str:
    try:
        return _text("".join(traceback.format_exception(error)))
    except BaseException:  # noqa: BLE001 - see `_text`
        return "(its trace cannot be shown)"


def _text(value: object) -> str:
    """A handler's object as text that the codec takes: a lone surrogate is escaped, for UTF-8 has none."""
    try:
        return str.encode(str(value), "utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001 - the text is for people, its absence must not end run or worker
        return "(its message cannot be shown)"


def _dropped(why: str) -> bytes:
    return json.dumps({"result_dropped": why}).encode()
