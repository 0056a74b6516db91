"""What a user hangs around every handler call of an application (DESIGN §7).

A middleware is an object with any of these methods; the first one added is the outermost:

    def before(self, ctx): ...            # what it raises is what the handler would have raised, the verbs too
    def after(self, ctx, outcome): ...    # in reverse, after a failure too; what it raises is logged, no more
    def headers(self): ...                # text by name, put on every job that the application or a handler schedules

They run where the handler does, in the same thread or task. For `async def` handlers `before` and `after` may be
asynchronous; plain ones run on the event loop then, and must not block it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.core.context import Context, Side
from pipeline.core.errors import InvalidInput
from pipeline.core.jobref import JobRef

HOOKS = ("before", "after", "headers")
_log = logging.getLogger("dueline")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOutcome:
    """How a handler ended: with `value` if `error` is None. A verb may be either. `seconds` = what it took."""

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


def check_middleware(middleware: object) -> None:
    """InvalidInput('middleware') if it has nothing to call, or is a class."""
    if isinstance(middleware, type):
        raise InvalidInput("middleware", f"{middleware.__qualname__} is a class: give an object of it")
    if not any(callable(getattr(middleware, hook, None)) for hook in HOOKS):
        raise InvalidInput("middleware", f"{middleware!r} has none of {', '.join(HOOKS)}")


def check_plain(middleware: object, handler: str) -> None:
    """InvalidInput('middleware') if a hook is asynchronous, which a plain handler has nobody to await for it."""
    for hook in ("before", "after"):
        if inspect.iscoroutinefunction(getattr(middleware, hook, None)):
            name = type(middleware).__qualname__
            problem = f"{name}.{hook} is `async def`, but {handler} is a plain handler"
            raise InvalidInput("middleware", problem)


def headers_of(middleware: Sequence[object]) -> dict[str, str]:
    """What they put on a job that is scheduled now."""
    headers: dict[str, str] = {}
    for one in middleware:
        if (hook := getattr(one, "headers", None)) is not None:
            headers |= hook()
    return headers


def with_headers(middleware: Sequence[object], request: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request for a job with the headers of `middleware`; its own ones win."""
    added, own = headers_of(middleware), request.get("headers")
    if not added or not isinstance(
        own, Mapping | None
    ):  # what is no mapping is told of where requests are checked
        return request
    return {**request, "headers": {**added, **(own or {})}}


class Chain:
    """The middleware of some handlers, in order. `seconds` is a clock that only goes forward."""

    def __init__(self, middleware: tuple[object, ...], seconds: Callable[[], float]) -> None:
        self._middleware = middleware
        self._seconds = seconds
        self._hooks = [(getattr(m, "before", _nothing), getattr(m, "after", _nothing)) for m in middleware]
        self._carries = any(hasattr(m, "headers") for m in middleware)

    def around(self, call: Callable[[Any, Any], Any], context: Any, payload: object) -> Any:
        """Call a plain handler."""
        context, passed, began = self._carrying(context), 0, self._seconds()
        try:
            for before, _ in self._hooks:
                before(context)
                passed += 1
            value = call(context, payload)
        except BaseException as error:
            self._after(passed, context, HandlerOutcome(error=error, seconds=self._seconds() - began))
            raise
        self._after(passed, context, HandlerOutcome(value=value, seconds=self._seconds() - began))
        return value

    async def around_async(self, call: Callable[[Any, Any], Any], context: Any, payload: object) -> Any:
        """Call and await an asynchronous handler."""
        context, passed, began = self._carrying(context), 0, self._seconds()
        try:
            for before, _ in self._hooks:
                await _settled(before(context))
                passed += 1
            value = await call(context, payload)
        except BaseException as error:
            outcome = HandlerOutcome(error=error, seconds=self._seconds() - began)
            await self._after_async(passed, context, outcome)
            raise
        await self._after_async(passed, context, HandlerOutcome(value=value, seconds=self._seconds() - began))
        return value

    def _after(self, passed: int, context: Any, outcome: HandlerOutcome) -> None:
        for _, after in reversed(self._hooks[:passed]):
            try:
                after(context, outcome)
            except _THEIRS:
                _tell(after)

    async def _after_async(self, passed: int, context: Any, outcome: HandlerOutcome) -> None:
        for _, after in reversed(self._hooks[:passed]):
            try:
                await _settled(after(context, outcome))
            except _THEIRS:
                _tell(after)

    def _carrying(self, context: Any) -> Any:
        if not self._carries or not isinstance(context, Context):
            return context
        return replace(context, side=_Carrying(context.side, self._middleware))


_THEIRS = (Exception, SystemExit, KeyboardInterrupt)
"""The effect is done when `after` runs: failing the run over what it raises would repeat it. The cancellation of a
task is not among them, since it is not the middleware's."""


class _Carrying:
    """A `Side` that puts the headers of middleware on what is scheduled."""

    def __init__(self, side: Side, middleware: tuple[object, ...]) -> None:
        self._side, self._middleware = side, middleware
        self.produce, self.progress, self.log, self.stopped = (
            side.produce,
            side.progress,
            side.log,
            side.stopped,
        )

    def schedule(self, request: Mapping[str, Any]) -> JobRef:
        return self._side.schedule(with_headers(self._middleware, request))


def _nothing(*_: object) -> None: ...


async def _settled(value: Any) -> None:
    if inspect.isawaitable(value):
        await value


def _tell(hook: Callable[..., Any]) -> None:
    name = getattr(hook, "__qualname__", repr(hook))
    _log.exception("%s failed; the run's outcome stands", name, extra={"action": "middleware.failed"})
