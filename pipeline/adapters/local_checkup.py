"""Looks at this machine's state directory for the doctor; changes nothing there and takes no lock."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.adapters.rocks_look import RocksLook
from pipeline.core.errors import Refused
from pipeline.doctor.facts import LocalIndex, LocalState
from pipeline.partition import SEEN


def local_state(state_dir: Path, partitions: int) -> LocalState:
    """`partitions` of `jobs`. Refused if the directory, or an index in it, cannot be read."""
    try:
        return LocalState(
            path=str(state_dir),
            free_bytes=shutil.disk_usage(_standing(state_dir)).free,
            private=not state_dir.exists() or not stat.S_IMODE(state_dir.stat().st_mode) & 0o077,
            writable=os.access(_standing(state_dir), os.W_OK | os.X_OK),
            instance=_instance(state_dir),
            indexes=tuple(_indexes(state_dir / "dispatcher", partitions)),
        )
    except OSError as error:
        raise Refused(f"state directory {state_dir} cannot be read: {error.strerror}") from error


def _standing(path: Path) -> Path:
    """The directory itself, or the nearest above it that exists."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def _instance(state_dir: Path) -> str:
    file = state_dir / "instance"
    return file.read_text("ascii").strip() if file.exists() else ""


def _indexes(root: Path, partitions: int) -> Iterator[LocalIndex]:
    slots = (each for each in root.glob("[0-9]*") if each.name.isdecimal())
    for slot in sorted(slots, key=lambda each: int(each.name)):
        path = slot / "index"
        if (path / "CURRENT").exists():  # RocksDB's own: without it nothing was ever opened there
            yield _index(int(slot.name), path, range(partitions))


def _index(slot: int, path: Path, partitions: range) -> LocalIndex:
    look = RocksLook(path)
    try:
        positions = {n: position for n in partitions if (position := look.position(n)) is not None}
        zones = {n: version.decode() for n in positions if (version := look.fact(n, SEEN)) is not None}
    finally:
        look.close()
    return LocalIndex(slot=slot, positions=positions, zone_data=zones)
