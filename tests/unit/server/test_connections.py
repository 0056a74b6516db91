"""Clients that do not read what they asked for, and how many there may be."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from uvicorn.server import ServerState

from pipeline.server import http, open_files
from pipeline.server import run as running
from pipeline.server.http import READ_BYTES, READ_S, BoundedProtocol, Unread
from pipeline.server.limits import COME
from pipeline.server.run import Server, bound, config_of

LARGE = 32 * 1024 * 1024


@dataclass(eq=False)
class Transport:
    size: int = 0
    aborted: bool = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True


@dataclass(eq=False)
class Connection:
    transport: Transport = field(default_factory=Transport)
    drained: int = 0


def test_who_reads_nothing_is_cut_off_and_who_reads_slowly_is_not() -> None:
    deaf, slow, stream, idle = Connection(), Connection(), Connection(), Connection()
    deaf.transport.size, slow.transport.size, stream.transport.size = 100, 20 * READ_BYTES, 70_000
    unread, now = Unread(), 0.0
    everybody = (deaf, slow, stream, idle)
    for _ in range(4):
        unread.sweep(everybody, now)
        now += READ_S / 2
        slow.transport.size -= READ_BYTES // 2
        stream.drained += 1
    assert [each.transport.aborted for each in everybody] == [True, False, False, False]
    for _ in range(4):  # a little, now and then, is not enough
        unread.sweep((slow,), now)
        now += READ_S / 2
        slow.transport.size -= 100
    assert slow.transport.aborted


def test_who_has_read_all_begins_anew() -> None:
    connection, unread = Connection(), Unread()
    for size in (100, 0, 100):
        connection.transport.size = size
        unread.sweep((connection,), {100: 0.0, 0: READ_S - 1}[size] if size == 0 else 0.0)
    unread.sweep((connection,), READ_S - 0.1)
    assert not connection.transport.aborted
    unread.sweep((connection,), READ_S)
    assert connection.transport.aborted


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["path"] == "/large":
        await PlainTextResponse(b"x" * LARGE)(scope, receive, send)
    elif scope["path"] == "/stream":

        async def pieces() -> Any:
            while True:
                yield b"x" * 100_000
                await asyncio.sleep(0)  # to a client that is gone the library sends without waiting

        await StreamingResponse(pieces())(scope, receive, send)
    else:
        await PlainTextResponse("hello")(scope, receive, send)


def serving(talk: Callable[[Server, int], Awaitable[None]], limit: int = 100) -> None:
    async def run() -> None:
        with bound("127.0.0.1", 0) as listening:
            ready = asyncio.Event()
            server = Server(config_of(app, limit), ready.set)
            ended = asyncio.ensure_future(server.serve(sockets=[listening]))
            await asyncio.wait_for(ready.wait(), 20)
            try:
                await asyncio.wait_for(talk(server, listening.getsockname()[1]), 20)
            finally:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.wait_for(ended, 20)

    asyncio.run(run())


@pytest.mark.parametrize("path", [b"/large", b"/stream"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_an_answer_that_nobody_reads_is_given_up(
    monkeypatch: pytest.MonkeyPatch, path: bytes, close: bytes
) -> None:
    monkeypatch.setattr(http, "READ_S", 0.2)
    monkeypatch.setattr(running, "SWEEP_TICKS", 1)

    async def talk(server: Server, port: int) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n")
            state = server.server_state
            while not state.connections:
                await asyncio.sleep(0.01)
            while state.connections or state.tasks:
                await asyncio.sleep(0.01)

    serving(talk)


def test_more_connections_than_there_may_be_are_told_and_closed() -> None:
    async def talk(_: Server, port: int) -> None:
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        answers = [await reader.read(1_000) for reader, _ in opened[2:]]
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
        assert all(b"Too many connections" in answer for answer in answers)
        opened[0][1].close()
        opened[2][1].close()
        opened[3][1].close()
        reader, writer = opened[1]
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await reader.read(1_000)
        writer.close()

    serving(talk, limit=2)


@pytest.mark.parametrize(
    ("files", "connections"), [(65_536, 2_000), (3_000, 2_000), (2_500, 1_500), (1_024, 512), (256, 128)]
)
def test_connections_leave_files_for_what_the_server_itself_has_open(files: int, connections: int) -> None:
    assert open_files.possible(2_000, files) == connections


def test_the_soft_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = [(1_024, 524_288)]
    monkeypatch.setattr("resource.getrlimit", lambda _: limits[-1])
    monkeypatch.setattr("resource.setrlimit", lambda _, pair: limits.append(pair))
    assert open_files.room_for(2_000) == 2_000
    assert limits[-1] == (524_288, 524_288)
    limits.append((1_024, 1_024))
    assert open_files.room_for(2_000) == 512
    limits.append((1_024, open_files.resource.RLIM_INFINITY))
    assert open_files.room_for(2_000) == 2_000
    assert limits[-1][0] == open_files.ENOUGH


class Wire(asyncio.Transport):
    """To nobody."""

    def write(self, data: object) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False


def test_a_request_tells_when_its_body_has_come() -> None:
    """Then nobody sets a timer for it (`limits.pieces_of`)."""

    async def silent(_scope: object, _receive: object, _send: object) -> None:
        await asyncio.Event().wait()

    async def run() -> list[bool]:
        config = config_of(silent)
        config.load()
        protocol = BoundedProtocol(config, ServerState(), {})
        protocol.connection_made(Wire())
        told = []
        for piece in (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"a", b"b"):
            protocol.data_received(piece)
            told.append(COME in protocol.scope)
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        told.append(COME in protocol.scope)
        protocol.connection_lost(None)
        return told

    assert asyncio.run(run()) == [False, False, True, False]
