"""The process of a server: its socket, its end, and connections that do not keep to the rules."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from pipeline.core.errors import InvalidInput, Refused
from pipeline.server import http
from pipeline.server.run import Server, bound, config_of

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    else:
        while scope["path"] == "/read" and (await receive()).get("more_body"):
            pass
        await PlainTextResponse("hello")(scope, receive, send)


async def talk(port: int, *pieces: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(65_536), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def served(*conversations: tuple[bytes, ...]) -> list[bytes]:
    """What a server answers to each of these."""

    async def run() -> list[bytes]:
        with bound("127.0.0.1", 0) as listening:
            ready = asyncio.Event()
            server = Server(config_of(app), ready.set)
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            await asyncio.wait_for(ready.wait(), 20)
            answers = [await talk(listening.getsockname()[1], *pieces) for pieces in conversations]
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(serving, 20)
            return answers

    return asyncio.run(run())


def test_it_serves_until_it_is_told_to_end() -> None:
    (answer,) = served((HEAD + b"\r\n",))
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"hello")
    assert b"server:" not in answer.lower()


def test_a_head_has_bounds() -> None:
    too_much, too_many, in_one, nonsense, good = served(
        (HEAD, b"X: " + b"x" * 40_000, b"\r\n\r\n"),
        (HEAD + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + b"\r\n",),
        (HEAD + b"X: " + b"x" * 60_000 + b"\r\n\r\n",),
        (b"nonsense\r\n\r\n",),
        (HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n",),
    )
    for answer in (too_much, in_one):
        assert answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400")) or answer == b""
    assert too_many.startswith(b"HTTP/1.1 431")
    assert nonsense.startswith(b"HTTP/1.1 400")
    assert good.startswith(b"HTTP/1.1 200")


def test_a_head_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    began = time.monotonic()
    assert served((HEAD,), (), (b"GET",)) == [b"", b"", b""]
    assert time.monotonic() - began < 15


def test_a_connection_that_sends_bytes_of_no_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    began = time.monotonic()
    unread = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    for first, more in ((HEAD + b"\r\n", b"\r\n"), (unread, b"x")):
        answer, rest = kept(first, more)
        assert answer.startswith(b"HTTP/1.1 200")
        assert rest == b"", "closed, and nothing more was said"
    assert time.monotonic() - began < 15


def test_a_body_that_ends_after_its_answer_leaves_the_connection_open() -> None:
    unread = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
    _, rest = kept(unread, b"x", b"x", HEAD + b"Connection: close\r\n\r\n")
    assert rest.startswith(b"HTTP/1.1 200")


def test_trailers_have_the_bounds_of_a_head() -> None:
    chunked = b"POST /read HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    endless, short = served(
        (chunked, *[b"X: " + b"x" * 20_000] * 100),
        (chunked + b"X: 1\r\n\r\n" + HEAD + b"Connection: close\r\n\r\n",),
    )
    assert endless == b"" or endless.startswith(b"HTTP/1.1 431")
    assert short.startswith(b"HTTP/1.1 200")


def test_a_body_in_a_coding_that_nobody_decodes_is_refused() -> None:
    head = b"POST /read HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: "
    coded, plain = served(
        (head + b"gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",),
        (head + b"chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",),
    )
    assert coded.startswith(b"HTTP/1.1 400")
    assert plain.startswith(b"HTTP/1.1 200")


def test_requests_that_do_not_wait_for_answers_have_bounds() -> None:
    many, few = served(
        ((HEAD + b"\r\n") * 1_000,),
        ((HEAD + b"\r\n") * 5 + HEAD + b"Connection: close\r\n\r\n",),
    )
    assert b"HTTP/1.1 400" in many or many == b""
    assert many.count(b"HTTP/1.1 200") <= http.PIPELINED + 1
    assert few.count(b"HTTP/1.1 200") >= 1


def kept(first: bytes, *more: bytes) -> tuple[bytes, bytes]:
    """The answer to `first`, and what comes after `more`, each sent on its own once that was read."""

    async def talk_on(port: int) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(first)
            answer = await asyncio.wait_for(reader.readuntil(b"hello"), 20)
            for piece in more:
                writer.write(piece)
                await writer.drain()
            return answer, await asyncio.wait_for(reader.read(65_536), 20)
        finally:
            writer.close()

    async def run() -> tuple[bytes, bytes]:
        with bound("127.0.0.1", 0) as listening:
            ready = asyncio.Event()
            server = Server(config_of(app), ready.set)
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            await asyncio.wait_for(ready.wait(), 20)
            told = await talk_on(listening.getsockname()[1])
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(serving, 20)
            return told

    return asyncio.run(run())


def test_a_large_body_with_its_head_is_no_large_head() -> None:
    large = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    (answer,) = served((large,))
    assert answer.startswith(b"HTTP/1.1 200")


def test_an_address_that_is_taken_or_not_ours_is_told() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Refused, match="--port"),
        bound("127.0.0.1", taken.getsockname()[1]),
    ):
        pass
    for host in ("203.0.113.1", "nowhere.invalid"):
        with pytest.raises(InvalidInput) as error, bound(host, 0):
            pass
        assert error.value.field == "DUELINE_SERVER_HOST"


def test_numbers_of_any_size_go_out_as_they_are() -> None:
    from pipeline.server.body import to_json

    assert json.loads(to_json({"n": 2**200, "t": "<&>\u2028"})) == {"n": 2**200, "t": "<&>\u2028"}
    assert "<" not in to_json("<script>")
    with pytest.raises(ValueError, match="Out of range"):
        to_json(float("nan"))
