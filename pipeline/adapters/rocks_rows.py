"""Rows on disk, ordered by key, that one thread writes in batches and any thread reads (the read model's own)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from pipeline.core.errors import Refused

log = logging.getLogger(__name__)

WRITE_BUFFER = 16 * 1024 * 1024
CACHE = 32 * 1024 * 1024


class RocksRows:
    """Rows at `path`, a directory of its own (0700). Refused if another process has it open or it cannot be used; a
    damaged one is wiped and begun anew, loudly: nothing in it is precious.

    Writes are not synced: what a crash of the machine loses is a tail of whole batches.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._open()

    def _open(self) -> Rdict:
        ours = (self._path / "rocksdict-config.json").exists()  # before the library makes one
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.chmod(0o700)
            return Rdict(str(self._path), _options())
        except Exception as error:
            damaged = str(error).startswith("Corruption") or ".sst" in str(error)
            if not (damaged and ours):
                raise Refused(f"{self._path} cannot be opened: {error}") from error
            log.warning("read model wiped: %s", error, extra={"action": "readmodel.wiped"})
        shutil.rmtree(self._path)
        self._path.mkdir(mode=0o700)
        return Rdict(str(self._path), _options())

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast("list[bytes | None]", self._db.get(list(keys))) if keys else []

    def write(self, puts: Mapping[bytes, bytes | None]) -> None:
        """All or nothing; None deletes."""
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in puts.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        self._db.write(batch)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from `start` until before `stop`, as they are when this begins."""
        options = ReadOptions()
        options.set_iterate_upper_bound(stop)
        rows = self._db.iter(options)
        rows.seek(start)
        while rows.valid():
            yield rows.key(), rows.value()
            rows.next()
        rows.status()
        del options  # the iterator does not keep it alive

    def scan_back(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same rows, the last first."""
        rows = self._db.iter()
        rows.seek_for_prev(stop)
        while rows.valid():
            key: bytes = rows.key()
            if key < start:
                return
            if key < stop:
                yield key, rows.value()
            rows.prev()
        rows.status()

    def clear(self) -> None:
        """Forget everything."""
        self._db.delete_range(b"", b"\xff" * 64)

    def size(self) -> int:
        """Bytes on disk and in memory, roughly."""
        names = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")
        return sum(self._db.property_int_value(name) or 0 for name in names)

    def close(self) -> None:
        """Once; later calls do nothing. What could not be written is folded again by whoever opens it next."""
        try:
            with suppress(DbClosedError):
                self._db.close()
        except Exception as error:  # noqa: BLE001 - the library has no class of its own for it
            log.warning("read model not closed well: %s", error, extra={"action": "readmodel.closed"})


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most look-ups of a fold are for ids that are not there
    table.set_block_cache(Cache(CACHE))
    options = Options(raw_mode=True)  # the other mode pickles values: code execution from a damaged file
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_memtable_whole_key_filtering(True)
    options.set_allow_concurrent_memtable_write(False)  # one thread writes
    options.set_write_buffer_size(WRITE_BUFFER)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.add_compact_on_deletion_collector_factory(1000, 250, 0.3)
    return options
