"""The half of an app that declares handlers; it never connects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pipeline.core.errors import InvalidInput
from pipeline.core.registry import Registry

if TYPE_CHECKING:
    from pipeline.core.registry import DeadJob, HandlerOptions

F = TypeVar("F", bound=Callable[..., Any])
DeadHook = TypeVar("DeadHook", bound="Callable[[DeadJob], object]")


class Handlers:
    """What an application declares: handlers by name, the middleware around them, who hears of dead jobs."""

    def __init__(self, *, include: Iterable[Handlers] = (), middleware: Iterable[object] = ()) -> None:
        self.registry = Registry(seconds=time.perf_counter)
        for one in middleware:
            self.use(one)
        for app in include:
            self.include(app)

    def job(self, name: str, **options: Unpack[HandlerOptions]) -> Callable[[F], F]:
        """Register a handler `(ctx, **payload)`; sync or async. A second parameter named `payload`, or annotated with a
        model (pydantic's, a dataclass, a TypedDict), gets the payload whole: checked, converted, and refused for good
        if it does not fit.

        max_attempts: 5 unless the job says otherwise.
        timeout: how long an attempt may take; no limit unless the job says otherwise.
        retry: a RetryPolicy; by default from 1 s, doubling, to 1 h.
        pool: `thread`, or `process` for what keeps the CPU busy, or may have to be killed.
        concurrency: how many of its runs one worker process runs at a time, at most.
        max_age: how long after its instant a job may still start; then it goes to `dead`.
        aliases: other names whose jobs it handles, such as the one it used to have.

        InvalidInput naming the option, or `handler` if the name is illegal or taken, or the function unsuitable.
        """

        def register(function: F) -> F:
            self.registry.add(name, function, **options)
            return function

        return register

    def include(self, other: Handlers) -> None:
        """Take over the handlers that another app has now, with their middleware and its `on_dead` hooks: whatever is
        declared after that is not. InvalidInput if a name or an alias is taken."""
        if not isinstance(other, Handlers):
            raise InvalidInput("include", f"{other!r} is no Dueline")
        self.registry.include(other.registry)

    def use(self, middleware: object) -> None:
        """Put an object with any of `before(ctx)`, `after(ctx, outcome)` and `headers()` around all handlers, inside
        the ones before it (docs/writing-handlers.md). InvalidInput('middleware')."""
        self.registry.use(middleware)

    def on_dead(self, hook: DeadHook) -> DeadHook:
        """Have a function `(job: DeadJob)` called after a run has been made dead, in the worker that did
        it. Best effort: a worker that dies at that moment tells nobody; certain is the record on the topic `dead`."""
        self.registry.on_dead(hook)
        return hook
