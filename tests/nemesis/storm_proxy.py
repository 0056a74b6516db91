"""A wire between one process and the broker that can be made to hang, in either direction, or be cut.

Brokers tell clients their own address, so a proxy in front would be left at once: the process is started with a
library that sends `connect` to the proxy instead. Needs a C compiler, so it is for storms by hand.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
int connect(int fd, const struct sockaddr *to, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    const char *from = getenv("STORM_BROKER_PORT"), *port = getenv("STORM_PROXY_PORT");
    struct sockaddr_in other;
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    if (from && port && to->sa_family == AF_INET && ((const struct sockaddr_in *)to)->sin_port == htons(atoi(from))) {
        memcpy(&other, to, sizeof other);
        other.sin_port = htons(atoi(port));
        return real(fd, (struct sockaddr *)&other, sizeof other);
    }
    return real(fd, to, length);
}
"""


def build_shim(home: Path) -> Path:
    source, library = home / "shim.c", home / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


class Wire(threading.Thread):
    """Listens on a port of its own and passes everything on to the broker."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        host, _, port = bootstrap.rpartition(":")
        self._broker = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self._requests, self._answers = asyncio.Event(), asyncio.Event()

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._requests.set()
        self._answers.set()
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()

    def env(self, shim: Path) -> dict[str, str]:
        self._listening.wait(10)
        return {
            "LD_PRELOAD": str(shim),
            "STORM_BROKER_PORT": str(self._broker[1]),
            "STORM_PROXY_PORT": str(self.port),
        }

    def hang(self, *, requests: bool, answers: bool) -> None:
        """Hold back what is sent from now on, in these directions; it arrives when `flow` is called."""
        if requests:
            self._loop.call_soon_threadsafe(self._requests.clear)
        if answers:
            self._loop.call_soon_threadsafe(self._answers.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._requests.set)
        self._loop.call_soon_threadsafe(self._answers.set)

    def cut(self) -> None:
        """Every connection breaks off; what was held back is gone."""

        def close() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(close)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, there = await asyncio.open_connection(*self._broker)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there}
        await asyncio.gather(
            self._pump(reader, there, self._requests), self._pump(theirs, writer, self._answers)
        )
        for one in (writer, there):
            self._writers.discard(one)
            one.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                await gate.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        target.transport.abort()
