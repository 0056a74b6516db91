"""The server's one connection to the store: appends that the event loop awaits, calls in threads, and an early word
when the store is away.

A producer would take records for half a minute while no broker answers, and each request would wait its time-out to
learn what the one before it has learnt. So once a record was not confirmed in time nothing is tried any more until
the store has answered a question of ours.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from pipeline.client.connection import Connection
from pipeline.core.errors import DuelineError, NotFound, StoreUnreachable
from pipeline.ports import Put, Scan
from pipeline.readmodel.questions import Position
from pipeline.server.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")

CALLS, READS, LOOKS, SLOW, STREAMS = 32, 8, 4, 6, 6
"""Threads that ask owners, that ask the read model, that ask it for what costs much, for what takes long (replays, bulk
changes), and for what lasts as long as a client likes."""
LONG_WAIT_S, STREAM_WAIT_S = 2.0, 8.0
"""How long a thread for the last two is waited for; less than clients wait for an answer (10 s)."""
AGAIN_S = 1.0
"""So often a store that is away is asked whether it is back."""
AWAY = "the store does not answer at the moment: nothing was begun"


class Confirmation:
    """Reports of some records that one coroutine waits for together. The future's result: their offsets, -1 where the
    store did not say."""

    __slots__ = ("_heard", "_offsets", "_tell", "future")

    def __init__(
        self, count: int, tell: Callable[[Confirmation], None], future: asyncio.Future[list[int]]
    ) -> None:
        self._offsets = [-1] * count
        self._heard: list[Exception | None] = []
        self._tell = tell
        self.future = future

    def report(self, number: int, error: Exception | None, offset: int, _log_append_time: int) -> None:
        """From whatever thread takes reports, several at once while streams are stored: `list.append` is atomic where
        `-= 1` is not. It may be told twice, never not at all."""
        self._offsets[number] = offset
        self._heard.append(error)
        if len(self._heard) == len(self._offsets):
            self._tell(self)

    def settle(self) -> bool:
        """On the event loop: wake who waits. Whether all are stored."""
        error = next((each for each in self._heard if each is not None), None)
        if not self.future.done():
            if error is None:
                self.future.set_result(self._offsets)
            else:
                self.future.set_exception(_passing(error))
        return error is None

    def give_up(self) -> None:
        """On the event loop: nobody shall wait any longer."""
        if not self.future.done():
            self.future.set_exception(TimeoutError())


def _passing(error: Exception) -> Exception:
    """A topic that was there when the layout was read is not gone: the store is coming back."""
    if isinstance(error, NotFound):
        return StoreUnreachable(f"{error}: the store may be coming back, ask again")
    return error


class Store:
    """Used by the coroutines of one event loop; `call` and `read` run what they are given in a thread."""

    def __init__(self, connect: Callable[[], Connection], *, patience_ms: int) -> None:
        """`connect` raises StoreUnreachable, Refused. `patience_ms`: after so long without a word of it the store
        counts as unreachable."""
        self._connect = connect
        self._patience_s = patience_ms / 1000
        self._calls = Threads("ask", CALLS, patience_s=self._patience_s)
        self._reads = Threads("read", READS, patience_s=self._patience_s)
        self._looks = Threads("look", LOOKS, patience_s=self._patience_s)
        self._slow = Threads("long", SLOW, patience_s=LONG_WAIT_S)
        self._streams = Threads("stream", STREAMS, patience_s=STREAM_WAIT_S)
        self._link = Threads("link", 1, patience_s=None)
        """Finds the store, and finds it again: not behind what takes long."""
        self._connection: Connection | None = None
        self._finding: asyncio.Task[Connection] | None = None
        self._scanning = threading.Lock()
        self._scan: Scan | None = None
        self._settled: deque[Confirmation] = deque()
        self._woken = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._away: asyncio.Task[None] | None = None
        self._problem: StoreUnreachable | None = None
        self._failed_at = float("-inf")

    # -- the connection ---------------------------------------------------------------------------------------

    @property
    def connected(self) -> Connection | None:
        return self._connection

    @property
    def problem(self) -> str | None:
        """Why the store counts as unreachable, in one line."""
        return None if self._problem is None else str(self._problem)

    async def connection(self) -> Connection:
        """Raises StoreUnreachable, at once while it is known to be away; Refused if its topics are missing."""
        if self._connection is not None:
            if self._problem is not None:  # its words are for who waited in vain, and may have had it done
                raise StoreUnreachable(AWAY)
            return self._connection
        if self._finding is None or self._finding.done():
            if self._problem is not None and time.monotonic() - self._failed_at < AGAIN_S:
                raise StoreUnreachable(str(self._problem))
            self._finding = asyncio.ensure_future(self._found())
            self._finding.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._finding)  # whoever gives up leaves what comes to the others

    async def _found(self) -> Connection:
        try:
            connection = await self._link.run(self._connect)
        except StoreUnreachable as error:
            self._problem, self._failed_at = error, time.monotonic()
            raise
        self._connection, self._problem = connection, None
        return connection

    def suspect(self, error: StoreUnreachable) -> None:
        """Somebody waited in vain: nobody else shall, until the store answers again."""
        if self._connection is not None and self._problem is None:
            self._problem = error
            self._away = asyncio.ensure_future(self._until_back(self._connection))

    async def _until_back(self, connection: Connection) -> None:
        while True:
            try:
                await self._link.run(connection.parts.load_layout)
            except Exception:  # noqa: BLE001 -- whatever it is, who gave up here would answer 503 for ever
                await asyncio.sleep(AGAIN_S)
            else:
                self._problem = None
                return

    # -- appending --------------------------------------------------------------------------------------------

    async def append(self, puts: Sequence[Put]) -> list[Position]:
        """Append these and wait until all are durable; where they stand. StoreUnreachable: they may be, or not."""
        connection = await self.connection()
        loop = self._loop = asyncio.get_running_loop()
        confirmation = Confirmation(len(puts), self._reported, loop.create_future())
        for number, put in enumerate(puts):
            connection.parts.appender.append(put, partial(confirmation.report, number))
        # Not `asyncio.timeout`, which costs four times as much.
        late = loop.call_later(self._patience_s, confirmation.give_up)
        try:
            offsets = await confirmation.future
        except TimeoutError:
            error = StoreUnreachable(
                f"the store did not confirm within {self._patience_s:g} s: it may or may not have taken it"
            )
            self.suspect(error)
            raise error from None
        finally:
            late.cancel()
        return [Position(put.topic, put.partition, offset) for put, offset in zip(puts, offsets, strict=True)]

    def _reported(self, confirmation: Confirmation) -> None:
        """From the poller's thread. The loop is woken once for all that has come, not once for each."""
        self._settled.append(confirmation)
        if not self._woken and self._loop is not None:
            self._woken = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._woken = False  # before the queue is emptied: what comes from now on wakes anew
        while self._settled:
            self._settled.popleft().settle()

    # -- in threads: each raises Busy if none is free in time ---------------------------------------------------

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What asks owners or the store, and is over soon."""
        try:
            return await self._calls.run(function, *args, **kwargs)
        except StoreUnreachable as error:
            self.suspect(error)
            raise

    async def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What asks the read model."""
        return await self._reads.run(function, *args, **kwargs)

    async def look(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What asks the read model for much, or the log: pages need not wait for it."""
        return await self._looks.run(function, *args, **kwargs)

    async def slowly(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What may take long, and must not keep the others waiting."""
        return await self._slow.run(function, *args, **kwargs)

    async def streaming(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What comes in for as long as its client likes, as much of it as has come: to be given back while nothing
        does, and when others wait (`streams_wait`). More than `STREAMS` wait for each other, and for nothing else."""
        return await self._streams.run(function, *args, **kwargs)

    def streams_wait(self) -> bool:
        """Whether somebody waits for a thread of `streaming`. Any thread."""
        return self._streams.waited_for

    # -- where the log ends -----------------------------------------------------------------------------------

    async def end_of(self, topic: str, partition: int) -> Position | None:
        """Behind all that is committed there now, so behind what an answer that was heard tells of; None if the store
        does not say."""
        try:
            end = await self.call(self._end, topic, partition)
        except DuelineError:
            return None
        return Position(topic, partition, end - 1) if end else None

    def _end(self, topic: str, partition: int) -> int:
        assert self._connection is not None
        with self._scanning:
            if self._scan is None:
                self._scan = self._connection.parts.open_scan()
            return self._scan.span(topic, partition).end

    async def close(self) -> None:
        """Flush what is in flight. StoreUnreachable."""
        if self._away is not None:
            self._away.cancel()
        if self._finding is not None and not self._finding.done():
            with suppress(DuelineError, TimeoutError):
                async with asyncio.timeout(self._patience_s):
                    await self._finding
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                await asyncio.to_thread(connection.close, round(self._patience_s * 1000))
        finally:
            if self._scan is not None:
                self._scan.close()
            for each in (self._calls, self._reads, self._looks, self._slow, self._streams, self._link):
                each.close()
