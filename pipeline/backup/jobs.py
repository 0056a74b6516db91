"""What stands on `jobs` at the cut, folded into a store on disk: memory follows neither what is stored nor what is
pending."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from pipeline import codec
from pipeline.backup.cut import Span
from pipeline.backup.records import Plain, headers, pack, plain, unpack
from pipeline.core import ids
from pipeline.core.errors import Undecodable
from pipeline.core.job import Command
from pipeline.core.layout import Layout
from pipeline.core.limited import bare
from pipeline.fold import CREATE, resolved
from pipeline.ports import Record
from pipeline.view import END, header, headers_of

JOBS = "jobs"
ONCE = frozenset((b"j/", b"c/", b"r/", b"d/"))
"""Put once by their maker, ended by the owner: one that has ended never comes back, whatever copy of it does."""
OWNED = frozenset((b"k/", b"s/", b"h/", b"x/"))
"""Written by nobody but the owner of the partition: each replaces the one before."""
ORDERED = (b"c/", b"d/")
"""Settled by the owner in the order of the log."""
TAKEOVER = b"o/"
"""Of the processes of the installation that is backed up; another one begins with its own."""
REPLACE = "replace"
MOVED = b"moved"
"""End of a record that stands at its home by now."""
BATCH, BATCH_BYTES = 2_000, 8 * 1024 * 1024
_LIVE, _ENDED, _ORDER, _MADE = range(4)
_ROW, _PLACE = struct.Struct(">BH"), struct.Struct(">BHQ")


class Scratch(Protocol):
    """A store of rows, ordered by their keys, that lasts as long as the backup is taken."""

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        """None removes a row."""
        ...

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys begin with `prefix`, in order, as they are now whatever is written meanwhile; keys without
        it."""
        ...


class JobsState:
    """The live records of every partition of `jobs`. `era` is the one in which they were written."""

    def __init__(self, scratch: Scratch, layout: Layout, era: int) -> None:
        self._scratch = scratch
        self._layout = layout
        self._era = era

    # -- folding --------------------------------------------------------------------------------------------

    def fold(self, partition: int, records: Iterable[Record], span: Span) -> None:
        """Take in the records of one partition, from its beginning. Each once, then `settle`, then ask."""
        live = _ROW.pack(_LIVE, partition)
        rows: dict[bytes, bytes | None] = {}
        size = 0
        for record in records:
            key, offset = record.key() or b"", record.offset() or 0
            kind, gone = key[:2], record.value() is None
            if kind == TAKEOVER or offset >= (span.settled if gone or kind in OWNED else span.end):
                continue
            if not gone:
                row = rows[live + key] = pack(plain(JOBS, record))
                size += len(row)
            else:
                rows[live + key] = None
                if kind in ONCE and header(headers_of(record), END) != MOVED:
                    rows[_ended(key)] = b""
            if len(rows) >= BATCH or size >= BATCH_BYTES:
                self._scratch.write(rows)
                rows, size = {}, 0
        self._scratch.write(rows)

    def settle(self) -> None:
        """All partitions are taken in."""
        for partition in range(self._layout.partitions):
            self._look_at_commands(partition)
            for kind in ORDERED:
                self._order(partition, kind)

    def _look_at_commands(self, partition: int) -> None:
        """Make commands that nobody has executed yet independent of when and where they stand, and note what those
        will make that create a job."""
        row = _ROW.pack(_LIVE, partition)
        for key, data in self._scratch.scan(row + b"c/"):
            record = unpack(data)
            if self.ended(record["key"]):
                continue
            try:
                command = codec.decode_command(record["value"], headers(record))
                command, made = self._settled(command, partition, record)
            except Undecodable:
                continue  # its owner buries it, then as now
            record |= {"value": codec.COMMAND.encode(command), "headers": []}
            rows = {row + b"c/" + key: pack(record)}
            if made is not None:
                rows[_made(made)] = b""
            self._scratch.write(rows)

    def _settled(self, command: Command, partition: int, record: Plain) -> tuple[Command, str | None]:
        """The command with an absolute due time and, of a key, with the idempotency key that its job would have had:
        a restored one gets another incarnation. Beside it the occurrence that it makes, or of a key whose home is
        elsewhere, the job."""
        command = resolved(command, record["at"])
        if bare(command).verb != CREATE:
            return command, None
        if command.key is None:
            due_at = command.due_at
            return command, None if due_at is None else ids.command_job_id(due_at, command.command_id)
        id_ = ids.keyed_id(command.key)
        if self._layout.home(id_) != partition:
            return command, id_
        made = ids.occurrence_of_keyed(id_, ids.incarnation(self._era, record["offset"]))
        if command.idempotency_key is None and command.on_conflict != REPLACE:
            command = replace(command, idempotency_key=made)
        return command, made

    def _order(self, partition: int, kind: bytes) -> None:
        for key, data in self._scratch.scan(_ROW.pack(_LIVE, partition) + kind):
            self._scratch.write({_PLACE.pack(_ORDER, partition, unpack(data)["offset"]): kind + key})

    # -- asking ---------------------------------------------------------------------------------------------

    def get(self, partition: int, key: bytes) -> Plain | None:
        """The live record under this key."""
        data = self._scratch.get(_ROW.pack(_LIVE, partition) + key)
        return None if data is None or self.ended(key) else unpack(data)

    def ended(self, key: bytes) -> bool:
        """Whether there was such a record, of those that are put once, and its owner has ended it. Wherever that was: a
        copy that was moved home may have ended there before the other partition was looked at."""
        return key[:2] in ONCE and self._scratch.get(_ended(key)) is not None

    def makes(self, occurrence: str) -> bool:
        """Whether a command that waits will make this occurrence, or job."""
        return self._scratch.get(_made(occurrence)) is not None

    def end(self, key: bytes) -> None:
        """Have it count as ended: what it asked for is in the backup."""
        self._scratch.write({_ended(key): b""})

    def live(self, partition: int) -> Iterator[Plain]:
        """All live records: what has a state in order of key, then what is settled in the order of the log."""
        for key, data in self._scratch.scan(_ROW.pack(_LIVE, partition)):
            if not (key.startswith(ORDERED) or self.ended(key)):
                yield unpack(data)
        for _, key in self._scratch.scan(_ROW.pack(_ORDER, partition)):
            if (record := self.get(partition, key)) is not None:
                yield record


def _ended(key: bytes) -> bytes:
    return bytes([_ENDED]) + key


def _made(occurrence: str) -> bytes:
    return bytes([_MADE]) + occurrence.encode()
