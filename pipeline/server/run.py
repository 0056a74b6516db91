"""The process of `dueline server`: what it is put together from, its socket, its signals."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from pipeline.adapters.kafka_io import KafkaReader
from pipeline.adapters.kafka_queues import KafkaQueues
from pipeline.client import parts
from pipeline.client.connection import Connection
from pipeline.config import Settings
from pipeline.core.errors import DuelineError, InvalidInput, Refused, StoreUnreachable
from pipeline.ports import Events, Put, Reader
from pipeline.readmodel import Questions, ReadModel, retention_of
from pipeline.readmodel.kafka import connector
from pipeline.server.access import Access
from pipeline.server.actions import Actions
from pipeline.server.app import create_app, front_of
from pipeline.server.endpoint import Services
from pipeline.server.http import BoundedProtocol, Unread
from pipeline.server.limits import BESIDE_PAYLOAD, Rates
from pipeline.server.log import told
from pipeline.server.metrics import ServerMetrics
from pipeline.server.open_files import room_for
from pipeline.server.queue_changes import QueueChanges, QueueVerbs
from pipeline.server.recent import Recent
from pipeline.server.replay_changes import Replayer
from pipeline.server.serving import Serving
from pipeline.server.store import Store
from pipeline.server.tokens import Following, Tokens
from pipeline.service.log import LogEvents
from pipeline.service.slots import claimed_slot

BACKLOG = 2_048
CONNECTIONS = 2_000
"""Open connections, and requests, at the same time; more are answered 503."""
KEEP_ALIVE_S = 75
"""An idle connection is closed after so long: later than the usual proxies do it (60 s)."""
SWEEP_TICKS = 10
"""Ticks of the library, each a tenth of a second, between two looks for clients that do not read."""
GRACE_S = 10
"""How long requests may go on once the server is told to end."""
WRITE_S = 15.0
YOUNG = 10_000
"""Objects made between two looks for cycles among the young. At Python's 700 each look goes through what the requests
under way are made of and finds nothing, for a tenth of the processor time."""
Mount = Callable[..., None]


def run_server(settings: Settings, mount: Mount | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `mount` adds pages to the application. Refused if the address is taken, or not
    loopback while there is no token; InvalidInput for a host this machine does not have; StoreUnreachable if no store
    is named."""
    os.umask(0o077)
    events = LogEvents("server")
    with ExitStack() as stack:
        stack.enter_context(told(events))
        listening = stack.enter_context(bound(settings.server_host, settings.server_port))
        loopback = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
        slot = stack.enter_context(claimed_slot(settings.state_dir, "server", None))
        reader = KafkaReader(settings.require_bootstrap(), settings.kafka)
        stack.callback(reader.close)
        questions = ReadModel(
            slot.path / "readmodel" / settings.prefix, connector(settings), retention_of(settings)
        )
        stack.callback(questions.close)
        runner = stack.enter_context(asyncio.Runner(loop_factory=_new_loop))
        runner.run(_serve(settings, questions, reader, listening, loopback, events, mount))
    events.on("stopped")


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _serve(
    settings: Settings,
    questions: Questions,
    reader: Reader,
    listening: socket.socket,
    loopback: bool,
    events: Events,
    mount: Mount | None,
) -> None:
    server: Server | None = None
    app, front, services = assemble(
        settings,
        questions,
        reader,
        loopback=loopback,
        events=events,
        stopping=lambda: server is not None and server.should_exit,
    )
    assert services.tokens is not None
    await _read_tokens(services.tokens, settings, loopback, events)
    following = Following(services.tokens, lambda error: events.on("tokens_unread", reason=str(error)))
    if mount is not None:
        mount(
            app, questions=questions, actions=services.actions, access=services.access, name=settings.prefix
        )
    connections = room_for(CONNECTIONS)
    if connections < CONNECTIONS:
        events.on(
            "few_connections", connections=connections, reason="the system allows few open files (ulimit -n)"
        )
    config = config_of(front, limit_concurrency=connections)
    server = Server(config, lambda: _tell(services, listening, events))
    # What was made at the start lives on: to look for cycles in it again stops every request for a tenth of a second.
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    try:
        await server.serve(sockets=[listening])
    finally:
        await asyncio.to_thread(services.actions.replayer.close)
        await asyncio.to_thread(following.close)
        with suppress(StoreUnreachable):  # what was not confirmed was not answered either
            await services.store.close()


class Assembled(NamedTuple):
    """What pages are mounted on, what is served, and what both stand on."""

    app: FastAPI
    front: ASGIApp
    services: Services


def assemble(
    settings: Settings,
    questions: Questions,
    reader: Reader,
    *,
    loopback: bool,
    events: Events,
    stopping: Callable[[], bool] = lambda: False,
    connect: Callable[[], Connection] | None = None,
    queue_verbs: Callable[[], QueueVerbs] | None = None,
) -> Assembled:
    """The application of an event loop, the one that runs now. `reader` reads `meta`, and is its own."""

    def connected() -> Connection:
        return Connection(parts.connect(settings), settings)

    loop = asyncio.get_running_loop()
    store = Store(connect or connected, patience_ms=settings.store_timeout_ms)

    def now() -> int:
        connection = store.connected
        return time.time_ns() // 1_000_000 if connection is None else connection.clock.now()

    def write(puts: Sequence[Put]) -> None:
        """From any thread but the loop's. StoreUnreachable."""
        writing = asyncio.run_coroutine_threadsafe(store.append(puts), loop)
        try:
            writing.result(max(WRITE_S, 3 * settings.store_timeout_ms / 1000))
        except TimeoutError:
            writing.cancel()
            raise StoreUnreachable(
                "the store did not confirm in time: it may or may not have taken it"
            ) from None

    tokens = Tokens(
        topic=settings.names.meta,
        reader=reader,
        write=write,
        now=now,
        anew=lambda: events.on(
            "tokens_anew", reason="the topic meta was made anew, and its tokens count alone"
        ),
    )
    actions = Actions(store, questions, default_queue=settings.queue, events=events)
    actions.replayer = Replayer(connect or connected, events)
    actions.queues = QueueChanges(queue_verbs or (lambda: KafkaQueues(settings)))
    actions.tokens = tokens
    access = Access(tokens, loopback=loopback, now=now)
    services = Services(
        actions=actions,
        questions=questions,
        access=access,
        tokens=tokens,
        store=store,
        recent=Recent(),
        names=settings.names,
        stopping=stopping,
    )
    metrics = ServerMetrics()
    serving = Serving(
        services,
        rates=Rates(settings.server_rate),
        body_limit=settings.payload_limit + BESIDE_PAYLOAD,
        events=events,
        metrics=metrics,
    )
    app = create_app()
    return Assembled(app, front_of(app, services, serving, metrics), services)


async def _read_tokens(tokens: Tokens, settings: Settings, loopback: bool, events: Events) -> None:
    """Refused if anybody could come in. While the store is away nobody can: that is found out later."""
    try:
        await asyncio.to_thread(tokens.read)
    except DuelineError as error:
        events.on("tokens_unread", reason=str(error))
        return
    if not loopback and not tokens.any():
        raise Refused(
            f"{settings.server_host} can be reached from elsewhere, and there is no token yet: make one with"
            " `dueline token create NAME --role admin`, or serve this machine alone"
        )


def _tell(services: Services, listening: socket.socket, events: Events) -> None:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    access = "this machine alone: no token is configured" if services.access.open else "by token"
    events.on("started", url=f"http://{shown}:{port}", access=access)


# -- the process ---------------------------------------------------------------------------------------------


def config_of(app: ASGIApp, limit_concurrency: int = CONNECTIONS) -> uvicorn.Config:
    """Its bounds are ours; nothing of the library's own is logged but warnings."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limit_concurrency,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        ws_max_size=1024 * 1024,
    )


class Server(uvicorn.Server):
    """Ends well when it is told to, and says when it serves."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._unread = Unread()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            self._unread.sweep(self.server_state.connections, time.monotonic())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As the library does, but the signal is not raised once more at the end: it was heeded."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first one ends it politely, a second one at once."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)


@contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. InvalidInput for a host that this machine does not have; Refused if it is taken."""
    family, address = _resolved(host, port)
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(sock, address, host, port)
        sock.set_inheritable(True)
        yield sock
    finally:
        sock.close()


def _bind(sock: socket.socket, address: Any, host: str, port: int) -> None:
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput("DUELINE_SERVER_HOST", f"this machine has no address {host}") from error
        raise Refused(
            f"{host}:{port}: {error.strerror}: choose another with --port or DUELINE_SERVER_PORT"
        ) from error


def _resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput("DUELINE_SERVER_HOST", f"{host!r} cannot be resolved: {error.strerror}") from error
    return found[0][0], found[0][4]
