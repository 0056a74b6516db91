"""The half of an app that declares handlers; it never connects."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from pipeline.core.errors import InvalidInput
from pipeline.core.fit import place_of
from pipeline.core.registry import Registry

if TYPE_CHECKING:
    from pipeline.client.schedule_options import ScheduleOptions
    from pipeline.core.registry import DeadJob, HandlerOptions
    from pipeline.core.spec import ScheduleSpec
    from pipeline.core.times import Duration

F = TypeVar("F", bound=Callable[..., Any])
DeadHook = TypeVar("DeadHook", bound="Callable[[DeadJob], object]")


class Handlers:
    """What an application declares: handlers by name, the middleware around them, who hears of dead jobs, and its
    schedules."""

    def __init__(self, *, include: Iterable[Handlers] = (), middleware: Iterable[object] = ()) -> None:
        self.registry = Registry(seconds=time.perf_counter)
        self._schedules: dict[str, Mapping[str, Any]] = {}
        """Options of what `cron` and `every` declare, by id."""
        self._alone: list[Callable[..., Any]] = []
        """Functions that `cron` or `every` has registered as handlers."""
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
            if any(function is one for one in self._alone):
                problem = f"{place_of(function)} is registered by @app.cron or @app.every below: put @app.job below it"
                raise InvalidInput("handler", problem)
            self.registry.add(name, function, **options)
            return function

        return register

    def cron(
        self,
        expression: str,
        *,
        id: str | None = None,
        handler: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[F], F]:
        """Run a handler by a cron expression, such as `0 10 * * *` (docs/schedules.md), in the zone `tz`:

            @app.cron("0 10 * * *", tz="Europe/Berlin", id="daily-report")
            @app.job("report.daily")
            def daily(ctx): ...

        Above `@app.job`, or alone: then the function becomes a handler of the name `handler`, by default its own. `id`
        is that of the schedule, one for the whole installation; by default the handler's name. The options are those of
        `app.schedules.create`. A worker that starts stores what its app declares, and removes what it declares no more.

        InvalidSchedule naming what is wrong with the expression, InvalidInput naming the option.
        """
        return self._declare({**options, "cron": expression}, id, handler)

    def every(
        self,
        period: Duration,
        *,
        id: str | None = None,
        handler: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Callable[[F], F]:
        """Run a handler every `90s`, on a grid that starts at the epoch and `phase`; or, with `after="finish"`, so long
        after its last occurrence has ended. Else as `cron`."""
        return self._declare({**options, "every": period}, id, handler)

    def _declare(
        self, options: Mapping[str, Any], schedule_id: str | None, handler: str | None
    ) -> Callable[[F], F]:
        def register(function: F) -> F:
            name = self._handler_of(function, handler)
            self._add_schedule(schedule_id or name, {**options, "id": schedule_id or name, "handler": name})
            return function

        return register

    def _handler_of(self, function: Callable[..., Any], wanted: str | None) -> str:
        """The name under which a function is a handler; it is made one if it is none yet."""
        names = self.registry.names_of(function) or self.registry.names_of(inspect.unwrap(function))
        if wanted in names or (wanted is None and names):
            return wanted or names[0]
        name = wanted or getattr(function, "__name__", "").lower()
        self.registry.add(name, function)
        self._alone.append(function)
        return name

    def _add_schedule(self, schedule_id: str, options: Mapping[str, Any]) -> None:
        # Not at the top: the grammar of cron is 200 ms that an app without schedules need not pay.
        from pipeline.client.schedule_options import spec_of

        spec_of(options)
        if self._schedules.setdefault(schedule_id, options) != options:
            raise InvalidInput("id", f"the app declares a schedule {schedule_id!r} already")

    def declared(self, *, source: str, version: str, queue: str) -> tuple[ScheduleSpec, ...]:
        """The schedules that are declared, in their order, as of this source and deploy version; `queue` is that of
        those which name none."""
        from pipeline.client.schedule_options import spec_of

        specs = (spec_of({"queue": queue, **_given(options)}) for options in self._schedules.values())
        return tuple(replace(spec, source=source, version=version) for spec in specs)

    def include(self, other: Handlers) -> None:
        """Take over the handlers that another app has now, with their middleware, and its `on_dead` hooks and
        schedules: whatever is declared after that is not. InvalidInput if a name, an alias or an id of a schedule is
        taken."""
        if not isinstance(other, Handlers):
            raise InvalidInput("include", f"{other!r} is no Dueline")
        self.registry.include(other.registry)
        for schedule_id, options in other._schedules.items():
            self._add_schedule(schedule_id, options)

    def use(self, middleware: object) -> None:
        """Put an object with any of `before(ctx)`, `after(ctx, outcome)` and `headers()` around all handlers, inside
        the ones before it (docs/writing-handlers.md). InvalidInput('middleware')."""
        self.registry.use(middleware)

    def on_dead(self, hook: DeadHook) -> DeadHook:
        """Have a function `(job: DeadJob)` called after a run has been made dead, in the worker that did
        it. Best effort: a worker that dies at that moment tells nobody; certain is the record on the topic `dead`."""
        self.registry.on_dead(hook)
        return hook


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
