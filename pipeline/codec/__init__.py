"""Values of the topics to bytes and back: Avro single-object encoding, and JSON for commands (DESIGN §3).

One `Codec` per file of `schemas/`: `RUN.encode(run)`, `RUN.decode(data)`. Decoding raises Undecodable, of
which UnknownFingerprint is a kind, and nothing else, whatever the bytes (H27).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.codec import ack_wire, event_wire, highest_wire, schedule_wire
from pipeline.codec.acks import AckWriter
from pipeline.codec.commands import decode_json, is_json
from pipeline.codec.plain import peek_plain, plain_again
from pipeline.codec.plain_schedule import PlainSchedule, peek_schedule, read_rules
from pipeline.codec.registry import Codec, Registry, schema_dir
from pipeline.codec.run_wire import RunHead
from pipeline.codec.straight import RunCodec, Straight
from pipeline.core.backup import BackupHeader, BackupRecord, Hold
from pipeline.core.job import (
    Ack,
    AttemptRecord,
    Command,
    DeadLetter,
    Event,
    Failure,
    GroupGuard,
    Heartbeat,
    Held,
    Highest,
    InFlight,
    KeyState,
    Offered,
    Owned,
    ReplayBatch,
    Run,
    Takeover,
)
from pipeline.core.layout import Layout
from pipeline.core.schedule import Backfill, OpenRun, Recent, Schedule
from pipeline.core.spec import ScheduleSpec

__all__ = [
    "ACK",
    "BACKUP_RECORD",
    "COMMAND",
    "DEAD_LETTER",
    "ERA",
    "EVENT",
    "GROUP_GUARD",
    "HEARTBEAT",
    "HIGHEST",
    "HOLD",
    "KEY_STATE",
    "LAYOUT",
    "OFFERED",
    "REPLAY_BATCH",
    "RUN",
    "SCHEDULE",
    "TAKEOVER",
    "AckWriter",
    "Codec",
    "Era",
    "PlainSchedule",
    "Registry",
    "RunHead",
    "decode_command",
    "fingerprints",
    "known",
    "peek_plain",
    "peek_run",
    "peek_schedule",
    "plain_again",
    "read_rules",
    "schema_dir",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """The era of an installation, on `meta`: the leading part of every fencing token, 0 to 255."""

    era: int


_VALUES: tuple[type, ...] = (
    Ack,
    AttemptRecord,
    Backfill,
    BackupHeader,
    BackupRecord,
    Command,
    DeadLetter,
    Era,
    Event,
    Failure,
    GroupGuard,
    Heartbeat,
    Held,
    Highest,
    Hold,
    InFlight,
    KeyState,
    Layout,
    Offered,
    OpenRun,
    Owned,
    Recent,
    ReplayBatch,
    Run,
    Schedule,
    ScheduleSpec,
    Takeover,
)
_TYPES = {f"dueline.{value.__name__}": value for value in _VALUES}
_RELEASED = Registry(schema_dir())


def _codec(value: type[T]) -> Codec[T]:
    return Codec(_RELEASED, f"dueline.{value.__name__}", _TYPES)


RUN = RunCodec(_RELEASED, "dueline.Run", _TYPES)
COMMAND = _codec(Command)
KEY_STATE = _codec(KeyState)
SCHEDULE = Straight(_RELEASED, "dueline.Schedule", _TYPES, schedule_wire)
ACK = Straight(_RELEASED, "dueline.Ack", _TYPES, ack_wire)
OFFERED = _codec(Offered)
REPLAY_BATCH = _codec(ReplayBatch)
EVENT = Straight(_RELEASED, "dueline.Event", _TYPES, event_wire)
HEARTBEAT = _codec(Heartbeat)
LAYOUT = _codec(Layout)
TAKEOVER = _codec(Takeover)
HIGHEST = Straight(_RELEASED, "dueline.Highest", _TYPES, highest_wire)
DEAD_LETTER = _codec(DeadLetter)
GROUP_GUARD = _codec(GroupGuard)
ERA = _codec(Era)
HOLD = _codec(Hold)
BACKUP_RECORD = _codec(BackupRecord)

peek_run: Callable[[bytes], RunHead] = RUN.peek
"""The head of an encoded Run, without reading the rest; errors as of `Codec.decode` for what it sees."""


def decode_command(value: bytes, headers: Iterable[tuple[str, bytes | None]] | None) -> Command:
    """A command, as JSON if its `content-type` says so, else Avro. Undecodable, of JSON naming the field."""
    return decode_json(value, COMMAND) if is_json(headers) else COMMAND.decode(value)


def fingerprints() -> tuple[str, ...]:
    """Fingerprints of the schemas this version writes, as 16 hex digits, to be announced in the layout."""
    return _RELEASED.written()


def known(fingerprint: str) -> bool:
    """Whether this version can read what was written with it; of an error, `f"{error.fingerprint:016x}"`."""
    return _RELEASED.known(fingerprint)
