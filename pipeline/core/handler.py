"""Handlers: what a user registers, what a handler may answer, and what becomes of a run (DESIGN §7, §9)."""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.job import LATEST, Failure, Millis, Run
from pipeline.core.names import check_name
from pipeline.core.retry import Jitter, RetryPolicy, backoff
from pipeline.core.times import parse_duration

DEFAULT_MAX_ATTEMPTS = 5
RESULT_LIMIT = 64 * 1024
"""Bytes of a result's JSON (DESIGN §3)."""
_MESSAGE_LIMIT = 2_000
_TRACE_LIMIT = 16_000
_DEFAULT_RETRY = RetryPolicy()

Duration = str | timedelta | float
"""As `times.parse_duration` reads it: `10m`, a timedelta, or a number of seconds."""


# -- what a handler may return or raise ---------------------------------------------------------------------


class Retry(Exception):
    """The attempt failed: try again after this time, or by the back-off if None. Spends an attempt.

    `raise Retry(after="1m") from error` records the error. InvalidInput if the duration is malformed.
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after_ms = None if after is None else parse_duration("after", after)


class Snooze(Exception):
    """Not now: run again after this time. Spends no attempt. InvalidInput if the duration is malformed."""

    def __init__(self, *, for_: Duration) -> None:
        super().__init__()
        self.for_ms = parse_duration("for_", for_)


class Cancel(Exception):
    """There is nothing left to do: end the job as cancelled."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Dead(Exception):
    """No further attempt can succeed: end the job as dead, now."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvalidPayload(Dead):
    """The payload can never fit the handler: no further attempt can succeed."""


class TimedOut(Exception):
    """The handler did not come back within its time."""


class Stopped(Exception):
    """The run was stopped from outside, and its handler ended for it."""


# -- what a user registers ----------------------------------------------------------------------------------


class Pool(StrEnum):
    """Where a handler runs. `async def` handlers always run on the event loop."""

    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """A registered handler. `timeout_ms` None = no limit; a job's own `max_attempts` and `timeout` win.

    `concurrency` = how many of its runs one worker process runs at a time; `max_age_ms` = how long after its due time
    a run may still start.
    """

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    whole_payload: bool
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_ms: int | None = None
    retry: RetryPolicy = _DEFAULT_RETRY
    pool: Pool = Pool.THREAD
    concurrency: int | None = None
    max_age_ms: int | None = None
    aliases: tuple[str, ...] = ()

    def invoke(self, context: object, payload: object) -> Any:
        """Call the handler; an asynchronous one gives a coroutine. TypeError if the payload does not fit."""
        if self.whole_payload:
            return self.function(context, payload)
        if payload is None:
            return self.function(context)
        if not isinstance(payload, dict):
            raise TypeError(
                f"handler {self.name} takes its payload as named arguments, so it must be a JSON object,"
                f" not {type(payload).__name__}"
            )
        return self.function(context, **payload)


class Registry:
    """Handlers by name, without a connection: what a module declares and a worker runs."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: Duration | None = None,
        retry: RetryPolicy = _DEFAULT_RETRY,
    ) -> HandlerSpec:
        """Register `function`. InvalidInput if name, function or a limit is illegal, or the name is taken."""
        if max_attempts < 1:
            raise InvalidInput("max_attempts", f"{max_attempts} is less than 1")
        spec = HandlerSpec(
            name=check_name("handler", name),
            function=function,
            asynchronous=_is_asynchronous(function),
            whole_payload=_takes_whole_payload(name, function),
            max_attempts=max_attempts,
            timeout_ms=_timeout(timeout),
            retry=retry,
        )
        return self._put(spec)

    def get(self, name: str) -> HandlerSpec | None:
        return self._specs.get(name)

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._specs))

    def include(self, other: Registry) -> None:
        """Take over all handlers of another registry; InvalidInput if a name is taken by a different one."""
        for spec in other._specs.values():
            self._put(spec)

    def _put(self, spec: HandlerSpec) -> HandlerSpec:
        known = self._specs.setdefault(spec.name, spec)
        if known != spec:
            raise InvalidInput("handler", f"{spec.name!r} is already registered for {_place(known.function)}")
        return known


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    # An instance is asynchronous if its __call__ is.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is asked for
    )


def _takes_whole_payload(name: str, function: Callable[..., Any]) -> bool:
    """Whether the second parameter gets the payload whole. Annotations with a model will join here."""
    if not callable(function):
        raise InvalidInput("handler", f"{name!r} is given {function!r}, which cannot be called")
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in _POSITIONAL]
    if not parameters:
        raise InvalidInput("handler", f"{_place(function)} must take the context as its first parameter")
    return len(parameters) > 1 and parameters[1].name == "payload"


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _timeout(timeout: Duration | None) -> int | None:
    if timeout is None:
        return None
    milliseconds = parse_duration("timeout", timeout)
    if milliseconds == 0:
        raise InvalidInput("timeout", "it must be more than zero; leave it out for no limit")
    return milliseconds


def _place(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    return f"{module}.{getattr(function, '__qualname__', repr(function))}"


# -- what becomes of a run ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The job is done. `result` is JSON, None for a handler that returned nothing."""

    result: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Another run at `at` (epoch ms), carrying `failures`; `spends` False = no attempt was spent (snooze)."""

    at: Millis
    failures: int
    error: Failure | None
    spends: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadEnd:
    """The job goes to `dead`. `reason` is a word for machines: `max_attempts` or `dead_by_handler`."""

    reason: str
    error: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The job ends as cancelled, by its handler."""

    reason: str


Decision = Succeeded | Retrying | DeadEnd | Cancelled


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
    match error if error is not None else value:
        case Snooze(for_ms=wait):
            return Retrying(at=_after(now, wait), failures=run.failures, error=None, spends=False)
        case Cancel(reason=reason):
            return Cancelled(reason=_text(reason)[:_MESSAGE_LIMIT])
        case Dead() as verdict:
            return DeadEnd(reason="dead_by_handler", error=failure_of(verdict))
        case Retry(after_ms=wait) as verdict:
            return _failed(spec, run, verdict, wait, now, random)
        case _ if error is not None:
            return _failed(spec, run, error, None, now, random)
        case result:
            return Succeeded(result=encode_result(result))


def failure_of(error: BaseException) -> Failure:
    """An exception as data; of a verb raised `from` an error, that error."""
    if isinstance(error, (Retry, Dead)) and error.__cause__ is not None:
        error = error.__cause__
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
    try:
        data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except BaseException as error:  # noqa: BLE001 - a user's class may raise anything while it is encoded
        return _dropped(f"not JSON: {_text(error)[:200]}")
    if len(data) > RESULT_LIMIT:
        return _dropped(f"{len(data)} bytes of JSON are more than {RESULT_LIMIT}")
    return data


def _failed(
    spec: HandlerSpec, run: Run, error: BaseException, wait: int | None, now: int, random: Jitter
) -> Decision:
    failures = run.failures + 1
    limit = spec.max_attempts if run.attempt_limit is None else run.attempt_limit
    if failures >= limit:
        return DeadEnd(reason="max_attempts", error=failure_of(error))
    if wait is None:
        wait = backoff(spec.retry, failures, random)
    return Retrying(at=_after(now, wait), failures=failures, error=failure_of(error), spends=True)


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
