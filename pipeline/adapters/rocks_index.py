"""The due index in RocksDB: one database per process, all its partitions side by side by key prefix.

Layout, every key behind `>HB` (partition, kind): DUE and HELD rows by (fire_at, record key) hold the entry, KEY
rows by record key say where it stands (except of a `j/` record that fires at the instant in its id), FACT rows are
the owner's small values, ENDED rows the ids of the fired memory by 30-minute generation, POSITION is the place in
the log, SIZE the number of jobs.

Writes are never synced: the write-ahead log keeps batches whole and in order, so what a crash of the machine
loses is a tail, and the position says from where to read it again. Nothing here is precious.
"""

from __future__ import annotations

import heapq
import json
import logging
import shutil
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rocksdict import BlockBasedOptions, Options, Rdict, ReadOptions, WriteBatch

from pipeline.adapters.rocks_queue import Queue, Stretch
from pipeline.core.errors import Refused, Undecodable
from pipeline.core.ids import due_in
from pipeline.core.job import EARLIEST
from pipeline.core.keys import JOB
from pipeline.ports import Action, Delta, Entry, Position

log = logging.getLogger(__name__)

GENERATION_MS = 30 * 60 * 1000
"""The fired memory is dropped by generations of this length: forgetting is one range, not a delete per id."""
KEPT = 2
"""Generations kept beside the newest: one that is remembered, one for a new leader whose clock is late."""
WRITE_BUFFER = 32 * 1024 * 1024
DETAILS = 10_000
"""Details of entries kept decoded: one for each partition of each queue, rarely more."""
BULK = 256
"""Rows removed together from the front of the queue, from which on one range delete is cheaper than so many."""
TIMES = EARLIEST + 1
"""From this time on rows are of entries that have one; before it of what is owed at once."""
SWEEP = 20_000
"""Dead due rows behind the mark before a range delete removes them; many small ranges slow every read."""

FIRST = 0
JOBS = b"jark"
"""How the record keys begin that stand for a job; `size` counts them."""
POSITION, SIZE, DUE, HELD, KEY, FACT, ENDED, PAST = range(8, 16)
"""Kinds of row. Their numbers are the format: an index of an older one (0 to 6) has no position, and is wiped."""
_PREFIX = struct.Struct(">HB")
_ORDER = struct.Struct(">HBQ")
_GENERATION = struct.Struct(">HBI")
_HEAD = struct.Struct(">qBH")
"""Offset (-1: our own write, which has not come back yet), action, length of the detail."""
_PLACE = struct.Struct(">QB")
_SIZE = struct.Struct(">Q")
_FAR = (1 << 64) - 1


class RocksIndex:
    """`Index` on disk at `path`, a directory of its own, private to the owner.

    Raises Refused if another process has it open or it cannot be read or written; a damaged one is wiped and
    begun anew, with `wiped` saying why. An error of the store later on is not translated: it ends the
    process, and the next start looks again.
    """

    def __init__(self, path: Path) -> None:
        self.wiped: str | None = None
        self._db = self._open(path)
        self._partitions: dict[int, Queue] = {}
        self._details: dict[bytes, str] = {}

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

    def _at(self, partition: int) -> Queue:
        here = self._partitions.get(partition)
        if here is None:
            here = self._partitions[partition] = self._load(partition)
        return here

    def _load(self, partition: int) -> Queue:
        rows = self._db.iter()
        rows.seek_for_prev(_PREFIX.pack(partition, PAST))
        ended = rows.valid() and rows.key().startswith(_PREFIX.pack(partition, ENDED))
        newest = _GENERATION.unpack_from(rows.key())[2] if ended else 0
        rows.status()
        size = self._db.get(_PREFIX.pack(partition, SIZE))
        return Queue(
            _PREFIX.pack(partition, DUE),
            _ORDER.pack(partition, DUE, TIMES),
            _PREFIX.pack(partition, DUE + 1),
            held=self._any(_PREFIX.pack(partition, HELD)),
            odd=self._any(_PREFIX.pack(partition, KEY) + JOB),
            newest=newest,
            size=0 if size is None else _SIZE.unpack(size)[0],
        )

    def _any(self, prefix: bytes) -> bool:
        rows = self._db.iter()
        rows.seek(prefix)
        found = rows.valid() and rows.key().startswith(prefix)
        rows.status()
        return found

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
        row = _plain_row(partition, record_key)
        if row is not None:
            value = self._db.get(row)
            if value is not None:
                return self._entry(row, value)
            if not self._at(partition).odd:
                return None
        place = self._db.get(_PREFIX.pack(partition, KEY) + record_key)
        return None if place is None else self._stored(_row(partition, place, record_key))

    def _stored(self, row: bytes) -> Entry:
        value = self._db[row]
        assert value is not None, "a KEY row and its entry are written in one batch"
        return self._entry(row, value)

    def fact(self, partition: int, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(_PREFIX.pack(partition, FACT) + key)
        return value

    def ended(self, partition: int, id_: bytes, log_time: int) -> bytes | None:
        newest = self._at(partition).newest
        if not newest:
            return None
        oldest = max((log_time - GENERATION_MS) // GENERATION_MS, newest - KEPT, 0)
        for generation in range(newest, oldest - 1, -1):  # none at all once nothing ended for half an hour
            how: bytes | None = self._db.get(_GENERATION.pack(partition, ENDED, generation) + id_)
            if how is not None:
                return how
        return None

    def size(self, partition: int) -> int:
        return self._at(partition).size

    def due(
        self, partition: int, until: int, limit: int, room: int = 1 << 62, since: int | None = None
    ) -> list[Entry]:
        here = self._at(partition)
        stop = _ORDER.pack(partition, DUE, min(max(until + 1, 0), _FAR))
        found: list[Entry] = []
        if since is not None:
            start = _ORDER.pack(partition, DUE, max(since, 0))
            rows, _ = self._read(here.start_behind(start), stop, limit, room, found)
            here.scanned_behind(start, rows)
            return found
        for stretch in here.stretches:
            if stretch.mark < stop and len(found) < limit and (room >= 0 or not found):
                until_row = min(stop, stretch.end)
                rows, room = self._read(stretch.mark, until_row, limit, room, found)
                stretch.scanned(rows, until_row if room >= 0 else stretch.mark)
        return found

    def _read(
        self, start: bytes, stop: bytes, limit: int, room: int, found: list[Entry]
    ) -> tuple[list[bytes], int]:
        """Add entries from `start` until before `stop` to `found`, up to `limit` of them and as many as there is room
        for, or one. Their rows, and the room left: negative if that is why no more were read."""
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        rows = self._db.iter(options)  # spelled out, as `_scan` does it: every job that fires passes here
        rows.seek(start)
        read: list[bytes] = []
        while rows.valid() and len(found) < limit:
            row, value = rows.key(), rows.value()
            room -= len(value)
            if room < 0 and found:
                break
            read.append(row)
            found.append(self._entry(row, value))
            rows.next()
        rows.status()
        del rows, options
        return read, room

    def _entry(self, row: bytes, value: bytes) -> Entry:
        offset, action, length = _HEAD.unpack_from(value)
        detail = value[11 : 11 + length]
        text = self._details.get(detail)  # the same few, over and over
        if text is None:
            text = detail.decode()
            if len(self._details) < DETAILS:
                self._details[detail] = text
        fire_at = int.from_bytes(row[3:11], "big")
        return tuple.__new__(Entry, (row[11:], fire_at, offset, action, value[11 + length :], text))

    def overdue(self, partition: int, until: int, limit: int) -> int:
        stop, total = _ORDER.pack(partition, DUE, min(max(until + 1, 0), _FAR)), 0
        for stretch in self._at(partition).stretches:
            if stretch.mark < stop and total < limit:
                rows = self._scan(stretch.mark, min(stop, stretch.end))
                total += sum(1 for _ in islice(rows, limit - total))
        return total

    def footprint(self) -> int:
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def next_due(self, partition: int) -> int | None:
        for stretch in self._at(partition).stretches:
            if stretch.sure or self._find(stretch):
                return _fire_at(stretch.mark)
        return None

    def _find(self, stretch: Stretch) -> bool:
        """Move the mark to the first live row; whether there is one."""
        if stretch.mark < stretch.end:
            first = next((row for row, _ in self._scan(stretch.mark, stretch.end)), None)
            stretch.mark, stretch.sure = (stretch.end, False) if first is None else (first, True)
        return stretch.sure

    def entries(self, partition: int, after: bytes | None, limit: int) -> list[Entry]:
        both = heapq.merge(self._plain(partition, after), self._placed(partition, after))
        return [self._stored(row) for _, row in islice(both, limit)]

    def _plain(self, partition: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Record key and row of the entries that have no KEY row; their rows are in the order of their keys."""
        if after is not None and after[: len(JOB)] > JOB:
            return  # they are all of jobs
        row = None if after is None else _plain_row(partition, after)
        start = _PREFIX.pack(partition, DUE) if row is None else row + b"\0"
        for row, _ in self._scan(start, _PREFIX.pack(partition, DUE + 1)):
            key = row[11:]
            if (after is None or key > after) and _plain_row(partition, key) == row:
                yield key, row

    def _placed(self, partition: int, after: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Record key and row of the entries that have a KEY row."""
        prefix = _PREFIX.pack(partition, KEY)
        start = prefix if after is None else prefix + after + b"\0"
        for row, place in self._scan(start, _PREFIX.pack(partition, KEY + 1)):
            key = row[_PREFIX.size :]
            yield key, _row(partition, place, key)

    # -- changing ------------------------------------------------------------------------------------------

    def apply(self, partition: int, delta: Delta) -> None:
        here = self._at(partition)
        batch = WriteBatch(raw_mode=True)
        removed = self._remove_rows(batch, partition, delta, here)
        self._put_rows(batch, partition, delta, here)
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
        if here.size:
            batch.put(_PREFIX.pack(partition, SIZE), _SIZE.pack(here.size))
        elif delta.entries:
            batch.delete(_PREFIX.pack(partition, SIZE))
        for stretch in here.stretches:
            if stretch.graves >= SWEEP:
                batch.delete_range(stretch.begin, stretch.mark)
                stretch.graves = 0
        self._db.write(batch)
        here.removed(removed)

    def _remove_rows(self, batch: WriteBatch, partition: int, delta: Delta, here: Queue) -> list[bytes]:
        """Delete the rows that entries of the delta replace; those that were due."""
        prefix, pack, delete = _PREFIX.pack(partition, KEY), _ORDER.pack, batch.delete
        removed: list[bytes] = []
        for key, (replaced, _) in delta.entries.items():
            if replaced is None:
                continue
            here.size -= key[:1] in JOBS
            removed.append(pack(partition, DUE, replaced) + key)
            if here.odd or not key.startswith(JOB):
                delete(prefix + key)  # put again below, if it stays
            if here.held:  # the delta does not say whether what it replaces was held
                delete(pack(partition, HELD, replaced) + key)
        for stretch, rows in zip(here.stretches, here.apart(removed), strict=True):
            if len(rows) >= BULK and stretch.starts_with(rows):
                batch.delete_range(rows[0], rows[-1] + b"\0")
            else:
                for row in rows:
                    delete(row)
        return removed

    def _put_rows(self, batch: WriteBatch, partition: int, delta: Delta, here: Queue) -> None:
        prefix, pack, head, put = _PREFIX.pack(partition, KEY), _ORDER.pack, _HEAD.pack, batch.put
        for key, (_, entry) in delta.entries.items():
            if entry is None:
                continue
            here.size += key[:1] in JOBS
            _, fire_at, offset, action, value, detail = entry
            kind = HELD if action == Action.HOLD else DUE
            row, told = pack(partition, kind, fire_at) + key, detail.encode()
            put(row, head(offset, action, len(told)) + told + value)
            if not (kind == DUE and _says_itself(key, fire_at)):
                put(prefix + key, _PLACE.pack(fire_at, kind))
                here.odd = here.odd or key.startswith(JOB)
            if kind == HELD:
                here.held = True
            else:
                here.added(row)

    def wipe(self, partition: int) -> None:
        self._db.delete_range(_PREFIX.pack(partition, FIRST), _PREFIX.pack(partition, PAST))
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
    options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_memtable_whole_key_filtering(True)  # as in the files: a miss costs no search
    options.set_allow_concurrent_memtable_write(False)  # one thread writes
    options.set_write_buffer_size(WRITE_BUFFER)
    options.set_keep_log_file_num(2)
    options.add_compact_on_deletion_collector_factory(1000, 250, 0.3)
    return options


def _damaged(error: str, path: Path) -> bool:
    """Whether what cannot be opened is a database of ours that lost contents, not a locked or foreign one."""
    lost = error.startswith("Corruption") or (".sst" in error and "No such file" in error)
    return lost and (path / "rocksdict-config.json").exists()


def _plain_row(partition: int, record_key: bytes) -> bytes | None:
    """The DUE row of a `j/` record that fires at the instant in its id, as nearly all do: the key says where it
    stands, so no KEY row need say it."""
    if not record_key.startswith(JOB):
        return None
    try:
        return _ORDER.pack(partition, DUE, due_in(record_key[2:])) + record_key
    except Undecodable:
        return None


def _says_itself(record_key: bytes, fire_at: int) -> bool:
    """Whether the row of an entry due then needs no KEY row."""
    try:
        return record_key.startswith(JOB) and due_in(record_key[2:]) == fire_at
    except Undecodable:
        return False


def _row(partition: int, place: bytes, record_key: bytes) -> bytes:
    fire_at, kind = _PLACE.unpack(place)
    return _ORDER.pack(partition, kind, fire_at) + record_key


def _fire_at(row: bytes) -> int:
    return int.from_bytes(row[3:11], "big")


def _remember(batch: WriteBatch, partition: int, ended: dict[bytes, tuple[int, bytes]], here: Queue) -> None:
    """Put the ids, and forget the generations no look-up covers any more."""
    known, prefix, newest = -1, b"", 0
    for id_, (at, how) in ended.items():
        generation = at // GENERATION_MS
        if generation != known:
            known, prefix = generation, _GENERATION.pack(partition, ENDED, generation)
            newest = max(newest, generation)
        batch.put(prefix + id_, how)
    if newest > here.newest:
        here.newest = newest
        kept = _GENERATION.pack(partition, ENDED, max(newest - KEPT, 0))
        batch.delete_range(_PREFIX.pack(partition, ENDED), kept)
