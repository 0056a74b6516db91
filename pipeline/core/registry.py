"""Handlers by name: what a module declares and a worker runs, without a connection (DESIGN §9)."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypedDict

from pipeline.core.errors import InvalidInput
from pipeline.core.fit import Fit, place_of
from pipeline.core.job import AttemptRecord, DeadLetter, Failure
from pipeline.core.middleware import Chain, check_middleware, check_plain
from pipeline.core.names import check_name
from pipeline.core.retry import RetryPolicy
from pipeline.core.times import Duration, parse_duration

DEFAULT_MAX_ATTEMPTS = 5
NUMBER_LIMIT = 10_000
_DEFAULT_RETRY = RetryPolicy()
_THEIRS = (Exception, SystemExit, KeyboardInterrupt)
_log = logging.getLogger("dueline")


class HandlerOptions(TypedDict, total=False):
    """What a handler may be registered with beside its name. See `Dueline.job`."""

    max_attempts: int
    timeout: Duration | None
    retry: RetryPolicy | None
    pool: str
    concurrency: int | None
    max_age: Duration | None
    aliases: Iterable[str]


class Pool(StrEnum):
    """Where a handler runs. `async def` handlers always run on the event loop."""

    THREAD = "thread"
    PROCESS = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """A registered handler. `timeout_ms` None = no limit; a job's own `max_attempts` and `timeout` win.

    `concurrency` = how many of its runs one worker process runs at a time; `max_age_ms` = how long after the instant
    that its job was meant for a run may still start.
    """

    name: str
    function: Callable[..., Any]
    asynchronous: bool
    fit: Fit = field(compare=False)
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_ms: int | None = None
    retry: RetryPolicy = _DEFAULT_RETRY
    pool: Pool = Pool.THREAD
    concurrency: int | None = None
    max_age_ms: int | None = None
    aliases: tuple[str, ...] = ()
    middleware: tuple[object, ...] = ()
    chain: Chain | None = field(default=None, compare=False)
    """Made of `middleware`; None if there is none, so that it costs nothing."""

    def invoke(self, context: object, payload: object) -> Any:
        """Call the handler, in its middleware; of an asynchronous one, its coroutine. Raises what they raise, and
        InvalidPayload if the payload does not fit."""
        call = self._call_wrapped if self.asynchronous and self.fit.wrapped else self._call
        if self.chain is None:
            return call(context, payload)
        if self.asynchronous:
            return self.chain.around_async(call, context, payload)
        return self.chain.around(call, context, payload)

    def _call(self, context: object, payload: object) -> Any:
        fit = self.fit
        if not fit.ready:
            fit.resolve()
        if fit.read is not None:
            return self.function(context, fit.read(payload))
        try:
            return self.function(context, **fit.members(payload))
        except TypeError as error:
            if (misfit := fit.misfit(context, payload, error)) is None:
                raise
            raise misfit from None

    async def _call_wrapped(self, context: object, payload: object) -> Any:
        """Under an asynchronous decorator the handler is not entered before its coroutine runs."""
        try:
            return await self._call(context, payload)
        except TypeError as error:
            if (misfit := self.fit.misfit(context, payload, error)) is None:
                raise
            raise misfit from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A job that has come to a dead end, as `on_dead` hooks are told. `reason` is a word such as `max_attempts`;
    `run` the number of its last run; `attempts` what is known of its attempts, the last one last."""

    job_id: str
    handler: str
    payload: Any
    reason: str
    error: Failure | None
    run: int
    attempts: tuple[AttemptRecord, ...] = ()

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadJob | None:
        """From its dead letter; None if that is of bytes that nobody could read. A payload that is no JSON is text."""
        run = letter.run
        if run is None:
            return None
        return cls(
            job_id=run.job_id,
            handler=run.handler,
            payload=_json_or_text(run.payload),
            reason=letter.reason,
            error=letter.attempts[-1].error if letter.attempts else None,
            run=run.run,
            attempts=letter.attempts,
        )


def _json_or_text(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "backslashreplace")


DeadHook = Callable[[DeadJob], object]


class Registry:
    """Handlers by name and alias, the middleware around them, and who is told of dead jobs.

    `seconds` is a clock that only goes forward, for what middleware is told of durations.
    """

    def __init__(self, *, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self._seconds = seconds
        self._declared: dict[str, HandlerSpec] = {}
        """By name, with the middleware that came along from the registries included."""
        self._known: dict[str, HandlerSpec] = {}
        """By name and alias, with all of the middleware."""
        self.get: Callable[[str], HandlerSpec | None] = self._known.get
        """The handler with this name or alias. Every run asks several times."""
        self.middleware: tuple[object, ...] = ()
        self.dead_hooks: tuple[DeadHook, ...] = ()

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: Duration | None = None,
        retry: RetryPolicy | None = None,
        pool: str = Pool.THREAD,
        concurrency: int | None = None,
        max_age: Duration | None = None,
        aliases: Iterable[str] = (),
    ) -> HandlerSpec:
        """Register `function`. InvalidInput naming the option, or `handler` if name or function cannot be used."""
        spec = HandlerSpec(
            name=_name("handler", name),
            function=function,
            fit=Fit(name, function),
            asynchronous=_is_asynchronous(function),
            max_attempts=_number("max_attempts", max_attempts),
            timeout_ms=_duration("timeout", timeout),
            retry=_retry(retry),
            pool=_pool(pool),
            concurrency=None if concurrency is None else _number("concurrency", concurrency),
            max_age_ms=_duration("max_age", max_age),
            aliases=_aliases(name, aliases),
        )
        _check_kind(spec)
        self._put(spec)
        return self._known[name]

    @property
    def limited(self) -> bool:
        """Whether some handler has a limit of its own for how many of its runs go on at a time."""
        return any(spec.concurrency is not None for spec in self._declared.values())

    def names(self) -> tuple[str, ...]:
        """All names and aliases, sorted."""
        return tuple(sorted(self._known))

    def names_of(self, function: Callable[..., Any]) -> list[str]:
        """Under which names a function is a handler, in the order in which it became one; without aliases."""
        return [name for name, spec in self._declared.items() if spec.function is function]

    def include(self, other: Registry) -> None:
        """Take over the handlers that another registry has now, in the middleware that it has now, and its hooks.
        InvalidInput if a name or an alias is taken by a different one."""
        for name in other._declared:
            self._put(other._known[name])
        self.dead_hooks = (*dict.fromkeys((*self.dead_hooks, *other.dead_hooks)),)

    def use(self, middleware: object) -> None:
        """Put a middleware around all handlers, those to come too, inside the ones before it. InvalidInput."""
        check_middleware(middleware)
        for spec in self._declared.values():
            _check_hooks(spec, (middleware,))
        self.middleware = (*self.middleware, middleware)
        for spec in self._declared.values():
            self._know(spec)

    def on_dead(self, hook: DeadHook) -> None:
        """Have `hook` told of every job that has ended dead. InvalidInput unless it is a plain function."""
        if not callable(hook) or _is_asynchronous(hook):
            raise InvalidInput("on_dead", f"{hook!r} is no plain function")
        self.dead_hooks = (*self.dead_hooks, hook)

    def tell_dead(self, job: DeadJob) -> None:
        """Call the hooks, each whatever the others do; what they raise is logged."""
        for hook in self.dead_hooks:
            try:
                hook(job)
            except _THEIRS:
                extra = {"action": "on_dead.failed", "job": job.job_id}
                _log.exception("%s failed", place_of(hook), extra=extra)

    def check(self) -> None:
        """InvalidInput('handler') if a payload could not be checked as a handler's annotations say: those that are
        text are looked up only now, when all modules are there."""
        for spec in self._declared.values():
            spec.fit.resolve()

    def _put(self, spec: HandlerSpec) -> None:
        _check_hooks(spec, self.middleware)
        if self._declared.get(spec.name) == spec:
            return
        for name in (spec.name, *spec.aliases):
            if (known := self._known.get(name)) is not None:
                field_name = "handler" if name == spec.name else "aliases"
                raise InvalidInput(
                    field_name, f"{name!r} is already registered for {place_of(known.function)}"
                )
        self._declared[spec.name] = spec
        self._know(spec)

    def _know(self, spec: HandlerSpec) -> None:
        around = (*self.middleware, *spec.middleware)
        chain = Chain(around, self._seconds) if around else None
        known = replace(spec, middleware=around, chain=chain)
        self._known.update(dict.fromkeys((spec.name, *spec.aliases), known))


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    # An instance is asynchronous if its __call__ is.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method itself is asked for
    )


def _check_kind(spec: HandlerSpec) -> None:
    if inspect.isgeneratorfunction(spec.function) or inspect.isasyncgenfunction(spec.function):
        raise InvalidInput("handler", f"{place_of(spec.function)} is a generator: a call would not run it")
    if spec.asynchronous and spec.pool is Pool.PROCESS:
        raise InvalidInput(
            "pool", f"{place_of(spec.function)} is `async def`, which runs on the event loop only"
        )


def _check_hooks(spec: HandlerSpec, middleware: Iterable[object]) -> None:
    for one in () if spec.asynchronous else middleware:
        check_plain(one, spec.name)


def _name(field_name: str, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(field_name, f"{name!r} is no text")
    return check_name(field_name, name)


def _number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= NUMBER_LIMIT:
        raise InvalidInput(name, f"{value!r} is no whole number from 1 to {NUMBER_LIMIT}")
    return value


def _duration(name: str, value: Duration | None) -> int | None:
    if value is None:
        return None
    milliseconds = parse_duration(name, value)
    if milliseconds == 0:
        raise InvalidInput(name, "it must be more than zero; leave it out for no limit")
    return milliseconds


def _retry(value: object) -> RetryPolicy:
    if value is None:
        return _DEFAULT_RETRY
    if not isinstance(value, RetryPolicy):
        raise InvalidInput("retry", f'{value!r} is no RetryPolicy, such as RetryPolicy(base="5s", cap="10m")')
    return value


def _pool(value: object) -> Pool:
    if not isinstance(value, str) or value not in tuple(Pool):
        raise InvalidInput("pool", f"{value!r} is none of {', '.join(Pool)}")
    return Pool(value)


def _aliases(name: str, aliases: object) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise InvalidInput("aliases", f"{aliases!r} is no list of names")
    checked = tuple(_name("aliases", alias) for alias in aliases)
    if len({name, *checked}) <= len(checked):
        raise InvalidInput("aliases", f"of {name!r} name something twice")
    return checked
