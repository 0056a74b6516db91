"""Slots and the loop."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.errors import RebuildClients, Refused
from pipeline.service import loop
from pipeline.service.loop import Stop, rebuilding, step_until
from pipeline.service.slots import claimed_slot


def test_slots_are_claimed_lowest_first_and_freed_at_the_end(tmp_path: Path) -> None:
    with (
        claimed_slot(tmp_path, "dispatcher", None) as first,
        claimed_slot(tmp_path, "dispatcher", None) as second,
    ):
        assert (first.number, second.number) == (0, 1)
        assert first.instance == second.instance
        assert first.process != second.process
    with claimed_slot(tmp_path, "dispatcher", None) as again:
        assert again.number == 0


def test_a_busy_slot_is_refused_naming_its_holder(tmp_path: Path) -> None:
    with (
        claimed_slot(tmp_path, "worker", 4),
        pytest.raises(Refused, match=f"slot 4 is held by process {os.getpid()}"),
        claimed_slot(tmp_path, "worker", 4),
    ):
        pass


def test_state_directories_are_private(tmp_path: Path) -> None:
    with claimed_slot(tmp_path / "state", "worker", None) as slot:
        for path in (tmp_path / "state", tmp_path / "state" / "worker", slot.path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_slot_is_free_again_after_its_process_was_killed(tmp_path: Path) -> None:
    hold = (
        "import sys, time, pathlib\n"
        "from pipeline.service.slots import claimed_slot\n"
        "with claimed_slot(pathlib.Path(sys.argv[1]), 'dispatcher', 0):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Refused), claimed_slot(tmp_path, "dispatcher", 0):
            pass
        holder.kill()
    with claimed_slot(tmp_path, "dispatcher", 0) as slot:
        assert slot.number == 0


class Told:
    def __init__(self) -> None:
        self.actions: list[str] = []

    def on(self, action: str, **fields: object) -> None:
        self.actions.append(action)


def test_the_loop_waits_as_long_as_the_step_asked() -> None:
    asked: list[int] = []
    waits = iter([7, 11, 0])

    def step(patience: int) -> int:
        asked.append(patience)
        return next(waits)

    step_until(step, lambda: len(asked) == 3)
    assert asked == [0, 7, 11]


def test_a_fatal_client_error_builds_everything_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.time, "sleep", lambda _: None)
    told, outcomes = Told(), iter([RebuildClients("fenced"), RebuildClients("fenced"), None])

    def run_once() -> None:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome

    rebuilding(run_once, Stop(), told)
    assert told.actions == ["rebuild", "rebuild"]


def test_any_other_error_is_not_swallowed() -> None:
    def run_once() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rebuilding(run_once, Stop(), Told())


def test_the_watchdog_ends_a_step_that_hangs() -> None:
    hang = (
        "from pipeline.service import loop\n"
        "import time\n"
        "loop.WATCHDOG_S = 0.3\n"
        "loop.step_until(lambda patience: time.sleep(30) or 0, lambda: False)\n"
    )
    done = subprocess.run([sys.executable, "-c", hang], capture_output=True, timeout=50, check=False)
    assert done.returncode != 0
    assert b"Timeout" in done.stderr


def test_a_state_directory_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with (
        pytest.raises(Refused, match=re.escape(str(blocked / "state"))),
        claimed_slot(blocked / "state", "worker", None),
    ):
        pass


def test_an_error_inside_a_slot_passes_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inside"), claimed_slot(tmp_path, "worker", None):
        raise OSError("inside")


def test_closing_an_index_does_not_hide_the_first_error(tmp_path: Path) -> None:
    class Broken:
        def close(self) -> None:
            raise Exception("IO error")

    index = RocksIndex(tmp_path / "index")
    index._db.close()
    index._db = Broken()  # type: ignore[assignment]
    index.close()
