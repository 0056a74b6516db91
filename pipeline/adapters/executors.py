"""Where handlers run: threads and one asyncio loop, or, for simulation, inside the caller."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pipeline.ports import Call, Done

log = logging.getLogger(__name__)


class HandlerExecutor:
    """`Executor` for plain and `async def` handlers.

    A plain handler takes one of `concurrency` threads; an asynchronous one runs on a single event loop in its
    own thread, at most `concurrency` of them at once, the others waiting their turn. Whatever a handler
    raises, SystemExit and KeyboardInterrupt too, is a result: only the supervisor's signals end a worker.
    """

    def __init__(self, concurrency: int) -> None:
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="handler")
        self._done: queue.SimpleQueue[Done] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="async-handlers", daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        if call.asynchronous:
            self._loop.call_soon_threadsafe(self._spawn, call)
        else:
            self._pool.submit(self._run, call)

    def _serve(self) -> None:
        # A SystemExit in a task that a handler made goes through run_forever, and a handler may stop its loop:
        # the loop is whole after either, and the other handlers need it.
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException:
                log.exception("a handler's task tried to end the process", extra={"action": "executor.exit"})

    def _stop(self) -> None:
        self._closing = True
        self._loop.stop()

    def _run(self, call: Call) -> None:
        self._done.put(outcome(call.ticket, call.function))

    def _spawn(self, call: Call) -> None:
        task = self._loop.create_task(self._run_async(call))
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _run_async(self, call: Call) -> None:
        async with self._slots:
            self._done.put(await outcome_async(call.ticket, call.function))

    def completed(self) -> list[Done]:
        done: list[Done] = []
        while True:
            try:
                done.append(self._done.get_nowait())
            except queue.Empty:
                return done

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        return set()

    def stop(self, tickets: Iterable[int]) -> None:
        """Nothing here can be ended from outside yet."""

    def close(self, timeout_ms: int) -> bool:
        """Take no more calls, wait `timeout_ms` for the running ones, then leave them behind.

        A handler that ignores the deadline keeps its thread: the process must end with `os._exit` then.
        """
        waiter = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        waiter.start()
        stopping = asyncio.run_coroutine_threadsafe(self._drain(timeout_ms / 1000), self._loop)
        waiter.join(timeout_ms / 1000)
        unfinished = stopping.result()
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._loop.close()
        if waiter.is_alive() or unfinished:
            log.warning("handlers did not end in time", extra={"action": "executor.abandoned"})
            return False
        return True

    async def _drain(self, timeout: float) -> int:
        """Wait for the asynchronous calls, cancel the rest; the number of those cancelled."""
        if not self._tasks:
            return 0
        _, pending = await asyncio.wait(self._tasks, timeout=timeout)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return len(pending)


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


async def outcome_async(ticket: int, function: Callable[[], Awaitable[Any]]) -> Done:
    """Await it; whatever it raises is its result, a cancellation of its own included."""
    try:
        return Done(ticket, await function(), None)
    except BaseException as error:  # noqa: BLE001 - see `outcome`
        return Done(ticket, None, error)


def run_coroutine(function: Callable[[], Any]) -> Callable[[], Any]:
    """The asynchronous function as a plain one, on an event loop of its own."""

    async def call() -> Any:
        return await function()

    return lambda: asyncio.run(call())
