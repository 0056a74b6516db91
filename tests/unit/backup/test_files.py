"""A backup on disk: whole or not there at all, and every flipped bit and missing byte is seen."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import fastavro
import pytest
from unit.backup.town import LAYOUT, NAMES, Glances, Town, clock, memory_scratch, reader, run_of

from pipeline import codec
from pipeline.backup import files, take
from pipeline.backup.manifest import FILES, Manifest
from pipeline.backup.take import Source, take_backup
from pipeline.core.errors import InvalidInput, Refused, StoreUnreachable
from pipeline.core.job import KeyState


def source(town: Town) -> Source:
    return Source(
        reader=reader(town),
        positions=Glances(town, lambda: 0),
        clock=clock(),
        names=NAMES,
        layout=LAYOUT,
        era=3,
        id="b0c1d2e3f4a5",
        product_version="0.1.0",
    )


@pytest.fixture
def town() -> Town:
    town = Town(Random(5))
    town.go_on(80)
    town.backlog(9)
    return town


@pytest.fixture
def saved(town: Town, tmp_path: Path) -> Path:
    take_backup(source(town), tmp_path / "backup", memory_scratch)
    return tmp_path / "backup"


def rewrite(saved: Path, change: Callable[[dict[str, object]], None]) -> None:
    """The manifest changed by somebody who also mends its checksum."""
    found = json.loads((saved / files.MANIFEST).read_text("utf-8"))
    change(found)
    data = json.dumps(found).encode()
    (saved / files.MANIFEST).write_bytes(data)
    (saved / files.CHECKSUM).write_text(f"{hashlib.sha256(data).hexdigest()}  {files.MANIFEST}\n")


def test_a_backup_is_private_and_any_avro_library_reads_it(saved: Path) -> None:
    assert sorted(each.name for each in saved.iterdir()) == sorted((*FILES, files.MANIFEST, files.CHECKSUM))
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o600}
    assert saved.stat().st_mode & 0o777 == 0o700
    manifest = files.check(saved)
    assert (manifest.id, manifest.era, manifest.layout) == ("b0c1d2e3f4a5", 3, LAYOUT.identity())
    with (saved / "jobs.avro").open("rb") as file:
        records = list(fastavro.reader(file))
    assert len(records) == sum(manifest.counts[name] for name in ("jobs", "commands", "retries", "highest"))
    assert manifest.counts["jobs"] > 0 < manifest.counts["open_runs"]
    frames = {record["value"][2:10] for record in records}
    assert {f"{int.from_bytes(frame, 'little'):016x}" for frame in frames} <= set(manifest.fingerprints)


def test_what_is_read_is_what_was_written(town: Town, saved: Path) -> None:
    manifest = files.check(saved)
    (meta, jobs, runs) = ([*files.read(saved, note)] for note in manifest.files)
    assert [record["key"] for record in meta] == [b"era", b"layout"]
    assert codec.LAYOUT.decode(meta[1]["value"]) == LAYOUT
    assert all(record["topic"] == "jobs" for record in jobs)
    ids = {codec.RUN.decode(record["value"]).occurrence_id for record in runs}
    assert ids == {run.occurrence_id for _, _, run in town.open}


@pytest.mark.parametrize("name", [*FILES, files.MANIFEST, files.CHECKSUM])
def test_a_flipped_bit_anywhere_is_refused_by_the_name_of_its_file(saved: Path, name: str) -> None:
    path = saved / name
    whole = path.read_bytes()
    for place in {0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 2, len(whole) - 1}:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        shown = name if name in FILES else files.MANIFEST
        with pytest.raises(InvalidInput, match=rf"{shown}: is not what was written"):
            files.check(saved)
    path.write_bytes(whole)
    files.check(saved)


@pytest.mark.parametrize("name", [*FILES, files.MANIFEST, files.CHECKSUM])
def test_a_file_cut_short_or_gone_is_refused_by_name(saved: Path, name: str) -> None:
    whole = (saved / name).read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (saved / name).write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="is not what was written"):
            files.check(saved)
    (saved / name).unlink()
    with pytest.raises(InvalidInput, match=rf"{name}: cannot be read: No such file"):
        files.check(saved)


def test_another_format_is_refused_naming_the_version_that_reads_it(saved: Path) -> None:
    rewrite(saved, lambda found: found.update(format=2, product_version="9.1"))
    with pytest.raises(
        Refused, match=r"format 2, this version of Dueline reads 1: restore it with Dueline 9\.1"
    ):
        files.check(saved)


def test_records_of_schemas_to_come_are_refused(saved: Path) -> None:
    rewrite(saved, lambda found: found.update(fingerprints=["00000000000000ff"]))
    with pytest.raises(
        Refused, match=r"schemas unknown here .00000000000000ff.: restore it with Dueline 0\.1\.0"
    ):
        files.check(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("format"),
        lambda found: found.pop("id"),
        lambda found: found.update(files=found["files"][:2]),
        lambda found: found.update(files=[{"name": "../x"}]),
        lambda found: found.update(created_at="yesterday"),
    ],
    ids=["no format", "no id", "a file missing", "a file elsewhere", "no instant"],
)
def test_what_is_no_manifest_is_refused(saved: Path, change: Callable[[dict[str, object]], None]) -> None:
    rewrite(saved, change)
    with pytest.raises(InvalidInput, match=r"manifest\.json|created_at"):
        files.check(saved)


def test_a_file_of_another_number_of_records_is_refused(saved: Path) -> None:
    manifest = files.check(saved)
    (_, jobs, _) = manifest.files
    with pytest.raises(InvalidInput, match=r"jobs\.avro: holds \d+ records, not 1000"):
        list(files.read(saved, files.FileNote(**{**vars_of(jobs), "records": 1000})))
    (saved / "jobs.avro").write_bytes(b"Obj\1nonsense")
    with pytest.raises(InvalidInput, match=r"jobs\.avro: is no container file of a backup"):
        list(files.read(saved, jobs))


def vars_of(note: files.FileNote) -> dict[str, object]:
    return {"name": note.name, "records": note.records, "bytes": note.bytes, "sha256": note.sha256}


def test_an_existing_place_is_refused_and_left_alone(town: Town, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    with pytest.raises(Refused, match="is there already: a backup never overwrites one"):
        take_backup(source(town), tmp_path / "backup", memory_scratch)
    assert [each.name for each in tmp_path.iterdir()] == ["backup"]


def test_parents_that_are_missing_are_made(town: Town, tmp_path: Path) -> None:
    take_backup(source(town), tmp_path / "2026" / "11" / "backup", memory_scratch)
    files.check(tmp_path / "2026" / "11" / "backup")


@pytest.mark.parametrize("place", ["file/backup", "file/deeper/backup", "new/" + "x" * 300, "x" * 252])
def test_a_place_that_cannot_be_made_names_the_argument_and_leaves_nothing(
    town: Town, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(InvalidInput, match=r"^DIRECTORY: .* cannot be made: ") as error:
        take_backup(source(town), tmp_path / place, memory_scratch)
    assert str(tmp_path / place) in str(error.value)
    assert ".partial" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_store_that_goes_away_leaves_nothing(town: Town, tmp_path: Path) -> None:
    gone = source(town)
    read, left = gone.reader.read, [LAYOUT.partitions + 1]

    def failing(*place: object, **more: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise StoreUnreachable("no broker answered for 8 s")
        return read(*place, **more)  # type: ignore[arg-type]

    gone.reader.read = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreUnreachable):
        take_backup(gone, tmp_path / "made for it" / "backup", memory_scratch)
    assert left[0] < 0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="backup cannot be written: No space left on device"):
        take_backup(source(town), tmp_path / "backup", memory_scratch)
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_says_where_it_was_cut(saved: Path) -> None:
    manifest: Manifest = files.check(saved)
    assert len(manifest.cut["jobs"]) == LAYOUT.partitions
    assert all(settled == end for settled, end in manifest.cut["jobs"])
    assert [len(place) for place in manifest.cut["work"]["default"]] == [4, 4]


def test_a_job_with_a_key_is_pending_until_its_first_run() -> None:
    run = run_of("k" + "0" * 26, key="invoice-55")
    there = KeyState(incarnation=1, phase="pending", highest_run=0, unique="finished", changed_at=0, run=run)
    assert take._pending({"key": b"k/invoice-55", "value": codec.KEY_STATE.encode(there)})
    fired = replace(there, phase="fired", run=None)
    assert not take._pending({"key": b"k/invoice-55", "value": codec.KEY_STATE.encode(fired)})
    assert not take._pending({"key": b"k/invoice-55", "value": b"nonsense"})
    assert take._pending({"key": b"a/x", "value": b""})
    assert not take._pending({"key": b"r/x/1", "value": b""})
