"""A backup as a directory: Avro container files, a manifest with their checksums, and the checksum of the manifest, so
that a flipped bit anywhere shows. `sha256sum -c manifest.json.sha256` checks the last by hand.

It is written beside its place under another name, and gets its own when everything is on the disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import fastavro
from fastavro.write import Writer

from pipeline import codec
from pipeline.backup.manifest import FileNote, Manifest, read_manifest
from pipeline.backup.records import Plain
from pipeline.core.errors import InvalidInput, Refused

MANIFEST, CHECKSUM = "manifest.json", "manifest.json.sha256"
CHUNK = 1 << 20
SYNC_INTERVAL = 256 * 1024
"""Bytes of a block of a container file, and so of the memory that writing one takes."""


# -- writing ------------------------------------------------------------------------------------------------


@contextmanager
def directory(target: Path) -> Iterator[Path]:
    """A private directory to fill, which becomes `target` at the end, or is removed if anything goes wrong, with the
    parents that were made for it. Refused if `target` is there or cannot be written to its end; InvalidInput if it
    cannot be made at all."""
    if os.path.lexists(target):
        raise Refused(f"{target} is there already: a backup never overwrites one")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    with _parents(target):
        try:
            partial.mkdir(mode=0o700)
        except OSError as error:
            raise _unmakable(target, error) from error
        try:
            yield partial
            _sync(partial)
            partial.rename(target)
            _sync(target.parent)
        except OSError as error:
            raise Refused(f"{target} cannot be written: {error.strerror}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Those that are missing are made, and taken away again if nothing comes of `target`."""
    missing = [parent for parent in target.parents if not os.path.lexists(parent)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise _unmakable(target, error) from error
    finally:
        if not os.path.lexists(target):
            for parent in missing:
                with suppress(OSError):  # never made, or somebody else has put something there
                    parent.rmdir()


def _unmakable(target: Path, error: OSError) -> InvalidInput:
    return InvalidInput("DIRECTORY", f"{target} cannot be made: {error.strerror}")


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Summed:
    """A file that is being written, with the sum of its bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sum = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def seekable(self) -> bool:
        """Asked by the library, which could append to a file: it writes from the beginning."""
        return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Container:
    """One container file being written into `file`."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self._name = name
        self._file = file
        self._summed = _Summed(file)
        sink = cast("IO[bytes]", self._summed)
        self._writer = Writer(sink, codec.BACKUP_RECORD.schema, "deflate", SYNC_INTERVAL)
        self._records = 0

    def add(self, record: Plain) -> None:
        self._writer.write(record)
        self._records += 1

    def finish(self) -> FileNote:
        """All is added: put it on the disk."""
        self._writer.flush()
        _to_disk(self._file)
        return FileNote(
            name=self._name,
            records=self._records,
            bytes=self._summed.size,
            sha256=self._summed.sum.hexdigest(),
        )


@contextmanager
def container(directory: Path, name: str) -> Iterator[Container]:
    with _created(directory / name) as file:
        yield Container(name, file)


def _created(path: Path) -> IO[bytes]:
    return open(path, "xb", opener=_private)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    data = manifest.encode()
    checksum = f"{hashlib.sha256(data).hexdigest()}  {MANIFEST}\n".encode()
    for name, content in ((MANIFEST, data), (CHECKSUM, checksum)):
        with _created(directory / name) as file:
            file.write(content)
            _to_disk(file)


# -- reading ------------------------------------------------------------------------------------------------


def check(source: Path) -> Manifest:
    """The manifest of a backup of which every file is as it was written. InvalidInput naming the file that is not;
    Refused if it is of a version that this one does not know."""
    named, data = str(source / MANIFEST), _content(source / MANIFEST)
    if _content(source / CHECKSUM) != f"{hashlib.sha256(data).hexdigest()}  {MANIFEST}\n".encode():
        raise InvalidInput(named, f"is not what was written: {CHECKSUM} says another checksum")
    manifest = read_manifest(named, data)
    for note in manifest.files:
        _check_file(source / note.name, note)
    return manifest


def _check_file(path: Path, note: FileNote) -> None:
    sum_, size = hashlib.sha256(), 0
    with _opened(path) as file:
        while chunk := file.read(CHUNK):
            sum_.update(chunk)
            size += len(chunk)
    if size != note.bytes:
        raise InvalidInput(str(path), f"is not what was written: {size} bytes, not {note.bytes}")
    if sum_.hexdigest() != note.sha256:
        raise InvalidInput(str(path), f"is not what was written: its SHA-256 is not {note.sha256}")


def read(source: Path, note: FileNote) -> Iterator[Plain]:
    """The records of a file that `check` has passed. InvalidInput if it is no container of so many records."""
    path, count = source / note.name, 0
    with _opened(path) as file:
        try:
            records: Any = fastavro.reader(file, codec.BACKUP_RECORD.schema)
            for record in records:
                count += 1
                yield record
        except (ValueError, EOFError, TypeError, KeyError, IndexError) as error:
            raise InvalidInput(str(path), f"is no container file of a backup: {error}") from error
    if count != note.records:
        raise InvalidInput(str(path), f"holds {count} records, not {note.records}")


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from error
    with file:
        yield file
