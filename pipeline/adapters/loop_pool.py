"""One asyncio loop, in a thread of its own, for `async def` handlers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline.adapters.thread_pool import (
    Settle,
    drain,
    end_if_copy,
    never_begun,
    process_id,
    take_back,
    timed_out,
)
from pipeline.core.handler import Stopped
from pipeline.ports import Call, Done

log = logging.getLogger(__name__)

GRACE_S = 2.0
"""How long a cancelled coroutine may take to end; then its outcome is told without it."""
LOOK_S = 1.0
"""How often a task is looked for that was ended before it could say so."""


class _Job:
    """A call on the loop. `verdict` = why it was cancelled by us."""

    __slots__ = ("began", "call", "deadline", "task", "verdict")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.task: asyncio.Task[None]
        self.began = 0.0
        self.deadline: float | None = None
        self.verdict: Exception | None = None


class LoopPool:
    """Up to `size` coroutines at once, the others wait their turn. Each is a task of its own.

    A coroutine that is stopped, or whose time is over, is cancelled; if it is still not done after GRACE_S its outcome
    is told, its place given to another and its own result thrown away. The owner's thread keeps the time, so that
    holds for a coroutine that blocks the loop too. All methods are for the owner's thread.
    """

    def __init__(self, size: int, settle: Settle | None = None) -> None:
        """`settle`: see HandlerExecutor."""
        self._settle = settle
        self._calls: deque[Call] = deque()
        self._done: deque[Done] = deque()
        self._free = size
        """Used by the loop's thread; the owner's only reads it."""
        self._waking = False
        """`_admit` is going to look at the queue, after it has cleared this."""
        self._running: dict[int, _Job] = {}
        """By ticket. Whoever takes one out says what became of the call."""
        self._limited: dict[int, _Job] = {}
        """Those of them that the clock is watched for."""
        self._abandoned: set[int] = set()
        self._look_at = 0.0
        self._closing = False
        self._pid = process_id()
        self._loop = asyncio.new_event_loop()
        self._helpers = ThreadPoolExecutor(thread_name_prefix="async-helper")
        """What `asyncio.to_thread` uses, ours to wait for when closing."""
        self._loop.set_default_executor(self._helpers)
        self._thread = threading.Thread(target=self._serve, name="async-handlers", daemon=True)
        self._thread.start()

    @property
    def abandoned(self) -> int:
        """Coroutines that were given up and still run."""
        return len(self._abandoned)

    # -- the owner's side -----------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        self._calls.append(call)
        if self._free and not self._waking:  # without a free place, whoever ends takes the next
            self._waking = True
            self._loop.call_soon_threadsafe(self._admit)

    def completed(self) -> list[Done]:
        now = time.monotonic()
        if self._limited:
            self._expire(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._find_lost(now)
        return drain(self._done)

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        gone = take_back(self._calls, set(tickets))
        if self._calls:
            self._loop.call_soon_threadsafe(self._admit)
        return {call.ticket for call in gone}

    def stop(self, tickets: Iterable[int]) -> None:
        wanted = set(tickets)
        waited = self.withdraw(wanted)
        self._done.extend(never_begun(waited))
        for ticket in wanted - waited:
            self._loop.call_soon_threadsafe(self._cancel, ticket, Stopped("stopped"))

    def cease(self) -> None:
        """Begin no further call."""
        self._calls.clear()

    def close(self, timeout_ms: int) -> bool:
        """Whether all calls ended by themselves within the time; the rest is cancelled."""
        self.cease()
        deadline = time.monotonic() + timeout_ms / 1000
        ended = asyncio.run_coroutine_threadsafe(self._drain(timeout_ms / 1000), self._loop)
        try:
            unfinished = ended.result(timeout_ms / 1000 + GRACE_S)
        except TimeoutError:  # a coroutine blocks the loop
            return False
        helpers = threading.Thread(target=self._helpers.shutdown, daemon=True)
        helpers.start()
        helpers.join(max(0.1, deadline - time.monotonic()))
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(GRACE_S)
        if not self._thread.is_alive():
            self._loop.close()
        return not (unfinished or helpers.is_alive() or self._thread.is_alive())

    def _expire(self, now: float) -> None:
        for ticket, job in self._limited.copy().items():
            if job.deadline is None or job.deadline > now:
                continue
            if job.verdict is None:
                job.deadline = now + GRACE_S
                timeout = timed_out(job.call.timeout_ms or 0)
                self._loop.call_soon_threadsafe(self._cancel, ticket, timeout)
                job.verdict = timeout
            else:
                self._abandon(ticket, job, now)

    def _abandon(self, ticket: int, job: _Job, now: float) -> None:
        self._limited.pop(ticket, None)
        self._abandoned.add(ticket)
        if self._running.pop(ticket, None) is None:
            self._abandoned.discard(ticket)
            return
        self._done.append(Done(ticket, None, job.verdict, job.began, now))
        self._loop.call_soon_threadsafe(self._vacate)

    def _find_lost(self, now: float) -> None:
        """A task that was cancelled before its first step never came to say anything."""
        for ticket, job in self._running.copy().items():
            if job.task.done() and self._running.pop(ticket, None) is not None:
                error = job.verdict or asyncio.CancelledError()
                self._limited.pop(ticket, None)
                self._done.append(Done(ticket, None, error, job.began or now, now))
                self._loop.call_soon_threadsafe(self._vacate)

    # -- the loop's side ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        # A SystemExit in a task that a handler made goes through run_forever, and a handler may stop its loop:
        # the loop is whole after either, and the other handlers need it.
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:
                log.exception("a handler's task tried to end the process", extra={"action": "executor.exit"})

    def _end(self) -> None:
        self._closing = True
        self._loop.stop()

    def _admit(self) -> None:
        self._waking = False
        while self._free and self._calls:
            try:
                job = _Job(self._calls.popleft())
            except IndexError:
                return  # the owner took it back
            self._free -= 1
            job.task = asyncio.Task(self._run(job), loop=self._loop)
            self._running[job.call.ticket] = job

    async def _run(self, job: _Job) -> None:
        ticket, function, _, timeout_ms, *_ = job.call
        value: Any
        error: BaseException | None
        job.began = began = time.monotonic()
        if timeout_ms is not None:
            job.deadline = began + timeout_ms / 1000
            self._limited[ticket] = job
        try:
            value, error = await function(), None
        except BaseException as raised:  # noqa: BLE001 - a cancellation of its own and SystemExit are results
            value, error = None, raised
        end_if_copy(self._pid, error)
        if self._settle is not None and (value is not None or error is not None):
            value, error = self._settle(value, error)
        if job.deadline is not None:
            self._limited.pop(ticket, None)
        if self._running.pop(ticket, None) is None:
            self._abandoned.discard(ticket)
            return
        if job.verdict is not None and job.task.cancelling():
            value, error = None, job.verdict
        self._done.append(Done(ticket, value, error, began, time.monotonic()))
        self._vacate()

    def _vacate(self) -> None:
        self._free += 1
        if self._calls:
            self._admit()

    def _cancel(self, ticket: int, verdict: Exception) -> None:
        job = self._running.get(ticket)
        if job is None:
            return
        job.verdict = job.verdict or verdict
        job.deadline = time.monotonic() + GRACE_S
        self._limited[ticket] = job
        job.task.cancel()

    async def _drain(self, timeout: float) -> int:
        """Wait for the calls, cancel the rest; the number of those cancelled."""
        tasks = {job.task for job in self._running.values()}
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=GRACE_S)
        return len(pending)
