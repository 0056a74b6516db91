"""Telling the application of runs that are dead: best effort, after the fact, off the worker's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pipeline import codec
from pipeline.core.registry import DeadJob, Registry
from pipeline.ledger import Outcome
from pipeline.ports import Call, Done, Events, Executor

HOOK_MS = 30_000
"""How long the application may take to hear of one dead run."""
LIMIT = 1_000
"""Calls under way at most: they share the threads of the handlers, and the record on `dead` is certain anyway."""


class DeadHooks:
    """Calls the `on_dead` hooks of the application, each at most once for a run. Used by the worker's thread only."""

    def __init__(
        self, *, executor: Executor, registry: Registry, dead: str, tickets: Iterator[int], events: Events
    ) -> None:
        """`dead` = the topic of dead letters."""
        self._executor, self._registry = executor, registry
        self._dead, self._tickets, self._events = dead, tickets, events
        self._under_way: set[int] = set()

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def tell(self, committed: Sequence[Outcome]) -> None:
        """Of these outcomes, which stand in the log."""
        dead = [o for o in committed if o.dead is not None] if self._registry.dead_hooks else []
        for letter in [put.value for outcome in dead for put in outcome.puts if put.topic == self._dead]:
            job = DeadJob.of(codec.DEAD_LETTER.decode(letter or b""))
            if job is None:
                continue  # bytes that nobody could read are no job
            if len(self._under_way) >= LIMIT:
                self._events.on("hook_skipped", job=job.job_id)
                continue
            ticket = next(self._tickets)
            self._under_way.add(ticket)
            call = partial(self._registry.tell_dead, job)
            self._executor.submit(Call(ticket, call, False, HOOK_MS, handler="on_dead"))

    def landed(self, done: Done) -> bool:
        """Whether this is a call of a hook that has come back."""
        if done.ticket not in self._under_way:
            return False
        self._under_way.discard(done.ticket)
        if done.error is not None:
            self._events.on("hook_failed", reason=f"{type(done.error).__name__}: {done.error}"[:500])
        return True
