"""`dev.json` and `dev.lock`: how a running store is found."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import dev_server, running_dev_store
from pipeline.dev.running import RunningStore, StoreTaken, hold_lock, make_private, publish, withdraw


def test_published_store_is_found_until_withdrawn(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        store = RunningStore(bootstrap=address, pid=os.getpid(), started_at=1_700_000_000_000, cluster_id="c")
        publish(tmp_path, store)
        publish(tmp_path, store)  # a restart replaces it
        assert running_dev_store(tmp_path) == address
        assert stat.S_IMODE((tmp_path / "dev.json").stat().st_mode) == 0o600
        assert json.loads((tmp_path / "dev.json").read_text()) == {
            "bootstrap": address,
            "pid": os.getpid(),
            "started_at": 1_700_000_000_000,
            "cluster_id": "c",
            "server": None,
        }
        assert dev_server(tmp_path) is None
        beside = {"url": "http://127.0.0.1:9664", "prefix": "p"}
        publish(tmp_path, replace(store, server=beside))
        assert (dev_server(tmp_path), dev_server(tmp_path, "p")) == (beside["url"], beside["url"])
        assert dev_server(tmp_path, "other") is None
        withdraw(tmp_path)
        assert running_dev_store(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == []


def test_the_lock_has_one_holder(tmp_path: Path) -> None:
    with hold_lock(tmp_path), pytest.raises(StoreTaken, match=str(tmp_path)):
        hold_lock(tmp_path)
    hold_lock(tmp_path).close()


def test_state_directory_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("open", "new/below"):
        make_private(tmp_path / name)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
