"""Records of every earlier version, as the code of that time encoded them, read by today's (docs/versions.md)."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from pipeline import codec
from pipeline.codec.registry import FRAME, Codec, Registry
from pipeline.core.errors import Undecodable, UnknownFingerprint
from pipeline.core.job import Highest

SCHEMAS = Path(str(codec.schema_dir()))
RELEASED = json.loads((SCHEMAS / "released.json").read_text("utf-8"))
VECTORS = json.loads((SCHEMAS / "vectors" / "versions.json").read_text("utf-8"))["vectors"]
CODECS: dict[str, Codec[Any]] = {each.name: each for each in vars(codec).values() if isinstance(each, Codec)}


def name(vector: dict[str, Any]) -> str:
    return f"{vector['type']}-{vector['fingerprint']}-{len(vector['encoded']) // 2}"


def plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    match value:
        case Enum():
            return value.value
        case bytes():
            return value.hex()
        case tuple():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
    return value


def upgraded(value: Any, schema: Any) -> Any:
    """What a value of an older version is in this one: fields it did not have are their defaults, those that have
    gone since are left out."""
    match schema:
        case {"type": "record", "fields": now}:
            return {
                field["name"]: upgraded(value[field["name"]], field["type"])
                if field["name"] in value
                else field["default"]
                for field in now
            }
        case {"type": "array", "items": items}:
            return [upgraded(item, items) for item in value]
        case {"type": "map", "values": values}:
            return {key: upgraded(item, values) for key, item in value.items()}
        case ["null", inner]:
            return None if value is None else upgraded(value, inner)
    return value


def current(type_: str) -> Any:
    (file,) = (e["file"] for e in RELEASED.values() if e["type"] == type_ and "/" not in e["file"])
    return json.loads((SCHEMAS / file).read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=name)
def test_what_an_earlier_version_wrote_is_read_today(vector: dict[str, Any]) -> None:
    found = CODECS[vector["type"]].decode(bytes.fromhex(vector["encoded"]))
    assert plain(found) == upgraded(vector["value"], current(vector["type"]))
    again = CODECS[vector["type"]].encode(found)
    assert CODECS[vector["type"]].decode(again) == found


@pytest.mark.parametrize("vector", VECTORS, ids=name)
def test_and_anybody_reads_it_with_its_schema_alone(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["encoded"])
    assert data[:FRAME] == b"\xc3\x01" + bytes.fromhex(vector["fingerprint"])[::-1]
    schema = json.loads((SCHEMAS / RELEASED[vector["fingerprint"]]["file"]).read_text("utf-8"))
    rest = BytesIO(data[FRAME:])
    assert plain(as_read(fastavro.schemaless_reader(rest, schema, None))) == vector["value"]
    assert rest.read() == b""


def as_read(value: Any) -> Any:
    """Lists as the tuples that `plain` knows."""
    match value:
        case list():
            return tuple(as_read(item) for item in value)
        case dict():
            return {key: as_read(item) for key, item in value.items()}
    return value


def test_every_version_that_was_superseded_has_its_records() -> None:
    """Moved a schema to archive/? Copy a vector of it from vectors/codec.json to vectors/versions.json first."""
    archived = {each for each, entry in RELEASED.items() if entry["file"].startswith("archive/")}
    assert archived <= {vector["fingerprint"] for vector in VECTORS}


def test_no_version_was_ever_withdrawn() -> None:
    assert {vector["fingerprint"] for vector in VECTORS} <= RELEASED.keys()


RUNS = [vector for vector in VECTORS if vector["type"] == "dueline.Run"]


@pytest.mark.parametrize("vector", RUNS, ids=name)
def test_an_owner_moves_a_run_of_any_version_without_writing_it_anew(vector: dict[str, Any]) -> None:
    """What waits in the log fires as the bytes that it is; its head says where to and when."""
    data = bytes.fromhex(vector["encoded"])
    head = codec.peek_run(data)
    assert head._asdict() == {each: vector["value"][each] for each in head._fields}


@pytest.mark.parametrize("vector", VECTORS, ids=name)
def test_a_damaged_record_of_an_earlier_version_is_refused(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["encoded"])
    for damaged in (data[:-1], data + b"\0"):
        with pytest.raises(Undecodable):
            CODECS[vector["type"]].decode(damaged)


def test_a_release_reads_what_the_next_one_writes_once_it_lies_in_its_archive(tmp_path: Path) -> None:
    """Readers first: the file of a later version in archive/ is read and never written."""
    now = current("dueline.Highest")
    later = {**now, "fields": [*now["fields"], {"name": "why", "type": ["null", "string"], "default": None}]}
    released = {}
    for name, schema in {"highest.avsc": now, "archive/highest.avsc": later}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(schema), "utf-8")
        parsed = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO")
        number = bytes.fromhex(parsed)[::-1].hex()
        released[number] = {"type": "dueline.Highest", "file": name, "since": "9.0.0"}
    (tmp_path / "released.json").write_text(json.dumps(released), "utf-8")
    registry = Registry(tmp_path)
    highest: Codec[Highest] = Codec(registry, "dueline.Highest", {"dueline.Highest": Highest})
    (mine,) = registry.written()
    (theirs,) = released.keys() - {mine}
    value = {"run": 3, "queue": "q", "work_partition": 1, "why": "a later field"}
    assert {field["name"] for field in now["fields"]} <= value.keys(), "give the new field a value here"
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(later), value)
    found = highest.decode(b"\xc3\x01" + bytes.fromhex(theirs)[::-1] + body.getvalue())
    assert plain(found) == {name: value[name] for name in plain(found)}
    assert registry.known(theirs)


@pytest.mark.parametrize("type_", sorted(CODECS))
def test_what_a_later_version_writes_is_told_by_its_fingerprint(type_: str) -> None:
    """An older reader: it stops where the fingerprint is announced, and buries what is not (tests of fold)."""
    later = b"\xc3\x01" + bytes.fromhex("00000000000000ff")[::-1] + b"\x02\x02"
    with pytest.raises(UnknownFingerprint) as unknown:
        CODECS[type_].decode(later)
    assert unknown.value.fingerprint == 0xFF
