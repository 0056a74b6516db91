"""An index that its owner has open, looked at from another process."""

from __future__ import annotations

from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from pipeline.adapters.rocks_index import RocksIndex
from pipeline.core.errors import Refused


class RocksLook(RocksIndex):
    """The index at `path` as it is when this is made: what is written later is not seen, and nothing can be changed.

    Its owner's lock does not matter: nothing is written, the write-ahead log is read into memory. Refused if it cannot
    be read.
    """

    def _open(self, path: Path) -> Rdict:
        if not (path / "CURRENT").exists():  # opened all the same, it would come into being
            raise Refused(f"index {path} cannot be read: there is none")
        try:
            return Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())
        except Exception as error:
            raise Refused(f"index {path} cannot be read: {error}") from error


def indexes_in(state_dir: Path) -> list[Path]:
    """Where the dispatchers of this state directory keep their indexes."""
    return sorted(path for path in state_dir.glob("dispatcher/*/index") if path.is_dir())
