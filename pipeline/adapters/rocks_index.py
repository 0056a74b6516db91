"""The due index in RocksDB: one database per process, all its partitions side by side by key prefix.

Layout, every key behind `>HB` (partition, kind): DUE and HELD rows by (fire_at, record key) hold the entry,
KEY rows by record key say where it stands, FACT rows are the owner's small values, ENDED rows the ids of the
fired memory by 30-minute generation, POSITION the place in the log.

Writes are never synced: the write-ahead log keeps batches whole and in order, so what a crash of the machine
loses is a tail, and the position says from where to read it again. Nothing here is precious.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rocksdict import BlockBasedOptions, Options, Rdict, ReadOptions, WriteBatch

from pipeline.core.errors import Refused
from pipeline.ports import Action, Delta, Entry, Position

log = logging.getLogger(__name__)

GENERATION_MS = 30 * 60 * 1000
"""The fired memory is dropped by generations of this length: forgetting is one range, not a delete per id."""
KEPT = 2
"""Generations kept beside the newest: one that is remembered, one for a new leader whose clock is late."""
SWEEP = 20_000
"""Dead due rows behind the mark before a range delete removes them; many small ranges slow every read."""

POSITION, DUE, HELD, KEY, FACT, ENDED, PAST = range(7)
_PREFIX = struct.Struct(">HB")
_ORDER = struct.Struct(">HBQ")
_GENERATION = struct.Struct(">HBI")
_HEAD = struct.Struct(">QBH")
_PLACE = struct.Struct(">QB")
_FAR = (1 << 64) - 1


class _Due:
    """What is known in memory about one partition's rows.

    `mark`: no live DUE row stands below it, so a scan never walks the graves of what was dispatched (0.04 ms
    instead of 5). `head` are the rows that the last scan returned, in order, not yet removed, up to `tail`;
    no other live row stands among them.
    """

    __slots__ = ("graves", "head", "held", "mark", "newest", "tail")

    def __init__(self, mark: bytes, held: bool, newest: int) -> None:
        self.mark, self.held, self.newest = mark, held, newest
        self.head: dict[bytes, None] = {}
        self.tail = b""
        self.graves = 0

    def scanned(self, head: dict[bytes, None], tail: bytes) -> None:
        self.mark, self.head, self.tail = next(iter(head)), head, tail

    def added(self, row: bytes) -> None:
        self.mark = min(self.mark, row)
        if row <= self.tail:
            self.head, self.tail = {}, b""

    def removed(self, rows: list[bytes]) -> None:
        """The mark follows when the head of the last scan is removed, whole or from its front."""
        self.graves += len(rows)
        if not self.head:
            return
        for row in rows:
            self.head.pop(row, None)
        self.mark = next(iter(self.head), self.tail + b"\0")


class RocksIndex:
    """`Index` on disk at `path`, a directory of its own, private to the owner.

    Raises Refused if another process has it open or it cannot be read or written; a damaged one is wiped and
    begun anew, with `wiped` saying why. An error of the store later on is not translated: it ends the
    process, and the next start looks again.
    """

    def __init__(self, path: Path) -> None:
        self.wiped: str | None = None
        self._db = self._open(path)
        self._partitions: dict[int, _Due] = {}

    def _open(self, path: Path) -> Rdict:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            return Rdict(str(path), _options())
        except Exception as error:
            self.wiped = str(error)
            if not _damaged(str(error), path):
                raise Refused(f"index {path} cannot be opened: {error}") from error
        log.warning("index wiped: %s", self.wiped, extra={"action": "index.wiped", "path": str(path)})
        shutil.rmtree(path)
        path.mkdir(mode=0o700)
        return Rdict(str(path), _options())

    def _at(self, partition: int) -> _Due:
        here = self._partitions.get(partition)
        if here is None:
            here = self._partitions[partition] = self._load(partition)
        return here

    def _load(self, partition: int) -> _Due:
        rows = self._db.iter()
        rows.seek(_PREFIX.pack(partition, HELD))
        held = rows.valid() and rows.key().startswith(_PREFIX.pack(partition, HELD))
        rows.seek_for_prev(_PREFIX.pack(partition, PAST))
        ended = rows.valid() and rows.key().startswith(_PREFIX.pack(partition, ENDED))
        newest = _GENERATION.unpack_from(rows.key())[2] if ended else 0
        rows.status()
        return _Due(_PREFIX.pack(partition, DUE), held, newest)

    def _scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` until before `stop`. Drop it before returning: a live one holds the lock (H25).

        The library's lower bound sets the upper one, so the start is a seek; and its iterator does not keep
        the options alive that own the upper bound: freed, the scan runs on into other rows.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        rows = self._db.iter(options)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        rows.status()
        del options

    # -- looking up ----------------------------------------------------------------------------------------

    def position(self, partition: int) -> Position | None:
        value = self._db.get(_PREFIX.pack(partition, POSITION))
        return None if value is None else Position(*json.loads(value))

    def entry(self, partition: int, record_key: bytes) -> Entry | None:
        place = self._db.get(_PREFIX.pack(partition, KEY) + record_key)
        if place is None:
            return None
        row = _row(partition, place, record_key)
        return self._stored(row)

    def _stored(self, row: bytes) -> Entry:
        value = self._db[row]
        assert value is not None, "a KEY row and its entry are written in one batch"
        return _entry(row, value)

    def fact(self, partition: int, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(_PREFIX.pack(partition, FACT) + key)
        return value

    def ended(self, partition: int, id_: str, log_time: int) -> bool:
        newest = self._at(partition).newest
        oldest = max((log_time - GENERATION_MS) // GENERATION_MS, newest - KEPT, 0)
        id_bytes = id_.encode()
        for generation in range(newest, oldest - 1, -1):  # none at all once nothing ended for half an hour
            if self._db.get(_GENERATION.pack(partition, ENDED, generation) + id_bytes) is not None:
                return True
        return False

    def due(self, partition: int, until: int, limit: int, room: int = 1 << 62) -> list[Entry]:
        here = self._at(partition)
        rows = self._scan(here.mark, _ORDER.pack(partition, DUE, min(max(until + 1, 0), _FAR)))
        found: list[Entry] = []
        head: dict[bytes, None] = {}
        for row, value in islice(rows, limit):
            room -= len(value)
            if room < 0 and found:
                break
            head[row] = None
            found.append(_entry(row, value))
        if head:
            here.scanned(head, next(reversed(head)))
        return found

    def next_due(self, partition: int) -> int | None:
        here = self._at(partition)
        for row, _ in self._scan(here.mark, _PREFIX.pack(partition, DUE + 1)):
            here.mark = row
            return _fire_at(row)
        return None

    def entries(self, partition: int, after: bytes | None, limit: int) -> list[Entry]:
        prefix = _PREFIX.pack(partition, KEY)
        start = prefix if after is None else prefix + after + b"\0"
        rows = islice(self._scan(start, _PREFIX.pack(partition, KEY + 1)), limit)
        return [self._stored(_row(partition, place, row[_PREFIX.size :])) for row, place in rows]

    # -- changing ------------------------------------------------------------------------------------------

    def apply(self, partition: int, delta: Delta) -> None:
        here = self._at(partition)
        batch = WriteBatch(raw_mode=True)
        removed = self._change_entries(batch, partition, delta, here)
        for key, value in delta.facts.items():
            row = _PREFIX.pack(partition, FACT) + key
            if value is None:
                batch.delete(row)
            else:
                batch.put(row, value)
        if delta.ended:
            _remember(batch, partition, delta.ended, here)
        if delta.position is not None:
            batch.put(_PREFIX.pack(partition, POSITION), json.dumps(delta.position).encode())
        if here.graves >= SWEEP:
            batch.delete_range(_PREFIX.pack(partition, DUE), here.mark)
            here.graves = 0
        self._db.write(batch)
        here.removed(removed)

    def _change_entries(self, batch: WriteBatch, partition: int, delta: Delta, here: _Due) -> list[bytes]:
        """Write the entries into the batch; the DUE rows it removes."""
        prefix = _PREFIX.pack(partition, KEY)
        removed: list[bytes] = []
        for key, (replaced, entry) in delta.entries.items():
            if replaced is not None:
                row = _ORDER.pack(partition, DUE, replaced) + key
                batch.delete(row)
                removed.append(row)
                if here.held:  # the delta does not say whether what it replaces was held
                    batch.delete(_ORDER.pack(partition, HELD, replaced) + key)
            if entry is None:
                batch.delete(prefix + key)
                continue
            kind = HELD if entry.action == Action.HOLD else DUE
            row = _ORDER.pack(partition, kind, entry.fire_at) + key
            batch.put(row, _value(entry))
            batch.put(prefix + key, _PLACE.pack(entry.fire_at, kind))
            if kind == DUE:
                here.added(row)
            else:
                here.held = True
        return removed

    def wipe(self, partition: int) -> None:
        self._db.delete_range(_PREFIX.pack(partition, POSITION), _PREFIX.pack(partition, PAST))
        self._partitions.pop(partition, None)

    def close(self) -> None:
        """Never raises: it would hide the error that ended the owner, and nothing in here is precious."""
        try:
            self._db.close()
        except Exception as error:  # noqa: BLE001 -- the library raises nothing narrower
            log.warning("index not closed in order: %s", error, extra={"action": "index.close_failed"})


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most look-ups are for ids that are not there
    options = Options(raw_mode=True)  # the other mode pickles values: code execution from a damaged file
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_keep_log_file_num(2)
    options.add_compact_on_deletion_collector_factory(1000, 250, 0.3)
    return options


def _damaged(error: str, path: Path) -> bool:
    """Whether what cannot be opened is a database of ours that lost contents, not a locked or foreign one."""
    lost = error.startswith("Corruption") or (".sst" in error and "No such file" in error)
    return lost and (path / "rocksdict-config.json").exists()


def _row(partition: int, place: bytes, record_key: bytes) -> bytes:
    fire_at, kind = _PLACE.unpack(place)
    return _ORDER.pack(partition, kind, fire_at) + record_key


def _fire_at(row: bytes) -> int:
    return int.from_bytes(row[3:11], "big")


def _value(entry: Entry) -> bytes:
    if not entry.detail:
        return _HEAD.pack(entry.offset, entry.action, 0) + entry.value
    detail = entry.detail.encode()
    return _HEAD.pack(entry.offset, entry.action, len(detail)) + detail + entry.value


def _entry(row: bytes, value: bytes) -> Entry:
    fire_at = _fire_at(row)
    offset, action, length = _HEAD.unpack_from(value)
    if not length:
        return Entry(row[11:], fire_at, offset, action, value[11:])
    cut = 11 + length
    return Entry(row[11:], fire_at, offset, action, value[cut:], value[11:cut].decode())


def _remember(batch: WriteBatch, partition: int, ended: dict[str, int], here: _Due) -> None:
    """Put the ids, and forget the generations no look-up covers any more."""
    for id_, at in ended.items():
        batch.put(_GENERATION.pack(partition, ENDED, at // GENERATION_MS) + id_.encode(), b"")
    newest = max(ended.values()) // GENERATION_MS
    if newest > here.newest:
        here.newest = newest
        kept = _GENERATION.pack(partition, ENDED, max(newest - KEPT, 0))
        batch.delete_range(_PREFIX.pack(partition, ENDED), kept)
