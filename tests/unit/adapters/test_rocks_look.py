"""An index looked at while its owner has it open."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.adapters.rocks_index import RocksIndex
from pipeline.adapters.rocks_look import RocksLook, indexes_in
from pipeline.core.errors import Refused
from pipeline.ports import Action, Delta, Entry, Position

POSITION = Position("c", "t", "l", 7, 1, 99)


def put(index: RocksIndex, *keys: bytes) -> None:
    delta = Delta()
    for n, key in enumerate(keys):
        delta.put(Entry(key, 1_800_000_000_000 + n, n, Action.FIRE, b"v", "default/1"), None)
    delta.position = POSITION
    index.apply(3, delta)


def test_it_is_seen_as_it_was_at_that_moment_and_its_owner_goes_on(tmp_path: Path) -> None:
    with closing(RocksIndex(tmp_path / "index")) as index:
        put(index, b"a/1", b"a/2")
        before = sorted(path.name for path in (tmp_path / "index").iterdir())
        with closing(RocksLook(tmp_path / "index")) as look:
            put(index, b"a/3")
            assert [entry.record_key for entry in look.entries(3, None, 10)] == [b"a/1", b"a/2"]
            assert look.entry(3, b"a/2") == index.entry(3, b"a/2")
            assert look.position(3) == POSITION
            assert look.position(4) is None
            with pytest.raises(Exception, match="read only"):
                put(look, b"a/4")
        assert sorted(path.name for path in (tmp_path / "index").iterdir()) == before
        put(index, b"a/5")
        assert len(index.entries(3, None, 10)) == 4


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        RocksLook(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_the_indexes_of_a_state_directory(tmp_path: Path) -> None:
    assert indexes_in(tmp_path / "none") == []
    for slot in ("1", "0"):
        (tmp_path / "dispatcher" / slot / "index").mkdir(parents=True)
    (tmp_path / "dispatcher" / "2").mkdir()
    (tmp_path / "worker" / "0" / "index").mkdir(parents=True)
    assert indexes_in(tmp_path) == [tmp_path / "dispatcher" / slot / "index" for slot in ("0", "1")]
