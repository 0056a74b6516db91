"""Threads for plain handlers.

One queue feeds all threads. What a pool for general use spends most on, a lock hand-over and a wake-up for every call,
is kept from the common path: a thread that ends one call takes the next from the queue by itself, and at most one
thread is being woken at any time; that one wakes the next before it begins its own call. So a burst of short calls
is done by few threads without switching, and a slow call holds up none of those behind it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pipeline.core.handler import Stopped, TimedOut
from pipeline.ports import Call, Done

log = logging.getLogger(__name__)

_process = [os.getpid()]
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


Settle = Callable[[Any, BaseException | None], tuple[Any, BaseException | None]]


class _Limit(NamedTuple):
    began: float
    deadline: float
    timeout_ms: int


class ThreadPool:
    """Up to `size` calls at once, in order of `submit`. Threads are started when they are first needed and keep no
    process from ending.

    A call whose time is over is reported as TimedOut, and another thread takes the place of the one it holds, `size`
    times at most: beyond that the pool has fewer free threads, until handlers that were given up come back.
    All methods are for the owner's thread.
    """

    def __init__(self, size: int, name: str = "handler", settle: Settle | None = None) -> None:
        """`settle`: see HandlerExecutor."""
        self._size, self._name, self._settled_by = size, name, settle
        self._calls: deque[Call] = deque()
        self._done: deque[Done] = deque()
        self._limits: dict[int, _Limit] = {}
        """By ticket, of running calls. Whoever takes an entry out says what became of the call."""
        self._idle: list[threading.Lock] = []
        """Of each thread that waits, the lock it waits for."""
        self._waking = False
        """A thread is on its way that will look at the queue after it has cleared this."""
        self._count = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._overdue = 0
        self._short = True
        """Fewer threads than there may be."""
        self._closed = False

    @property
    def abandoned(self) -> int:
        """Threads held by handlers that were given up."""
        return self._overdue

    # -- the owner's side -----------------------------------------------------------------------------------

    def submit(self, call: Call) -> None:
        self._calls.append(call)
        if not self._waking and (self._idle or self._short):
            self._wake()

    def completed(self) -> list[Done]:
        if self._limits:
            self._expire(time.monotonic())
        return drain(self._done)

    def withdraw(self, tickets: Iterable[int]) -> set[int]:
        gone = take_back(self._calls, set(tickets))
        if self._calls and not self._waking:
            self._wake()  # a thread may have found the queue empty meanwhile
        return {call.ticket for call in gone}

    def stop(self, tickets: Iterable[int]) -> None:
        """What has begun cannot be ended from outside."""
        self._done.extend(never_begun(self.withdraw(tickets)))

    def cease(self) -> None:
        """Begin no further call."""
        self._closed = True
        self._calls.clear()
        while self._idle:
            self._idle.pop().release()

    def close(self, timeout_ms: int) -> bool:
        """Whether all calls ended within the time."""
        self.cease()
        deadline = time.monotonic() + timeout_ms / 1000
        for thread in self._threads.copy():
            thread.join(max(0.0, deadline - time.monotonic()))
        return not self._threads

    def _expire(self, now: float) -> None:
        for ticket, limit in self._limits.copy().items():
            if limit.deadline <= now and self._limits.pop(ticket, None) is not None:
                self._done.append(Done(ticket, None, timed_out(limit.timeout_ms), limit.began, now))
                with self._count:
                    self._overdue += 1
                    self._settle()
                if self._calls:
                    self._wake()

    # -- a thread's side ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        mine = threading.Lock()
        mine.acquire()
        calls, done, limits, now, process = (
            self._calls,
            self._done,
            self._limits,
            time.monotonic,
            process_id(),
        )
        error: BaseException | None
        value: Any
        self._waking, settle = False, self._settled_by
        while True:
            try:
                call = calls.popleft()
            except IndexError:
                if self._wait(mine):
                    continue
                return
            if calls and not self._waking and (self._idle or self._short):
                self._wake()
            ticket, function, _, timeout_ms, *_ = call
            began = now()
            if timeout_ms is not None:
                limits[ticket] = _Limit(began, began + timeout_ms / 1000, timeout_ms)
            try:
                value, error = function(), None
            except BaseException as raised:  # noqa: BLE001 - a handler's SystemExit must not end the worker
                value, error = None, raised
            ended = now()
            end_if_copy(process, error)
            if settle is not None and (value is not None or error is not None):
                value, error = settle(value, error)
            if timeout_ms is None or limits.pop(ticket, None) is not None:
                done.append(Done(ticket, value, error, began, ended))
            elif self._surplus():
                return
            call = function = value = error = None  # type: ignore[assignment]  # nothing is kept while we wait

    def _wait(self, mine: threading.Lock) -> bool:
        """Until there may be work; False once there is no more to come."""
        if self._closed:
            self._leave()
            return False
        self._idle.append(mine)
        if self._calls or self._closed:  # put there, perhaps, by somebody who did not see us wait
            try:
                self._idle.remove(mine)
            except ValueError:
                pass  # being woken already
            else:
                return True
        mine.acquire()
        self._waking = False
        return True

    def _wake(self) -> None:
        """One more thread shall look at the queue. Any thread may ask."""
        self._waking = True
        try:
            self._idle.pop().release()
        except IndexError:
            if not self._start():  # a thread that starts clears it itself
                self._waking = False

    def _start(self) -> bool:
        with self._count:
            if not self._short or self._closed:
                return False
            thread = threading.Thread(
                target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.add(thread)
            self._settle()
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads in this system: those that there are must do
            log.warning("no further thread: %s", problem, extra={"action": "executor.thread"})
            self._forget(thread)
            return False
        return True

    def _settle(self) -> None:
        """Under the lock: say whether there may be more threads."""
        self._short = len(self._threads) < self._size + min(self._overdue, self._size)

    def _surplus(self) -> bool:
        """A handler that was given up has come back; whether its thread is one too many now."""
        with self._count:
            self._overdue -= 1
            surplus = len(self._threads) > self._size + min(self._overdue, self._size)
            if surplus:
                self._threads.discard(threading.current_thread())
            self._settle()
        return surplus

    def _leave(self) -> None:
        self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        with self._count:
            self._threads.discard(thread)
            self._settle()


def process_id() -> int:
    """As os.getpid, without asking the kernel."""
    return _process[0]


def end_if_copy(process: int, error: BaseException | None) -> None:
    """A handler that forks may come back twice, the second time in a copy of `process` that has no work to do."""
    if _process[0] != process:
        os._exit(0 if error is None else 1)


def drain(done: deque[Done]) -> list[Done]:
    """Take what there is; others may be adding to it."""
    take = done.popleft
    return [take() for _ in range(len(done))]


def take_back(calls: deque[Call], tickets: set[int]) -> list[Call]:
    """Take the calls with these tickets out of a queue that other threads take from at the same time: each call is
    either taken by one of them, and begins, or by us. Only the caller's thread may add to the queue."""
    kept: list[Call] = []
    gone: list[Call] = []
    while tickets and calls:
        try:
            call = calls.popleft()
        except IndexError:
            break
        (gone if call.ticket in tickets else kept).append(call)
    calls.extendleft(reversed(kept))
    return gone


def never_begun(tickets: Iterable[int]) -> list[Done]:
    """The outcome of calls that were stopped while they waited for their turn."""
    now = time.monotonic()
    return [Done(ticket, None, Stopped("stopped before it began"), now, now) for ticket in tickets]


def timed_out(timeout_ms: int) -> TimedOut:
    return TimedOut(f"not done within {timeout_ms / 1000:g} s")
