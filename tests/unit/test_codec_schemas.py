"""Schemas: what was released never changes, older versions stay readable; the rules of schemas/README.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form

from pipeline import codec
from pipeline.codec.registry import FRAME, Codec, Registry
from pipeline.codec.straight import RunCodec
from pipeline.core.errors import Undecodable, UnknownFingerprint
from pipeline.core.job import Run

SCHEMAS = Path(str(codec.schema_dir()))
FILES = {
    path.relative_to(SCHEMAS).as_posix(): json.loads(path.read_text("utf-8"))
    for path in SCHEMAS.rglob("*.avsc")
}
RELEASED = json.loads((SCHEMAS / "released.json").read_text("utf-8"))
VECTORS = json.loads((SCHEMAS / "vectors" / "codec.json").read_text("utf-8"))
CURRENT = {name: schema for name, schema in FILES.items() if "/" not in name}


def fingerprint(schema: Any) -> str:
    """CRC-64-AVRO of the Avro specification, written out independently of the library."""
    crc = empty = 0xC15D213AA4D7A795
    for byte in to_parsing_canonical_form(schema).encode():
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (empty if crc & 1 else 0)
    return f"{crc:016x}"


def records(schema: Any) -> Iterator[dict[str, Any]]:
    match schema:
        case {"type": "record", "fields": inside}:
            yield schema
            for each in inside:
                yield from records(each["type"])
        case {"items": inner} | {"values": inner}:
            yield from records(inner)
        case list():
            for branch in schema:
                yield from records(branch)


@pytest.mark.parametrize("vector", VECTORS["fingerprints"], ids=lambda vector: vector["schema"])
def test_fingerprints_are_those_of_the_specification(vector: dict[str, str]) -> None:
    assert fingerprint(json.loads(vector["schema"])) == vector["fingerprint"]
    ours = fastavro.schema.fingerprint(to_parsing_canonical_form(json.loads(vector["schema"])), "CRC-64-AVRO")
    assert bytes.fromhex(ours)[::-1].hex() == vector["fingerprint"]


@pytest.mark.parametrize("name", FILES)
def test_every_schema_is_released_as_it_is(name: str) -> None:
    """Changed an .avsc? Move the old one to archive/<name>.<fingerprint>.avsc, give the new one a line."""
    entry = RELEASED.get(fingerprint(FILES[name]))
    assert entry is not None, f"{name} has fingerprint {fingerprint(FILES[name])}, which was never released"
    schema = FILES[name]
    assert entry["file"] == name
    assert entry["type"] == f"{schema['namespace']}.{schema['name']}"
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["since"])
    archived = re.fullmatch(r"archive/[a-z_]+\.([0-9a-f]{16})\.avsc", name)
    assert archived is None or archived[1] == fingerprint(schema)


def test_every_released_version_has_its_file() -> None:
    assert {entry["file"] for entry in RELEASED.values()} == set(FILES)
    assert set(codec.fingerprints()) == {fingerprint(schema) for schema in CURRENT.values()}
    assert all(codec.known(each) for each in RELEASED)
    assert not codec.known("0" * 16)


SCALARS = {"string", "bytes", "int", "long", "boolean"}


def check_rules(type_: Any, inside: tuple[str, ...] = ()) -> None:
    """ValueError unless a reader can neither recurse nor make items out of no bytes: a schema of its own name
    inside itself ends the process on deep input, an array of empty items fills the memory from six bytes."""
    match type_:
        case str() if type_ in SCALARS:
            return
        case str() if type_ not in inside and f"dueline.{type_}" not in inside and type_ in NAMED:
            return
        case ["null", inner] if not isinstance(inner, list):
            check_rules(inner, inside)
        case {"type": "record", "name": name, "fields": [_, *_] as fields_}:
            for each in fields_:
                check_rules(each["type"], (*inside, name))
        case {"type": "array", "items": items} | {"type": "map", "values": items}:
            check_rules(items, inside)
        case _:
            raise ValueError(f"{type_} breaks a rule of the schemas")


NAMED = {record["name"] for schema in FILES.values() for record in records(schema)}


@pytest.mark.parametrize("name", FILES)
def test_rules_of_a_schema(name: str) -> None:
    check_rules(FILES[name])
    for record in records(FILES[name]):
        assert record["doc"]
        for each in record["fields"]:
            assert each["doc"].endswith(".")
            assert "logicalType" not in json.dumps(each)
            if isinstance(each["type"], list):
                assert each["type"][0] == "null"
                assert each["default"] is None


@pytest.mark.parametrize("name", CURRENT)
def test_a_schema_and_its_type_have_the_same_fields(name: str) -> None:
    for record in records(CURRENT[name]):
        of_type = {each.name for each in fields(codec._TYPES[f"dueline.{record['name']}"])}
        assert {each["name"] for each in record["fields"]} == of_type


RUNS = [name for name in FILES if re.search(r"(^|/)run\.", name)]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_any_version_is_the_beginning_of_a_current_one(name: str) -> None:
    """So the straight lines read them all: what came later is one zero byte each, behind the rest."""
    known, now = FILES[name]["fields"], FILES["run.avsc"]["fields"]
    assert [(f["name"], f["type"]) for f in known] == [(f["name"], f["type"]) for f in now[: len(known)]]
    assert all(f["default"] in (None, 0, [], {}) for f in now[len(known) :])
    names = [each["name"] for each in known]
    assert tuple(names[: len(codec.RunHead._fields)]) == codec.RunHead._fields
    assert "payload" in names


def test_a_record_inside_others_is_the_same_everywhere() -> None:
    seen: dict[str, str] = {}
    for schema in CURRENT.values():
        for record in records(schema):
            text = json.dumps({key: value for key, value in record.items() if key != "namespace"})
            assert seen.setdefault(record["name"], text) == text


def test_the_example_of_the_readme_reads_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCHEMAS.resolve().parent)
    example = re.search(r"```python\n(.*?)```", (SCHEMAS / "README.md").read_text("utf-8"), re.DOTALL)
    assert example is not None
    scope: dict[str, Any] = {}
    exec(example[1], scope)
    run = next(each for each in VECTORS["vectors"] if each["type"] == "dueline.Run")
    assert scope["read"](bytes.fromhex(run["encoded"]))["job_id"] == run["value"]["job_id"]


LOOP = {"type": "record", "name": "Loop", "fields": [{"name": "next", "type": ["null", "Loop"]}]}
EMPTY = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    "forbidden",
    [
        LOOP,
        EMPTY,
        "double",
        "null",
        ["string", "null"],
        ["null", "string", "int"],
        {"type": "array", "items": "null"},
    ],
    ids=["recursive", "empty", "double", "null", "null last", "three branches", "items of no bytes"],
)
def test_what_could_hang_or_crash_a_reader_is_no_schema(forbidden: Any) -> None:
    schema = {"type": "record", "name": "dueline.X", "fields": [{"name": "x", "type": forbidden}]}
    with pytest.raises(ValueError, match="rule"):
        check_rules(schema)


# -- evolution ----------------------------------------------------------------------------------------------


def thing(*more: dict[str, Any], size: str) -> dict[str, Any]:
    inside = [{"name": "name", "type": "string"}, {"name": "size", "type": size}, *more]
    return {"type": "record", "name": "Thing", "namespace": "dueline", "fields": inside}


OLD = thing({"name": "gone", "type": ["null", "string"], "default": None}, size="int")
NEW = thing(
    {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}},
    {"name": "note", "type": ["null", "string"], "default": None},
    size="long",
)
OTHER = {**thing(size="int"), "name": "Other"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    size: int
    labels: dict[str, str] = field(default_factory=dict)
    note: str | None = None


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """A later release: Thing has moved on, its old version lies in the archive."""
    archived = f"archive/thing.{fingerprint(OLD)}.avsc"
    released = {}
    for name, schema in {"thing.avsc": NEW, archived: OLD, "other.avsc": OTHER}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(schema), "utf-8")
        released[fingerprint(schema)] = {"type": f"dueline.{schema['name']}", "file": name, "since": "1.0.0"}
    (tmp_path / "released.json").write_text(json.dumps(released), "utf-8")
    return Registry(tmp_path)


@pytest.fixture
def things(registry: Registry) -> Codec[Thing]:
    return Codec(registry, "dueline.Thing", {"dueline.Thing": Thing})


def written_with(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\xc3\x01" + bytes.fromhex(fingerprint(schema))[::-1] + body.getvalue()


def test_an_older_version_is_read_as_the_current_one(things: Codec[Thing]) -> None:
    old = written_with(OLD, {"name": "a", "size": 7, "gone": "x"})
    assert things.decode(old) == Thing(name="a", size=7)
    assert things.encode(things.decode(old)) == written_with(NEW, {"name": "a", "size": 7})


def test_defaults_of_older_records_are_not_shared(things: Codec[Thing]) -> None:
    old = written_with(OLD, {"name": "a", "size": 7})
    things.decode(old).labels["mine"] = "only"
    assert things.decode(old).labels == {}


def test_only_the_current_version_is_written_and_both_are_known(registry: Registry) -> None:
    assert registry.written() == (fingerprint(OTHER), fingerprint(NEW))
    assert registry.known(fingerprint(OLD))


def test_an_older_version_is_checked_as_strictly(things: Codec[Thing]) -> None:
    old = written_with(OLD, {"name": "a", "size": 7})
    for hostile in (old + b"\0", old[:-1], old[:-1] + b"\x03", old[: FRAME + 2] + b"\x8e\x00\x00"):
        with pytest.raises(Undecodable, match=r"^dueline\.Thing: "):
            things.decode(hostile)


def test_another_type_or_an_unreleased_version_is_refused(things: Codec[Thing]) -> None:
    with pytest.raises(Undecodable, match=r"a dueline\.Other where a dueline\.Thing is expected"):
        things.decode(written_with(OTHER, {"name": "a", "size": 7}))
    with pytest.raises(UnknownFingerprint):
        things.decode(written_with(thing(size="long"), {"name": "a", "size": 7}))


def test_an_older_version_of_a_run_is_read_and_peeked_into(tmp_path: Path) -> None:
    """What its straight lines do not know comes through the library."""
    new = CURRENT["run.avsc"]
    old = {**new, "fields": [field for field in new["fields"] if field["name"] not in ("serial", "labels")]}
    released = {}
    for name, schema in {"run.avsc": new, "old.avsc": old}.items():
        where = name if name == "run.avsc" else f"archive/{name}"
        (tmp_path / where).parent.mkdir(exist_ok=True)
        (tmp_path / where).write_text(json.dumps(schema), "utf-8")
        released[fingerprint(schema)] = {"type": "dueline.Run", "file": where, "since": "1.0.0"}
    (tmp_path / "released.json").write_text(json.dumps(released), "utf-8")
    runs = RunCodec(Registry(tmp_path), "dueline.Run", {"dueline.Run": Run})
    run = Run(
        job_id="j", occurrence_id="j", due_at=9, run=1, queue="q", handler="h", created_at=5, nominal_at=9,
        idempotency_key="j", payload=b"{}",
    )  # fmt: skip
    data = written_with(old, {name: getattr(run, name) for name in Run.__slots__})
    assert runs.decode(data) == run
    assert runs.peek(data) == ("j", "j", 9, 1, "q", "h", 5, None)
    for read in (runs.decode, runs.peek):
        with pytest.raises(Undecodable, match=r"^dueline\.Run: "):
            read(data[:-1])
