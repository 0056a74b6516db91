"""Many jobs from one stream of lines, in constant memory: what a client's `schedule_many` does, but a bad line is told
and left out instead of ending it."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

from pipeline.client.bulk import CHUNK_AGE_MS, CHUNK_BYTES, CHUNK_JOBS, IN_FLIGHT, PUMP_JOBS, Chunk
from pipeline.client.connection import Connection
from pipeline.core.errors import DuelineError, InvalidInput, StoreUnreachable
from pipeline.core.jobref import JobRef
from pipeline.core.times import written_instant
from pipeline.server.access import Forbidden, Principal
from pipeline.server.body import field_of, job_request, lines, parse_json

PIECES = 16
"""Pieces of the body that wait to be taken at most."""
LINGER_S = 0.1
"""So long a thread waits for the next piece before it is given back: whoever sends without pauses keeps it."""
TURN_S = 0.5
"""How long at least, if others wait for a thread."""
REFS_LIMIT = 10_000
"""Lines of a stream whose references are told at most: they are held until its end."""
TOLD = 100
"""Bad lines that are told one by one."""
QUEUES_REMEMBERED = 100
MUCH = 0.25
"""Who needs less of the interpreter gets as much even beside others who want all of it."""
View = dict[str, Any]


class Pipe:
    """Pieces of a body from the event loop to the thread that takes them, a few at a time. No thread is kept while its
    client sends nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pieces: queue.Queue[bytes | BaseException | None] = queue.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._come = asyncio.Event()
        self._closed = False

    async def fill(self, body: AsyncIterator[bytes]) -> None:
        """Until the body ends or nobody takes any more."""
        try:
            async for piece in body:
                await self._room.wait()
                if self._closed:
                    return
                self._put(piece)
                if self._pieces.qsize() >= PIECES:
                    self._room.clear()
        except BaseException as error:
            self._put(error)
            raise
        self._put(None)

    def _put(self, piece: bytes | BaseException | None) -> None:
        self._pieces.put(piece)
        self._come.set()

    async def come(self) -> None:
        """Until there is something to take, if only the end."""
        while self._pieces.empty():
            self._come.clear()
            await self._come.wait()

    def take(self, others_wait: Callable[[], bool]) -> Iterator[bytes]:
        """On a thread; an empty piece where that is to be given back: nothing comes, or it is others' turn.
        CancelledError from what broke the body off."""
        began = time.monotonic()
        while True:
            try:
                piece = self._pieces.get(timeout=LINGER_S)
            except queue.Empty:
                yield b""
                began = time.monotonic()
                continue
            if self._pieces.qsize() == PIECES // 2:
                self._loop.call_soon_threadsafe(self._room.set)
            if piece is None:
                return
            if isinstance(piece, BaseException):
                raise CancelledError from piece
            yield piece
            if others_wait() and time.monotonic() - began >= TURN_S:
                yield b""
                began = time.monotonic()

    def close(self) -> None:
        """Nobody takes any more."""
        self._closed = True
        self._room.set()


class Effort:
    """How much of the time a thread computes, by clocks in seconds: its processor's and the wall's."""

    def __init__(
        self,
        computed: Callable[[], float] = time.thread_time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._computed, self._elapsed = computed, elapsed
        self._last = computed(), elapsed()

    def much(self) -> bool:
        """Whether it was more than `MUCH` of it since it was last asked."""
        before, self._last = self._last, (self._computed(), self._elapsed())
        computed, elapsed = (now - then for now, then in zip(self._last, before, strict=True))
        return computed > MUCH * elapsed


class Intake:
    """One stream. Used by one thread at a time. `admit_key` raises Forbidden for a key that who is limited to some
    queues must not touch. `refs`: the reference of each job is told."""

    def __init__(
        self,
        connection: Connection,
        who: Principal,
        default_queue: str,
        pieces: Iterable[bytes],
        admit_key: Callable[[object], None] = lambda key: None,
        *,
        refs: bool = False,
    ) -> None:
        self._connection = connection
        self._default_queue = default_queue
        self._who = who
        self._admit_key = admit_key
        self._record = connection.recorder().record
        self._lines = self._numbered(pieces)
        self._window: deque[Chunk] = deque()
        self._bad_queues: dict[str, InvalidInput] = {}
        self.accepted = self.rejected = 0
        self.errors: list[View] = []
        self.refs: list[JobRef] | None = [] if refs else None

    def run(self, busy: Callable[[], None] = lambda: None) -> bool:
        """Create the job of each line up to the next pause, or the end; all are confirmed when it returns. Whether that
        was the end. `busy` is called again and again while that takes much of this thread's time. StoreUnreachable,
        saying how many were confirmed; CancelledError if the body breaks off: what came before is stored."""
        clock, effort = self._connection.parts.clock.monotonic, Effort()
        chunk = Chunk(clock())
        ended = True
        try:
            for number, line in self._lines:
                if line is None:
                    ended = False
                    break
                if self.refs is not None and number > REFS_LIMIT:
                    problem = f"is one of more than {REFS_LIMIT} with `refs`: it and what follows is left out"
                    self._refuse(number, "line", problem)
                    break
                if line and not line.isspace():
                    self._take(number, line, chunk)
                if not number % PUMP_JOBS:
                    self._connection.pump(0)
                    if self._full(chunk, clock()):
                        self._send(chunk)
                        chunk = Chunk(clock())
                        if effort.much():
                            busy()
            self._settle(chunk)
        except CancelledError:
            self._settle(chunk)  # it is on its way: who left is told nothing, but the audit is
            raise
        except StoreUnreachable as error:
            raise StoreUnreachable(f"{error}; {self.accepted} jobs were confirmed before") from error
        return ended

    def _settle(self, chunk: Chunk) -> None:
        """Wait until all is confirmed."""
        self._send(chunk)
        while self._window:
            self._confirm()

    def view(self) -> View:
        """What became of the lines, once they have ended."""
        view: View = {"accepted": self.accepted, "rejected": self.rejected, "errors": self.errors}
        return view if self.refs is None else view | {"refs": [_ref(ref) for ref in self.refs]}

    def _numbered(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """All lines, and pauses (None); one that is too long ends it, told like a bad one."""
        read = 0
        try:
            for line in lines(pieces):
                read += line is not None
                yield read, line
        except InvalidInput as error:
            self._refuse(read + 1, error.field, f"{error.problem}: it and what follows is left out")

    def _take(self, number: int, line: bytes, chunk: Chunk) -> None:
        try:
            self._add(job_request(parse_json(line)), chunk)
        except InvalidInput as error:
            self._refuse(number, field_of(error), error.problem)
        except StoreUnreachable:
            raise
        except DuelineError as error:
            field = "queue" if isinstance(error, Forbidden) else "line"
            self._refuse(number, field, str(error).replace("the body", "it", 1))

    def _add(self, request: Mapping[str, Any], chunk: Chunk) -> None:
        connection, wanted = self._connection, request.get("queue")
        if self._who.queues is not None:
            self._who.require_queue(wanted if isinstance(wanted, str) else self._default_queue)
            if request.get("key") is not None:
                self._admit_key(request["key"])
        if isinstance(wanted, str) and wanted in self._bad_queues:
            raise self._bad_queues[wanted]
        try:
            recorded = self._record(request, connection.clock.now())
            if recorded is None:
                chunk.add(connection, request)
                return
        except InvalidInput as error:
            if (
                error.field == "queue"
                and isinstance(wanted, str)
                and len(self._bad_queues) < QUEUES_REMEMBERED
            ):
                self._bad_queues[wanted] = error
            raise
        ref, put = recorded
        connection.parts.appender.append(put, chunk.report)
        chunk.hold(ref, len(put.value or b""))

    def _refuse(self, number: int, field: str, message: str) -> None:
        self.rejected += 1
        if len(self.errors) < TOLD:
            self.errors.append({"line": number, "field": field, "message": message})

    @staticmethod
    def _full(chunk: Chunk, now: int) -> bool:
        old = now - chunk.opened >= CHUNK_AGE_MS
        return bool(chunk.refs) and (len(chunk.refs) >= CHUNK_JOBS or chunk.bytes >= CHUNK_BYTES or old)

    def _send(self, chunk: Chunk) -> None:
        self._window.append(chunk.seal())
        while len(self._window) > IN_FLIGHT or (self._window and self._window[0].delivery.future.done()):
            self._confirm()

    def _confirm(self) -> None:
        chunk = self._window.popleft()
        self._connection.pump_until(chunk.delivery)
        self.accepted += len(chunk.refs)
        if self.refs is not None:
            self.refs += chunk.refs


def _ref(ref: JobRef) -> View:
    return {"id": ref.id, "status": ref.status, "due_at": written_instant(ref.due_at)}
