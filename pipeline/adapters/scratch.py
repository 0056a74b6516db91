"""A store of rows on disk for as long as some work takes, so that its memory does not follow what it works on
(`backup.jobs.Scratch`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch, WriteOptions

from pipeline.core.errors import Refused

WRITE_BUFFER = 32 * 1024 * 1024


class RocksScratch:
    """Rows ordered by key. One thread."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._unlogged = cast("Any", WriteOptions())  # the library's stub takes its attributes for methods
        self._unlogged.disable_wal = True  # after a crash nobody reads it again

    def write(self, rows: Mapping[bytes, bytes | None]) -> None:
        if not rows:
            return
        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch, self._unlogged)

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._db.get(key)
        return found

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        length, rows = len(prefix), self._db.iter()
        rows.seek(prefix)
        while rows.valid():
            key: bytes = rows.key()
            if not key.startswith(prefix):
                return
            yield key[length:], rows.value()
            rows.next()


@contextmanager
def rocks_scratch(path: Path) -> Iterator[RocksScratch]:
    """A new one at `path`, a directory of its own, which is removed at the end. Refused if it cannot be made."""
    try:
        path.mkdir(mode=0o700)
        db = Rdict(str(path), _options())
    except Exception as error:  # the library raises nothing narrower
        raise Refused(f"{path} cannot be used: {error}") from error
    try:
        yield RocksScratch(db)
    finally:
        db.close()
        shutil.rmtree(path, ignore_errors=True)


def _options() -> Options:
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most look-ups are for keys that are not there
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_memtable_prefix_bloom_ratio(0.1)
    options.set_memtable_whole_key_filtering(True)
    options.set_write_buffer_size(WRITE_BUFFER)
    options.set_keep_log_file_num(1)
    return options
