"""The bare loops beside a server: one job a request through a minimal application that produces it and waits for the
report, and lines of JSON that are parsed and produced.

The first is a process of its own, as the server is: `python -m pipeline.dev.bench.server_bare TOPIC PARTITIONS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import pipeline
from pipeline.config import Settings, load_settings
from pipeline.core.errors import StoreUnreachable
from pipeline.dev.bench.bare import SILENT, TIMEOUT_S, plain
from pipeline.dev.bench.figures import per_second
from pipeline.dev.demo.cast import environment
from pipeline.dev.process import spawn, stop

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

STOP_TIMEOUT_S = 5.0
POLL_S = 0.1
POLL_EVERY = 1_000
PATH = "/api/v1/jobs"


def topic(settings: Settings, partitions: int) -> str:
    """A new one for bare jobs; it is deleted with all others of the prefix."""
    name = f"{settings.prefix}.bare-posted-{secrets.token_hex(4)}"
    admin = AdminClient({**settings.client_config(), **SILENT})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(TIMEOUT_S)
    return name


# -- one job a request -----------------------------------------------------------------------------------------


@contextmanager
def bare_server(settings: Settings, topic: str, partitions: int) -> Iterator[int]:
    """Inside, the minimal application serves; its port. StoreUnreachable if it ends before it does."""
    process = spawn(
        [sys.executable, "-m", "pipeline.dev.bench.server_bare", topic, str(partitions)],
        env=environment(settings, os.environ),
        cwd=Path(pipeline.__file__).parents[1],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        told = process.stdout.readline()
        if not told:
            raise StoreUnreachable(f"{topic}: a bare server ended before it was ready")
        yield int(told)
    finally:
        stop(process, STOP_TIMEOUT_S)
        if process.stdout is not None:
            process.stdout.close()


def main(topic: str, partitions: int) -> None:
    """Until it is killed: parse a body, produce it, answer once it is reported."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    producer, number = plain(load_settings()), 0

    def poll() -> None:
        while True:
            producer.poll(POLL_S)

    async def create(request: Request) -> Response:
        nonlocal number
        number += 1
        loop, job = asyncio.get_running_loop(), json.loads(await request.body())
        future: asyncio.Future[None] = loop.create_future()

        def stored(error: Any, _message: Any) -> None:
            end = future.cancel if error is not None else lambda: future.set_result(None)
            loop.call_soon_threadsafe(end)

        value, key = json.dumps(job).encode(), b"%027d" % number
        producer.produce(topic, value, key, number % partitions, on_delivery=stored)
        await future
        return JSONResponse({"id": key.decode(), "status": "created"}, 201)

    threading.Thread(target=poll, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        app = Starlette(routes=[Route(PATH, create, methods=["POST"])])
        config = uvicorn.Config(app, http="httptools", loop="uvloop", access_log=False, log_level="error")
        uvicorn.Server(config).run([listening])


# -- lines -----------------------------------------------------------------------------------------------------


def streamed(settings: Settings, topic: str, partitions: int, pieces: Iterable[bytes]) -> float:
    """Parse each line of these pieces and produce it, with a report for each; lines a second."""
    producer, confirmed, number, rest = plain(settings), 0, 0, b""

    def report(error: Any, _message: Any) -> None:
        nonlocal confirmed
        confirmed += error is None

    began = time.perf_counter()
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            number += 1
            value = json.dumps(json.loads(line)).encode()
            producer.produce(topic, value, b"%027d" % number, number % partitions, on_delivery=report)
            if not number % POLL_EVERY:
                producer.poll(0)
    producer.flush(TIMEOUT_S)
    rate = per_second(number, (time.perf_counter() - began) * 1000)
    if confirmed != number:
        raise StoreUnreachable(f"{topic}: {confirmed} of {number} confirmed")
    return rate


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
