"""A server over the store and the read model in memory, asked through its own application."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipeline import codec
from pipeline.adapters.memory import MemoryReader
from pipeline.client.connection import Connection
from pipeline.config import load_settings
from pipeline.core import queues
from pipeline.core.keys import queue_key
from pipeline.core.queues import Pause, Purge, QueueState
from pipeline.core.times import parse_duration
from pipeline.ports import Put
from pipeline.readmodel import session
from pipeline.readmodel.memory import memory_readmodel
from pipeline.server.access import Role, TokenRecord, new_secret
from pipeline.server.run import assemble

DAY_MS = parse_duration("day", "1d")


class Told:
    """`Events` that are remembered."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def on(self, action: str, **fields: Any) -> None:
        self.lines.append((action, fields))


class MemoryQueues:
    """`QueueVerbs` over a store in memory."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.states: dict[str, QueueState | None] = {}

    def pause(self, queue: str, pause: Pause) -> QueueState:
        return self._put(queue, queues.paused(self.states.get(queue), queue, pause))

    def resume(self, queue: str, by: str, at: int) -> QueueState | None:
        state = queues.resumed(self.states.get(queue), queue, by, at)
        return None if state is None else self._put(queue, state)

    def purge(self, queue: str, purge: Purge) -> Purge:
        state = self._put(queue, queues.purged(self.states.get(queue), queue, purge))
        assert state.purge is not None
        return state.purge

    def topic_id(self, queue: str) -> str:
        return f"id of {queue}"

    def _put(self, queue: str, state: QueueState) -> QueueState:
        self.states[queue] = state
        value = codec.EVENT.encode(queues.to_event(state))
        self._store.cluster.append(Put(self._store.names.meta, 0, queue_key(queue), value))
        return state


class Served:
    """A server whose event loop runs in a thread. `ask` is one request; `token` makes a token and gives it."""

    def __init__(self, store: Any, home: Path, *, loopback: bool = True, **settings: Any) -> None:
        self.store = store
        for topic, partitions in ((store.names.meta, 1), (store.names.dead, 1)):
            if not store.cluster.partitions(topic):
                store.cluster.create_topic(topic, partitions)
        self.settings = load_settings(prefix=store.names.prefix, state_dir=str(home), **settings)
        self.questions = memory_readmodel(
            store.cluster, store.names, store.layout, store.clock, home / "readmodel"
        )
        self.events = Told()
        self.queues = MemoryQueues(store)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        _, self.app, self.services = self.run(self._assemble(loopback))
        self.run(self._read_tokens())
        deadline = time.monotonic() + 30
        while not self.questions.freshness().ready:  # as a server does: until then it denies nothing
            assert time.monotonic() < deadline, self.questions.freshness()
            time.sleep(0.005)

    async def _assemble(self, loopback: bool) -> Any:
        return assemble(
            self.settings,
            self.questions,
            MemoryReader(self.store.cluster),
            loopback=loopback,
            events=self.events,
            connect=lambda: Connection(self.store.connect(), self.settings),
            queue_verbs=lambda: self.queues,
        )

    async def _read_tokens(self) -> None:
        assert self.services.tokens is not None
        self.services.tokens.read()

    def run(self, coroutine: Any, timeout: float = 30) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def ask(self, method: str, path: str, token: str | None = None, **request: Any) -> httpx.Response:
        """`path` without /api/v1, unless it begins with another /."""
        headers = {"host": "localhost", **request.pop("headers", {})}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        address = path if path.startswith("//") else f"/api/v1{path}"

        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, address.replace("//", "/", 1), headers=headers, **request)

        response: httpx.Response = self.run(asked())
        return response

    def get(self, path: str, **request: Any) -> httpx.Response:
        return self.ask("GET", path, **request)

    def post(self, path: str, body: Any = None, **request: Any) -> httpx.Response:
        given = {} if body is None else {"json": body}
        return self.ask("POST", path, **given, **request)

    def token(self, role: str = "admin", *queues: str, lasts: int | None = DAY_MS, name: str = "tess") -> str:
        now = self.store.clock.now()
        id_, secret, digest = new_secret("dl")
        record = TokenRecord(
            id=id_,
            name=name,
            role=Role.of(role),
            digest=digest,
            queues=frozenset(queues) or None,
            created_at=now,
            created_by="test",
            expires_at=None if lasts is None else now + lasts,
        )
        assert self.services.tokens is not None
        self.services.tokens.put(record)
        return str(secret)

    def hurry(self) -> None:
        """From now on a store that says nothing counts as away soon; what was asked before had the usual time."""
        self.services.store._patience_s = 0.2

    def audits(self, *, begun: bool = False) -> list[Any]:
        """Those of how something came out, else those of changes of many that begin."""
        found = []
        for partition in range(self.store.layout.partitions):
            log = self.store.cluster.partition(self.store.names.events, partition)
            found += [codec.EVENT.decode(record.value()) for record in log.read(0, 10_000)[0]]
        audits = [event for event in found if event.kind == "audit"]
        return [event for event in audits if (event.outcome == "begun") is begun]

    def close(self) -> None:
        self.run(self.services.store.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.questions.close()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read model looks up often, so that it also ends soon."""
    monkeypatch.setattr(session, "POLL_MS", 10)


@pytest.fixture
def serve(store: Any, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(**more: Any) -> Served:
        made.append(Served(store, tmp_path / str(len(made)), **more))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def served(serve: Callable[..., Served]) -> Served:
    """One that has no tokens and is open to this machine."""
    return serve()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
