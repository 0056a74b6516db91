"""The console over a made-up installation, in a thread of the test process; or by hand, to look at."""

from __future__ import annotations

import argparse
import socket
import threading
import time

import uvicorn
from browser.fake import Book, Questions, Store
from browser.fake_actions import Actions
from browser.made import now_ms
from fastapi import FastAPI

from pipeline.server.access import Access, Role, TokenRecord, new_secret
from pipeline.server.console import mount_console


class Served:
    """`url` of it; `tokens` by role."""

    def __init__(self, store: Store, *, port: int = 0, tokens: bool = True) -> None:
        self.store = store
        self.book = Book()
        self.tokens = {role: self.token(role) for role in Role} if tokens else {}
        app = FastAPI()
        self.access = access = Access(self.book, loopback=True, now=now_ms)
        questions, actions = Questions(store), Actions(store, self.book)
        mount_console(app, questions=questions, actions=actions, access=access, name="dueline-staging")  # type: ignore[arg-type]
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def start(self) -> Served:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline, "the server has not started within 30 s"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(15)

    def token(self, role: Role, *, queues: frozenset[str] | None = None) -> str:
        token_id, secret, digest = new_secret("dl")
        self.book.put(
            TokenRecord(
                id=token_id,
                name=f"ana-{role.word}",
                role=role,
                digest=digest,
                created_at=0,
                created_by="test",
                queues=queues,
            )
        )
        return secret

    def cookie(self, token: str) -> str:
        """Of a new session."""
        return self.access.log_in(token)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--tokens", action="store_true")
    given = parser.parse_args()
    served = Served(Store(), port=given.port, tokens=given.tokens).start()
    print(served.url, served.tokens, flush=True)
    try:
        threading.Event().wait()
    finally:
        served.stop()
