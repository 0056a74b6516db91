"""Rows on disk: private, whole batches, damaged ones begun anew."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pipeline.adapters.rocks_rows import RocksRows
from pipeline.core.errors import Refused


def test_rows_in_order_and_backwards(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "rows")
    rows.write({b"b1": b"1", b"b2": b"2", b"b3": b"3", b"a": b"a", b"c": b"c"})
    assert [key for key, _ in rows.scan(b"b", b"c")] == [b"b1", b"b2", b"b3"]
    assert [key for key, _ in rows.scan_back(b"b", b"c")] == [b"b3", b"b2", b"b1"]
    assert [key for key, _ in rows.scan_back(b"b1", b"b3")] == [b"b2", b"b1"]
    rows.write({b"b2": None})
    assert rows.get_all([b"b1", b"b2"]) == [b"1", None]
    assert rows.get_all([]) == []
    rows.clear()
    assert [*rows.scan(b"", b"\xff")] == []
    rows.close()
    rows.close()


def test_one_that_cannot_write_any_more_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: whoever opens it next goes on from what is written."""
    rows = RocksRows(tmp_path / "rows")
    rows.close()

    class Full:
        def close(self) -> None:
            raise RuntimeError("Writer has previous error")

    monkeypatch.setattr(rows, "_db", Full())
    rows.close()
    assert "Writer has previous error" in caplog.text


def test_the_directory_is_private_and_one_process_s(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    rows = RocksRows(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with pytest.raises(Refused, match="cannot be opened"):
        RocksRows(path)
    rows.close()


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("mine")
    with pytest.raises(Refused):
        RocksRows(tmp_path / "rows")
    assert (tmp_path / "rows").read_text() == "mine"


def test_a_damaged_one_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = RocksRows(tmp_path / "rows")
    rows.write({b"k": b"v"})
    rows.close()
    for manifest in (tmp_path / "rows").glob("MANIFEST-*"):
        manifest.write_bytes(b"garbage" * 100)
    rows = RocksRows(tmp_path / "rows")
    assert rows.get(b"k") is None
    assert "wiped" in caplog.text
    rows.close()


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "rows")
    rows.close()
    (tmp_path / "rows" / "rocksdict-config.json").unlink()
    for manifest in (tmp_path / "rows").glob("MANIFEST-*"):
        manifest.write_bytes(b"garbage" * 100)
    with pytest.raises(Refused):
        RocksRows(tmp_path / "rows")
    assert (tmp_path / "rows" / "CURRENT").exists()
