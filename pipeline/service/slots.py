"""Slots: the private state directories that processes of one host claim by file lock (DESIGN §5.4).

A slot's number is part of its transactional ids, so a process that restarts in the same slot ends at once what
its predecessor left open. The instance id is random and lives in the state directory: a host that was cloned
with its directory is noticed by being fenced.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.core.errors import Refused

SLOTS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A claimed slot: its number, its private directory, and the instance id of this state directory."""

    number: int
    path: Path
    instance: str

    @property
    def process(self) -> str:
        """Unique per start."""
        return f"{self.instance}.{self.number}.{secrets.token_hex(4)}"


@contextmanager
def claimed_slot(state_dir: Path, role: str, number: int | None) -> Iterator[Slot]:
    """Hold slot `number`, or the lowest free one, of `role` while inside. Refused if it is taken, or the directory
    cannot be written."""
    try:
        slot, lock = _claim(state_dir, role, number)
    except OSError as error:
        raise Refused(
            f"state directory {state_dir} cannot be used: {error.strerror or error}:"
            " make it writable for this user, or set DUELINE_STATE_DIR to another"
        ) from error
    try:
        yield slot
    finally:
        os.close(lock)


def _claim(state_dir: Path, role: str, number: int | None) -> tuple[Slot, int]:
    """A slot and the descriptor that locks it. Refused if it is taken; OSError."""
    private(state_dir)
    instance = _instance(state_dir)
    root = private(state_dir / role)
    for candidate in range(SLOTS) if number is None else (number,):
        path = private(root / str(candidate))
        lock = _lock(path / "lock")
        if lock is not None:
            return Slot(number=candidate, path=path, instance=instance), lock
        if number is not None:
            raise Refused(f"slot: {role} slot {number} is held by process {_holder(path / 'lock')}")
    raise Refused(f"slot: all {SLOTS} {role} slots of {state_dir} are taken")


def renamed(slot: Slot, state_dir: Path) -> Slot:
    """The same slot under another instance id: the one that this directory has meanwhile if another process of it
    was faster, else a fresh one, written for all that start from now on. OSError."""
    path = state_dir / "instance"
    instance = path.read_text("ascii").strip()
    if instance == slot.instance:
        instance = secrets.token_hex(6)
        fresh = state_dir / f"instance.{secrets.token_hex(6)}"
        fresh.write_text(instance, "ascii")
        fresh.replace(path)
    return replace(slot, instance=instance)


def private(path: Path) -> Path:
    """`path` as a directory that only its owner can enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def _lock(path: Path) -> int | None:
    """A locked descriptor, released by the kernel when the process ends however it ends; None if taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%d" % os.getpid())
    return descriptor


def _holder(path: Path) -> str:
    return path.read_text("ascii").strip() or "unknown"


def _instance(state_dir: Path) -> str:
    """The instance id of this state directory, made once; two processes starting at once agree."""
    path = state_dir / "instance"
    fresh = state_dir / f"instance.{secrets.token_hex(6)}"
    if not path.exists():
        fresh.write_text(secrets.token_hex(6), "ascii")
        try:
            os.link(fresh, path)  # atomic, and fails if another process was first
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return path.read_text("ascii").strip()
