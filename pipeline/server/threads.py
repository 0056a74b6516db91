"""Threads for what blocks, some for each kind of work; who gets none in time is told, and not kept."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pipeline.core.errors import DuelineError

P = ParamSpec("P")
T = TypeVar("T")


class Busy(DuelineError):
    """Ask again in some seconds: nothing was begun."""


class Threads:
    """Used by the coroutines of one event loop. A thread whose coroutine was given up counts until it is done: what it
    waits for may never come, and all that wait behind it would wait as long."""

    def __init__(self, name: str, count: int, *, patience_s: float | None) -> None:
        """`patience_s`: how long one of `count` threads is waited for; None: for ever."""
        self._name = name
        self._count = count
        self._patience_s = patience_s
        self._pool = ThreadPoolExecutor(count, name)
        self._free = asyncio.Semaphore(count)
        self._waiting = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises Busy."""
        await self._taken()
        context = contextvars.copy_context()
        running = self._pool.submit(context.run, partial(function, *args, **kwargs))
        try:
            return await asyncio.wrap_future(running)
        finally:
            if running.done():
                self._free.release()
            else:
                running.add_done_callback(partial(self._released, asyncio.get_running_loop()))

    @property
    def waited_for(self) -> bool:
        """Whether somebody would begin if one were given back. Any thread."""
        return self._waiting > 0

    async def _taken(self) -> None:
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(
                f"all {self._count} threads of this server for such requests ({self._name}) are taken:"
                " ask again in some seconds"
            ) from None
        finally:
            self._waiting -= 1

    def _released(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the server with it
            loop.call_soon_threadsafe(self._free.release)

    def close(self) -> None:
        """Take nothing more; what runs goes on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
