"""The store of a running `dueline dev`, found by its file in the state directory (DESIGN §10)."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

DEV_STORE_FILE = "dev.json"
"""In the state directory, by the embedded broker: {"bootstrap", "pid", "started_at", "cluster_id"}, and once a server
runs beside it {"server": {"url", "prefix"}}."""


def running_dev_store(state_dir: Path) -> str | None:
    """Bootstrap address of the embedded broker of this state directory, if it runs; waits at most 0.3 s.

    A pid alone proves nothing (it may have been given to another process since), so the port must answer too.
    """
    try:
        found = json.loads((state_dir / DEV_STORE_FILE).read_text("utf-8"))
        bootstrap, pid = str(found["bootstrap"]), int(found["pid"])
        host, _, port = bootstrap.rpartition(":")
        target = host.strip("[]"), int(port)
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no file, or one torn by a crash: nothing was promised, so nothing runs
    return bootstrap if _alive(pid) and _answers(target) else None


def dev_server(state_dir: Path, prefix: str | None = None) -> str | None:
    """URL of the server that runs beside the embedded broker, if one was started there, of this prefix if one is given.
    Whether it answers is not looked at."""
    try:
        server = json.loads((state_dir / DEV_STORE_FILE).read_text("utf-8"))["server"]
        return str(server["url"]) if prefix in (None, server["prefix"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False  # gone, or another user's since
    return True


def _answers(target: tuple[str, int]) -> bool:
    try:
        socket.create_connection(target, timeout=0.3).close()
    except (OSError, OverflowError):
        return False
    return True
