"""Where handlers run: threads, one asyncio loop and a pool of processes, or, for simulation, inside the caller."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pipeline.adapters.loop_pool import LoopPool
from pipeline.adapters.process_pool import ProcessPool
from pipeline.adapters.thread_pool import Settle, ThreadPool
from pipeline.ports import Call, Done

log = logging.getLogger(__name__)


class HandlerExecutor:
    """`Executor` for handlers of every kind, each kind with `concurrency` places; the calls beyond wait their turn.

    A plain handler takes a thread, an asynchronous one is a task on one event loop, a call with a `task` gets a process
    that loads the application by `target`, `module:attribute` (without one such calls are refused). Whatever a handler
    raises, SystemExit and KeyboardInterrupt too, is a result: only the supervisor's signals end a worker.

    What nothing here can help against: in a thread, `os._exit` and a crash in C end the worker (its runs start again
    elsewhere, `max_worker_deaths` times), and C code that keeps the GIL stops everything in this process while it does.
    Such handlers belong into processes.
    """

    def __init__(self, concurrency: int, target: str | None = None, settle: Settle | None = None) -> None:
        """`settle` makes of what a handler came to what `completed` gives, on the handler's own thread or loop; without
        it that is what it returned or raised."""
        self._concurrency, self._target, self._settle = concurrency, target, settle
        self._threads = ThreadPool(concurrency, settle=settle)
        self._loop: LoopPool | None = None
        self._processes: ProcessPool | None = None
        self._pools: list[ThreadPool | LoopPool | ProcessPool] = [self._threads]

    @property
    def abandoned(self) -> int:
        """Threads and coroutines held by handlers that were given up: their time was over, and they went on."""
        return self._threads.abandoned + (0 if self._loop is None else self._loop.abandoned)

    def submit(self, call: Call) -> None:
        if call.task is not None:
            self._process_pool().submit(call)
        elif call.asynchronous:
            self._loop_pool().submit(call)
        else:
            self._threads.submit(call)

    def _loop_pool(self) -> LoopPool:
        if self._loop is None:
            self._loop = LoopPool(self._concurrency, self._settle)
            self._pools.append(self._loop)
        return self._loop

    def _process_pool(self) -> ProcessPool:
        if self._processes is None:
            self._processes = ProcessPool(self._concurrency, self._target)
            self._pools.append(self._processes)
        return self._processes

    def completed(self) -> list[Done]:
        done: list[Done] = []
        for pool in self._pools:
            done += pool.completed()
        return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        wanted = set(tickets)
        return {ticket for pool in self._pools for ticket in pool.withdraw(wanted)}

    def stop(self, tickets: Iterable[int]) -> None:
        wanted = set(tickets)
        for pool in self._pools:
            pool.stop(wanted)

    def close(self, timeout_ms: int) -> bool:
        """Take no more calls, wait `timeout_ms` for the running ones, then cancel or kill them, or leave them behind.

        A handler that ignores the deadline keeps its thread: the process must end with `os._exit` then.
        """
        for pool in self._pools:
            pool.cease()
        deadline = time.monotonic() + timeout_ms / 1000
        ended = [pool.close(max(0, int((deadline - time.monotonic()) * 1000))) for pool in self._pools]
        if not all(ended):
            log.warning("handlers did not end in time", extra={"action": "executor.abandoned"})
        return all(ended)


class InlineExecutor:
    """`Executor` for simulation: a call runs inside `completed`, on the caller's thread, in order.

    With `hold` True nothing runs until it is False again, so a test decides how long handlers take.
    """

    def __init__(self) -> None:
        self.hold = False
        self._calls: deque[Call] = deque()

    def submit(self, call: Call) -> None:
        self._calls.append(call)

    def completed(self) -> list[Done]:
        done: list[Done] = []
        while self._calls and not self.hold:
            call = self._calls.popleft()
            run = run_coroutine(call.function) if call.asynchronous else call.function
            done.append(outcome(call.ticket, run))
        return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        wanted = set(tickets)
        gone = {call.ticket for call in self._calls if call.ticket in wanted}
        self._calls = deque(call for call in self._calls if call.ticket not in gone)
        return gone

    def stop(self, tickets: Iterable[int]) -> None:
        """A call runs to its end while it is collected: there is nothing to be ended."""

    def close(self, timeout_ms: int) -> bool:
        self._calls.clear()
        return True


def outcome(ticket: int, function: Callable[[], Any]) -> Done:
    """Call it; whatever it raises is its result."""
    try:
        return Done(ticket, function(), None)
    except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the worker
        return Done(ticket, None, error)


def run_coroutine(function: Callable[[], Any]) -> Callable[[], Any]:
    """The asynchronous function as a plain one, on an event loop of its own."""

    async def call() -> Any:
        return await function()

    return lambda: asyncio.run(call())
