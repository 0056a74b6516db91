"""What a worker takes on of what stands in its work topic, and what becomes of the rest (DESIGN §7)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.core.errors import Undecodable
from pipeline.core.handler import DeadEnd, Decision, HandlerSpec, Registry, Retrying
from pipeline.core.ids import check_id
from pipeline.core.job import Failure, Millis, Run
from pipeline.core.names import legal

MINUTE_MS = 60_000
"""How long a run goes home whose handler nobody knows; how often such a handler is told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a worker takes on, and how long it is patient. Durations in ms.

    The last attempt before `max_worker_deaths` runs alone in its process, so that only a culprit reaches it.
    """

    concurrency: int = 16
    heartbeat_timeout_ms: int = 3_000
    max_worker_deaths: int = 3
    unknown_handler_ms: int = 3_600_000

    def outdated(self, run: Run) -> bool:
        """Whether a handler that this worker does not know is waited for no longer: a run that was turned away goes
        round once a minute and spends no failure, so its rounds tell how long. Its age does not: a job that an
        outage made late must not die of it on the first old worker of a rolling deploy."""
        rounds = run.run - 1 - run.failures
        return rounds * MINUTE_MS >= self.unknown_handler_ms

    def turned_away(self, run: Run, now: int) -> Decision:
        """A run with an unknown handler that is not parked: home for a minute, or the end after too many rounds."""
        if self.outdated(run):
            return nobody_knows(run)
        error, at = nobody_knows(run).error, Millis(now + MINUTE_MS)
        return Retrying(at=at, failures=run.failures, error=error, spends=False)


class Quotas:
    """Attempts under way by handler, of those that have a limit of their own; the names of one count together."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._load = Counter[str]()
        self.limited = registry.limited
        """Whether there is such a handler."""

    def full(self, run: Run) -> bool:
        """Whether the handler of a run has as many under way as it wants."""
        spec = self._registry.get(run.handler)
        return spec is not None and spec.concurrency is not None and self._load[spec.name] >= spec.concurrency

    def count(self, run: Run, change: int) -> None:
        spec = self._registry.get(run.handler) if self.limited else None
        if spec is not None and spec.concurrency is not None:
            self._load[spec.name] += change


def nobody_knows(run: Run) -> DeadEnd:
    """The end of a run whose handler no worker has learnt."""
    problem = f"no worker knows {run.handler}"
    return DeadEnd(reason="unknown_handler", error=Failure(type="UnknownHandler", message=problem))


def too_old(spec: HandlerSpec, run: Run, now: int) -> DeadEnd | None:
    """The end of a run that is too late to start, at the store's time `now`; None if it may.

    Its age counts from the instant that the job was meant for. A retry or a snooze moves the run and not that instant:
    what a `max_age` says is that the effect is worth nothing any more. A requeue is meant for now.
    """
    limit, age = spec.max_age_ms, now - run.nominal_at
    if limit is None or age <= limit:
        return None
    problem = f"{age / 1000:g} s after the instant it was meant for, of {limit / 1000:g} s at most"
    return DeadEnd(reason="max_age", error=Failure(type="TooOld", message=problem))


def killed(starts: int) -> DeadEnd:
    """The end of a run that has taken its worker with it too often."""
    problem = f"{starts} workers died while they ran this job"
    return DeadEnd(reason="max_worker_deaths", error=Failure(type="WorkerDied", message=problem))


def check_run(run: Run, *, key: bytes | None, queue: str) -> Run:
    """`run` itself if a dispatcher can have written it here; Undecodable if it came from elsewhere."""
    check_id(run.occurrence_id)
    if run.job_id != run.occurrence_id:
        check_id(run.job_id)
    if run.run < 1 or run.queue != queue or key != run.occurrence_id.encode():
        raise Undecodable(f"run {run.run} of queue {run.queue[:80]!r} under key {key!r} is not ours")
    if not legal(run.handler):
        raise Undecodable(f"{run.handler[:80]!r} is no name of a handler")
    return run
