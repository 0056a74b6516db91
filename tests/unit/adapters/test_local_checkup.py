"""What the doctor sees of a state directory, also while a dispatcher has its index open."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.adapters.local_checkup import local_state
from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.errors import Refused
from pipeline.partition import SEEN
from pipeline.ports import Delta, Position

POSITION = Position("cluster", "topic", "layout", 17, 1, 1_800_000_000_000)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    (tmp_path / "instance").write_text("abc123\n")
    return tmp_path


def test_an_index_is_read_beside_its_owner(state: Path) -> None:
    index = RocksIndex(state / "dispatcher" / "10" / "index")
    delta = Delta()
    delta.position, delta.facts[SEEN] = POSITION, b"2026c"
    index.apply(3, delta)
    (state / "dispatcher" / "2").mkdir()
    found = local_state(state, 5)
    assert (found.path, found.instance, found.private, found.writable) == (str(state), "abc123", True, True)
    assert found.free_bytes > 0
    (here,) = found.indexes
    assert (here.slot, here.positions, here.zone_data) == (10, {3: POSITION}, {3: "2026c"})
    index.apply(4, delta)  # its owner goes on
    index.close()
    assert {*local_state(state, 5).indexes[0].positions} == {3, 4}


def test_a_directory_that_is_not_there_yet_is_one_that_can_be_made(tmp_path: Path) -> None:
    found = local_state(tmp_path / "no" / "such", 5)
    assert (found.instance, found.private, found.writable, found.indexes) == ("", True, True, ())
    assert not (tmp_path / "no").exists()


def test_one_that_others_may_read_is_told(state: Path) -> None:
    state.chmod(0o750)
    assert not local_state(state, 5).private


def test_what_cannot_be_read_is_refused_by_its_name(state: Path) -> None:
    index = state / "dispatcher" / "0" / "index"
    index.mkdir(parents=True)
    (index / "CURRENT").write_text("garbage")
    with pytest.raises(Refused, match=f"index {index} cannot be read"):
        local_state(state, 5)
    (state / "dispatcher" / "0" / "index" / "CURRENT").unlink()
    (state / "instance").unlink()
    (state / "instance").mkdir()
    with pytest.raises(Refused, match=f"state directory {state} cannot be read"):
        local_state(state, 5)
