"""The store on disk that a backup folds into: as the one in memory that other tests use."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from unit.backup.town import MemoryScratch

from pipeline.adapters.scratch import rocks_scratch
from pipeline.core.errors import Refused


def test_it_keeps_what_one_in_memory_keeps(tmp_path: Path) -> None:
    random, other = Random(3), MemoryScratch()
    with rocks_scratch(tmp_path / "scratch") as scratch:
        assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o700
        for _ in range(50):
            rows = {
                bytes([random.randrange(3), random.randrange(40)]): random.choice((None, random.randbytes(9)))
                for _ in range(random.randrange(20))
            }
            scratch.write(rows)
            other.write(rows)
            key = bytes([random.randrange(3), random.randrange(40)])
            assert scratch.get(key) == other.get(key)
        for prefix in (b"", b"\0", b"\1", b"\2", b"\3"):
            assert list(scratch.scan(prefix)) == list(other.scan(prefix))
    assert not (tmp_path / "scratch").exists()


def test_a_scan_does_not_see_what_is_written_meanwhile(tmp_path: Path) -> None:
    with rocks_scratch(tmp_path / "scratch") as scratch:
        scratch.write({b"a1": b"x", b"a2": b"x"})
        seen = []
        for key, _ in scratch.scan(b"a"):
            seen.append(key)
            scratch.write({b"a" + key + b"+": b"y", b"a3": b"y"})
        assert seen == [b"1", b"2"]


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be used"), rocks_scratch(tmp_path / "no" / "scratch"):
        pass
