"""What asks a server, in a process of its own and at little cost: requests as bytes over connections that stay open.

    python -m pipeline.dev.bench.server_load post PORT CONNECTIONS COUNT    jobs, one a request
    python -m pipeline.dev.bench.server_load get PORT CONNECTIONS FILE      the paths that stand in it, one a line
    python -m pipeline.dev.bench.server_load stream PORT COUNT              jobs as lines of one request

prints a line of JSON: `elapsed_ms`, and `times` of the requests in ms, in the order of their ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.core.errors import DuelineError
from pipeline.dev.bench.load import HANDLER, PAYLOADS, payloads

HOST = "127.0.0.1"
JOBS = "/api/v1/jobs"
PIECE = 64 * 1024
PATIENCE_S = 300.0
SPREAD_MIN = 24
"""Jobs are due in as many minutes one after the other, half a day from now."""


def body_of(number: int, pool: Sequence[dict[str, Any]]) -> bytes:
    """A far job as JSON."""
    job = {"handler": HANDLER, "payload": pool[number % PAYLOADS], "in": f"{720 + number % SPREAD_MIN}m"}
    return json.dumps(job, separators=(",", ":")).encode()


def lines(count: int) -> Iterator[bytes]:
    """So many jobs, a line each, in pieces of any length: the same thousand again and again."""
    pool = payloads()
    block = [body_of(number, pool) + b"\n" for number in range(PAYLOADS)]
    whole = b"".join(block)
    for _ in range(count // PAYLOADS):
        yield from (whole[at : at + PIECE] for at in range(0, len(whole), PIECE))
    if left := count % PAYLOADS:
        yield b"".join(block[:left])


def post(body: bytes) -> bytes:
    head = f"POST {JOBS} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


def piece(data: bytes) -> bytes:
    """A piece of a body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM = (
    f"POST {JOBS} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/x-ndjson\r\n"
    "transfer-encoding: chunked\r\n\r\n"
).encode()


class Answers:
    """Whole answers out of what a connection brings. DuelineError for one that is no success."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> bytes | None:
        """The body of the answer if it is complete now."""
        self._rest += data
        head, found, body = self._rest.partition(b"\r\n\r\n")
        if not found:
            return None
        begin = head.lower().find(b"content-length:")
        size = int(head[begin + 15 :].partition(b"\r\n")[0]) if begin >= 0 else 0
        if len(body) < size:
            return None
        if head[9:10] != b"2":
            raise DuelineError(f"the server answered {head[9:12].decode()}: {body[:300].decode()}")
        self._rest = body[size:]
        return body[:size]


class Caller(asyncio.Protocol):
    """Sends one request after the other until there are none, each when the one before it is answered."""

    def __init__(self, requests: Iterator[bytes], times: list[float]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests, self._times, self._answers = requests, times, Answers()
        self._transport: Any = None
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._end(None)
        else:
            self._sent = time.perf_counter()
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        try:
            if self._answers.take(data) is None:
                return
        except DuelineError as error:
            self._end(error)
            return
        self._times.append((time.perf_counter() - self._sent) * 1000)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(DuelineError(f"the server closed a connection: {exc}"))

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
        self.close()

    def close(self) -> None:
        self._transport.close()


async def ask(port: int, connections: int, requests: Iterator[bytes]) -> list[float]:
    """Send all of these, each over the next connection that is free; how long each took, ms."""
    loop, times = asyncio.get_running_loop(), list[float]()
    callers = []
    try:
        for _ in range(connections):
            _, caller = await loop.create_connection(lambda: Caller(requests, times), HOST, port)
            callers.append(caller)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(caller.done for caller in callers))
    finally:
        for caller in callers:
            caller.close()
    return times


async def stream(port: int, count: int) -> list[float]:
    """Send so many jobs as one body, and wait until all are accepted."""
    reader, writer = await asyncio.open_connection(HOST, port)
    answers, began, answer = Answers(), time.perf_counter(), None
    with closing(writer):
        async with asyncio.timeout(PATIENCE_S):
            writer.write(STREAM)
            for data in lines(count):
                writer.write(piece(data))
                await writer.drain()
            writer.write(piece(b""))
            while answer is None:
                data = await reader.read(PIECE)
                if not data:
                    raise DuelineError("the server closed the connection")
                answer = answers.take(data)
    took = (time.perf_counter() - began) * 1000
    if json.loads(answer)["accepted"] != count:
        raise DuelineError(f"not all of {count} were accepted: {answer[:300].decode()}")
    return [took]


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """As the command line says; what is printed."""
    match arguments:
        case ["post", port, connections, count]:
            pool = payloads()
            requests = [post(body_of(number, pool)) for number in range(int(count))]
            asking = partial(ask, int(port), int(connections), iter(requests))
        case ["get", port, connections, file]:
            requests = [get(path) for path in Path(file).read_text().split()]
            asking = partial(ask, int(port), int(connections), iter(requests))
        case ["stream", port, count]:
            asking = partial(stream, int(port), int(count))
        case _:
            raise SystemExit(__doc__)
    began = time.perf_counter()
    times = asyncio.run(asking())
    return {"elapsed_ms": (time.perf_counter() - began) * 1000, "times": times}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1:])) + "\n")
