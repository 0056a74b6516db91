"""How others find the running development store: `dev.json` and `dev.lock` in the state directory.

`dev.json` (mode 0600, replaced atomically, there from ready to stop) is one JSON object:
`bootstrap` "127.0.0.1:PORT" · `pid` of the broker · `started_at` epoch milliseconds · `cluster_id` · `server`, which
answers beside it: null, or its `url` and the `prefix` that it serves.
After a crash it may be stale, so its reader, `pipeline.config.running_dev_store`, also asks whether the pid
lives and the port answers.
`dev.lock` is held (flock) by the process that owns the broker for as long as that lives.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pipeline.config import DEV_STORE_FILE
from pipeline.core.errors import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStore:
    """The content of `dev.json`."""

    bootstrap: str
    pid: int
    started_at: int
    cluster_id: str
    server: Mapping[str, str] | None = None


class StoreTaken(Refused):
    """Another process runs the store of this state directory: use that one (`config.running_dev_store`)."""


def make_private(directory: Path) -> None:
    """Create `directory` with mode 0700, or make it so; OSError when it cannot be this user's own."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)


def hold_lock(state_dir: Path) -> IO[str]:
    """The held lock, released by closing it or by this process's death; StoreTaken if another has it."""
    file = (state_dir / "dev.lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StoreTaken(f"another process runs the embedded broker of {state_dir}") from None
    return file


def publish(state_dir: Path, store: RunningStore) -> None:
    """Write `dev.json`; only the holder of the lock may."""
    fresh = state_dir / f"{DEV_STORE_FILE}.new"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        json.dump(asdict(store), file)
    fresh.replace(state_dir / DEV_STORE_FILE)


def withdraw(state_dir: Path) -> None:
    """Remove `dev.json`; only the holder of the lock may."""
    (state_dir / DEV_STORE_FILE).unlink(missing_ok=True)
