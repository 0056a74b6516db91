"""What a backup is made of, and the hold that a restore leaves on the dispatch (docs/backup.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HoldState(StrEnum):
    """How far a restore is."""

    RESTORING = "restoring"
    """Records are being written: not all of them may be there."""
    HELD = "held"
    """All of them are there; it is for an operator to say when they fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """`hold` on `meta`: no dispatcher settles anything while it stands (schemas/hold.avsc). `id` = the backup,
    `at` = when its restore began by the store's clock, epoch ms; `era` = the era that began with it."""

    id: str
    state: HoldState
    at: int
    era: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupHeader:
    """One header of a record."""

    name: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRecord:
    """One record in a container file of a backup (schemas/backup_record.avsc). `topic` has no prefix, `at` is the
    LogAppendTime in epoch ms; `starts` and `token` are of an open run."""

    topic: str
    partition: int
    offset: int
    at: int
    key: bytes
    value: bytes
    headers: tuple[BackupHeader, ...] = ()
    starts: int = 0
    token: int | None = None
