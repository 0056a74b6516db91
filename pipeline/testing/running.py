"""One job through the real executor and the real decision, without a store."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Unpack

from pipeline.adapters.executors import HandlerExecutor
from pipeline.attempt import Tray, context_of
from pipeline.client import Dueline, JobOptions
from pipeline.client.request import OF_KEYS
from pipeline.core.admission import too_old
from pipeline.core.errors import InvalidInput
from pipeline.core.handler import (
    Cancelled,
    DeadEnd,
    Decision,
    HandlerSpec,
    Pool,
    Retrying,
    Succeeded,
    TimedOut,
    decide,
)
from pipeline.core.job import AttemptRecord, Millis, Run
from pipeline.core.registry import DeadJob
from pipeline.core.times import aware, instant_of
from pipeline.core.token import make_token
from pipeline.ports import Call, Done, Task
from pipeline.testing.clock import FakeClock
from pipeline.testing.records import (
    ProducedRecord,
    ScheduledJob,
    means_of,
    read_job,
    requests_of,
    scheduled,
)

END_MS = 5_000
LOOK_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a run.

    `status`: `succeeded`, `retrying` (at `retry_at`, the latest that the back-off allows), `dead` or `cancelled`.
    `reason` is a word of `dead` (`max_attempts`, `dead_by_handler`, `invalid_payload`, `max_age`), the text of
    `cancelled`. `error` is the exception that the handler raised, or the verb that it gave. `scheduled` and `produced`
    are what would be stored with the outcome: nothing unless it succeeded. `log` are the lines kept with the run.
    """

    status: str
    result: Any = None
    error: BaseException | None = None
    reason: str | None = None
    retry_at: datetime | None = None
    scheduled: Sequence[ScheduledJob] = ()
    produced: Sequence[ProducedRecord] = ()
    log: Sequence[str] = ()
    progress: float | None = None
    note: str = ""


def run_job(
    app: Dueline,
    handler: str,
    payload: dict[str, Any] | None = None,
    *,
    attempt: int = 1,
    failures: int = 0,
    stopped: bool = False,
    target: str | None = None,
    clock: FakeClock | None = None,
    schedule_id: str | None = None,
    nominal_at: datetime | None = None,
    last_success_at: datetime | None = None,
    **options: Unpack[JobOptions],
) -> Outcome:
    """Run one job as a worker would: on a thread, the event loop or in a process, in its middleware, with its time-out.
    For a process it must be known where it finds the app: `target="shop.jobs:app"`, as `dueline worker --app`; without
    that, handlers with `pool="process"` run on a thread.

    `failures` = how often it has failed before; `attempt` = which attempt of this run it is, more than 1 after a worker
    died; `stopped` = `ctx.cancelled` is true. Of an occurrence of a schedule, as its handler sees them: `schedule_id`,
    `nominal_at` (else the instant that it is due), `last_success_at`, aware. The options are those of
    `Dueline.schedule`; it is due now unless they say otherwise, and runs when it is due, or now if that is later. Hooks
    `on_dead` are called.

    Raises InvalidInput naming the option, or `handler` if none has this name.
    """
    spec = app.registry.get(handler)
    if spec is None:
        known = ", ".join(app.registry.names()) or "none"
        raise InvalidInput("handler", f"no {handler!r} is registered; there are: {known}")
    spec.fit.resolve()
    clock = clock or FakeClock()
    run = _run(app, clock, failures, {"handler": handler, "payload": payload, **options})
    run = replace(
        run,
        schedule_id=schedule_id,
        nominal_at=run.nominal_at if nominal_at is None else _instant("nominal_at", nominal_at),
        last_success_at=None if last_success_at is None else _instant("last_success_at", last_success_at),
    )
    now = max(clock.store.now(), run.due_at)
    if (end := too_old(spec, run, now)) is not None:
        return _told(app, run, end, Outcome(status="dead", reason=end.reason), attempt, now)
    tray = Tray(means_of(app.settings, clock), lambda: stopped)
    done = _call(spec, run, attempt, now, tray, target)
    tray.close()
    decision = decide(spec, run, value=done.value, error=done.error, now=now, random=_Latest())
    return _told(app, run, decision, _outcome(app, decision, done, tray), attempt, now)


def _instant(option: str, value: object) -> Millis:
    if not isinstance(value, datetime):
        raise InvalidInput(option, f"{value!r} is no datetime")
    return instant_of(option, value)


class _Latest:
    """No jitter: a test wants to know when."""

    def random(self) -> float:
        return 1.0


def _run(app: Dueline, clock: FakeClock, failures: int, request: dict[str, Any]) -> Run:
    if isinstance(failures, bool) or not isinstance(failures, int) or failures < 0:
        raise InvalidInput("failures", f"{failures!r} is no number from 0 up")
    if request.get("at") is None and request.get("in_") is None:
        request["in_"] = 0
    requests, key = requests_of(app.settings, clock), request.get("key")
    if key is not None:
        requests.command(request)  # which checks the options of keys
        request = {name: value for name, value in request.items() if name not in OF_KEYS}
    return replace(requests.run(request), key=key, run=failures + 1, failures=failures)


def _call(spec: HandlerSpec, run: Run, attempt: int, now: int, tray: Tray, target: str | None) -> Done:
    token = make_token(1, run.run, 1, attempt)

    def function() -> Any:
        context = context_of(run, attempt, token, now, tray)
        return spec.invoke(context, context.payload)

    limit = spec.timeout_ms if run.timeout_ms is None else run.timeout_ms
    apart = spec.pool is Pool.PROCESS and target is not None
    task = Task(run, attempt, token, now, tray) if apart else None
    executor = HandlerExecutor(1, target)
    patience = END_MS
    try:
        executor.submit(Call(1, function, spec.asynchronous, limit, task))
        while not (done := executor.completed()):
            time.sleep(LOOK_S)
        patience = 0 if isinstance(done[0].error, TimedOut) else END_MS
        return done[0]
    finally:
        executor.close(patience)


def _outcome(app: Dueline, decision: Decision, done: Done, tray: Tray) -> Outcome:
    given = done.error if done.error is not None else done.value
    outcome = Outcome(
        status=_STATUS[type(decision)],
        error=given if isinstance(given, BaseException) and not isinstance(decision, Succeeded) else None,
        log=(tray.tail() or "").splitlines(),
        progress=tray.fraction,
        note=tray.note,
    )
    match decision:
        case Succeeded(result=result):
            jobs = [put for put in tray.outputs if put.topic == app.settings.names.jobs]
            return replace(
                outcome,
                result=None if result is None else json.loads(result),
                scheduled=[scheduled(read_job(put)) for put in jobs],
                produced=[
                    ProducedRecord(put.topic, put.value, put.key or None, dict(put.headers or ()))
                    for put in tray.outputs
                    if put not in jobs
                ],
            )
        case Retrying(at=at):
            return replace(outcome, retry_at=aware(at))
        case DeadEnd(reason=reason) | Cancelled(reason=reason):
            return replace(outcome, reason=reason)


_STATUS = {Succeeded: "succeeded", Retrying: "retrying", DeadEnd: "dead", Cancelled: "cancelled"}


def _told(app: Dueline, run: Run, decision: Decision, outcome: Outcome, attempt: int, now: int) -> Outcome:
    """The outcome, after the hooks have heard of a dead end."""
    if isinstance(decision, DeadEnd):
        last = AttemptRecord(
            run=run.run, attempt=attempt, worker="test", token=make_token(1, run.run, 1, attempt), at=now,
            outcome="dead", error=decision.error,
        )  # fmt: skip
        app.registry.tell_dead(
            DeadJob(
                job_id=run.job_id, handler=run.handler, payload=json.loads(run.payload),
                reason=decision.reason, error=decision.error, run=run.run, attempts=(last,),
            )
        )  # fmt: skip
    return outcome
