"""Ports for servers that are started later."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, EACH = 10_000, 20
_next = count()


def free_port() -> int:
    """Below those that the kernel gives to whoever asks for any (from 32768): nobody else gets it in the meantime. Each
    process has a stretch of its own, each call another one of it."""
    stretch = FIRST + os.getpid() % 1_000 * EACH
    for _ in range(EACH):
        port = stretch + next(_next) % EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port is free from {stretch} on")
