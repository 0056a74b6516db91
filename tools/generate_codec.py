"""Writes `run_wire.py`, `ack_wire.py`, `event_wire.py`, `highest_wire.py` and `schedule_wire.py` of `pipeline/codec/`
from `schemas/`: `python tools/generate_codec.py`.

Straight-line Python for the records that every run costs, 2 to 10 times faster than a general library that is
then checked for what it lets pass. A test regenerates the files and compares; others compare every
function with fastavro. Run it again after a change of these schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from textwrap import fill, indent
from typing import Any, NamedTuple

from codec_templates import (
    ARRAY,
    DRAFT,
    ENUM,
    ENUM_TABLES,
    HEAD,
    INT,
    MAP,
    NULLABLE,
    OLDER,
    ORIGINAL,
    SKIP_LENGTH,
    SKIP_NULLABLE,
    SKIP_NUMBER,
    SKIP_REST,
    STRING,
    TRAILING,
    TRUNCATED,
    TWIN,
)

ROOT = Path(__file__).parents[1]
SCHEMAS = ROOT / "schemas"
CODEC = ROOT / "pipeline" / "codec"

LEADING = 8
"""Fields of a RunHead: up to `serial`."""
OPENING = slice(2, 7)
"""Fields of an Ack after its ids and before what is its own: the same for many attempts of one worker."""
INSTANT = 2
"""Of its own the first so many: the same for all that a batch brings to one state."""
TWINS = {"occurrence_id": "job_id", "idempotency_key": "job_id", "nominal_at": "due_at"}
"""Fields that mostly repeat an earlier one: then neither read again nor kept twice nor encoded again."""
ENUMS = {"state": "AckState"}
"""Strings of which there are few, by the type that names them."""
SPARSE = 3
"""So many fields in a row that are mostly empty, each one zero byte then, are looked at together first."""
SELDOM_EMPTY = {"started_at"}
VARYING = (
    "job_id", "occurrence_id", "due_at", "created_at", "serial", "nominal_at", "idempotency_key", "labels",
    "headers", "payload",
)  # fmt: skip
"""What differs between the jobs that one caller creates; the bytes of the rest are made once (`fixed`)."""

HINTS = {
    "string": "str", "bytes": "bytes", "int": "int", "long": "int", "boolean": "bool", "map": "dict[str, str]",
    "numbers": "dict[str, int]", "lists": "dict[str, tuple[str, ...]]", "longs": "tuple[int, ...]",
}  # fmt: skip
READERS = {
    "string": STRING,
    "int": INT,
    "map": MAP,
    "bytes": "{name}, pos = read_bytes(data, pos)",
    "long": "{name}, pos = read_instant(data, pos)",
    "boolean": "{name}, pos = read_boolean(data, pos)",
    "numbers": "{name}, pos = read_numbers(data, pos)",
    "lists": "{name}, pos = read_lists(data, pos)",
    "longs": "{name}, pos = read_longs(data, pos)",
}
"""Source for each type; inlined what most fields are and short."""
NAMED = {"string", "int", "long", "map", "numbers", "lists", "longs"}
"""Types of which not every value can be written: their writers are told the field."""
EMPTY = {"int": "0", "map": "{}", "numbers": "{}", "lists": "{}", "longs": "()", "boolean": "False"}
"""What one zero byte says, of what may be a field of a sparse stretch; of a nullable one it is None."""


PLACES = (
    "id", "handler", "queue", "payload", "cron", "overlap_timeout_ms", "attempt_limit", "serial", "labels", "source",
    "last_nominal", "paused",
)  # fmt: skip
"""Fields of a Schedule and its spec of which `places` says where they begin: whoever fires one copies what stands
between them."""


class Field(NamedTuple):
    name: str
    type: Any

    @property
    def inner(self) -> str:
        """The name of the type, of X for ["null", X] and for an array of X; TypeError if it is not one of those that
        stand here."""
        match self.type[1] if self.nullable else self.type:
            case {"type": "map", "values": "string"}:
                return "map"
            case {"type": "map", "values": "long"}:
                return "numbers"
            case {"type": "map", "values": {"type": "array", "items": "string"}}:
                return "lists"
            case {"type": "array", "items": "long"}:
                return "longs"
            case {"type": "record", "name": str() as name} | {
                "type": "array",
                "items": {"type": "record", "name": str() as name},
            }:
                return name
            case str() as inner if inner in HINTS:
                return inner
        raise TypeError(f"{self.name}: {self.type} is not foreseen")

    @property
    def nullable(self) -> bool:
        return isinstance(self.type, list) and len(self.type) == 2 and self.type[0] == "null"

    @property
    def array(self) -> bool:
        """Whether it is an array of records."""
        return isinstance(self.type, dict) and self.type["type"] == "array" and self.inner != "longs"

    @property
    def record(self) -> list[Field] | None:
        """The fields of the record or records in it; None for another type."""
        inner = self.type[1] if self.nullable else self.type["items"] if self.array else self.type
        return None if self.inner in HINTS else fields_of(inner)

    @property
    def hint(self) -> str:
        inner = ENUMS.get(self.name) or HINTS.get(self.inner) or self.inner
        return f"tuple[{inner}, ...]" if self.array else inner + (" | None" if self.nullable else "")

    @property
    def empty(self) -> str | None:
        """Source of the value that one zero byte stands for; None for a field that is hardly ever empty."""
        if self.name in SELDOM_EMPTY:
            return None
        return "None" if self.nullable else "()" if self.array else EMPTY.get(self.inner)


def fields_of(schema: Any) -> list[Field]:
    return [Field(field["name"], field["type"]) for field in schema["fields"]]


# -- reading ------------------------------------------------------------------------------------------------


def reading(field: Field, names: Sequence[str]) -> str:
    """Source that reads `field` into a variable of its name; `names` = all that are read."""
    if field.array:
        return ARRAY.format(name=field.name, item=field.inner.lower())
    template = ENUM if field.name in ENUMS else READERS.get(field.inner)
    source = (template or f"{{name}}, pos = read_{field.inner.lower()}(data, pos)").format(name=field.name)
    if field.nullable:
        return NULLABLE.format(name=field.name, inner=indent(source, "    "))
    if field.name in TWINS and TWINS[field.name] in names:
        return TWIN.format(name=field.name, twin=TWINS[field.name], inner=indent(source, "    "))
    if any(TWINS.get(name) == field.name for name in names):
        return ORIGINAL.format(name=field.name, inner=source)
    return source


def read_all(fields: Sequence[Field]) -> Iterator[str]:
    names = [field.name for field in fields]
    yield from (
        f"{field.name}: {field.hint}"
        for field in fields
        if field.nullable or field.array or field.inner in ("map", "numbers", "lists", "longs")
    )
    for sparse, group in groupby(fields, key=lambda field: field.empty is not None):
        stretch = list(group)
        source = "\n".join(reading(field, names) for field in stretch)
        yield emptiness(stretch, source) if sparse and len(stretch) >= SPARSE else source


def emptiness(stretch: Sequence[Field], otherwise: str) -> str:
    """Source that takes a whole stretch of empty fields at a glance, else runs `otherwise`."""
    size = len(stretch)
    assigned = (f"    {field.name} = {field.empty}" for field in stretch)
    zeros = r"\0" * size
    lines = [f'if data[pos:pos + {size}] == b"{zeros}":', *assigned, f"    pos += {size}", "else:"]
    return "\n".join([*lines, indent(otherwise, "    ")])


def building(name: str, fields: Sequence[Field]) -> Iterator[str]:
    yield f"    value: Any = _{name}Draft()"
    yield from (f"    value.{field.name} = {field.name}" for field in fields)
    yield f"    value.__class__ = {name}"


def read_function(name: str, fields: Sequence[Field]) -> Iterator[str]:
    yield f"def read(data: bytes, pos: int) -> {name}:"
    yield indent("\n".join([*read_all(fields), TRAILING]), "    ")
    yield from building(name, fields)
    yield f"    built: {name} = value"
    yield "    return built\n\n"


def peek_function(fields: Sequence[Field]) -> Iterator[str]:
    leading = fields[:LEADING]
    yield "class RunHead(NamedTuple):"
    yield '    """The leading fields of a Run: all that is needed to file it in the index."""\n'
    yield from (f"    {field.name}: {field.hint}" for field in leading)
    yield "\n\ndef peek(data: bytes, pos: int) -> RunHead:"
    names = [field.name for field in leading]
    source = "\n".join(reading(field, names) for field in leading)
    yield indent("\n".join(["serial: str | None", source, TRUNCATED]), "    ")
    yield f"    return tuple.__new__(RunHead, ({', '.join(names)}))\n\n"


# -- writing ------------------------------------------------------------------------------------------------


def writing(field: Field, of: str = "value.", names: Sequence[str] = ()) -> str:
    """Source of an expression: the bytes of `field`; `of` stands before its name, `names` = all that are written
    with it, in order."""
    value = f"{of}{field.name}"
    twin = TWINS.get(field.name)
    if field.name in ENUMS:
        return f"_written_{field.name}[{value}]"
    if field.array:
        return f"write_array({value}, write_{field.inner.lower()}) if {value} else NULL"
    more = f", {field.name!r}" if field.inner in NAMED else ""
    written = f"write_{field.inner.lower()}({value}{more})"
    if field.nullable:
        return f"NULL if {value} is None else SOME + {written}"
    if twin in names:
        return f"of_{twin} if {value} == {of}{twin} else {written}"
    if any(TWINS.get(name) == field.name for name in names):
        return f"(of_{field.name} := {written})"
    return written


def joined(fields: Sequence[Field], of: str, *, first: str = "", last: str = "") -> Iterator[str]:
    """Source of a return of the bytes of `fields`, with those in the variables `first` and `last` around them."""
    names = [field.name for field in fields]
    yield '    return b"".join(('
    parts = [first, *(writing(field, of, names) for field in fields), last]
    yield from (f"        {part}," for part in parts if part)
    yield "    ))"


def write_function(name: str, fields: Sequence[Field]) -> Iterator[str]:
    yield f"def write(value: {name}) -> bytes:"
    yield from joined(fields, "value.", first="FRAME")


def nested(fields: Sequence[Field]) -> Iterator[tuple[str, list[Field]]]:
    """The records inside another, by name, each behind those that stand in it."""
    for field in fields:
        if field.record is not None:
            yield from nested(field.record)
            yield field.inner, field.record


def nested_functions(name: str, fields: Sequence[Field]) -> Iterator[str]:
    """A record inside another: read and written without a frame, and to where it ends."""
    yield f"def read_{name.lower()}(data: bytes, pos: int) -> tuple[{name}, int]:"
    yield indent("\n".join(read_all(fields)), "    ")
    yield from building(name, fields)
    yield "    return value, pos\n\n"
    yield f"def write_{name.lower()}(value: {name}) -> bytes:"
    yield from joined(fields, "value.")
    yield "\n"


def inside(fields: Sequence[Field]) -> Iterator[str]:
    for name, record in nested(fields):
        yield from nested_functions(name, record)


def stretches(fields: Sequence[Field]) -> Iterator[list[Field] | str]:
    """Fields in order: each varying one by its name, those between two of them together."""
    fixed: list[Field] = []
    for field in fields:
        if field.name not in VARYING:
            fixed.append(field)
            continue
        if fixed:
            yield fixed
            fixed = []
        yield field.name
    if fixed:
        yield fixed


def assembling(parts: Sequence[list[Field] | str]) -> Iterator[str]:
    fixed = [part for part in parts if isinstance(part, list)]
    yield f"\n\nFixed = tuple[{', '.join(['bytes'] * len(fixed))}]"
    yield "\n\ndef fixed(value: Run) -> Fixed:"
    yield '    """The bytes of the fields that runs created alike have in common, for `assemble`."""'
    yield "    return ("
    for group in fixed:
        joined = " + ".join(f"({writing(f)})" if " if " in writing(f) else writing(f) for f in group)
        yield f"        {joined},"
    yield "    )"
    yield "\n\ndef assemble("
    yield f"    fixed: Fixed, {', '.join(f'{name}: bytes' for name in parts if isinstance(name, str))},"
    yield ") -> bytes:"
    yield '    """A Run of its encoded fields."""'
    place = iter(range(len(fixed)))
    ordered = [part if isinstance(part, str) else f"fixed[{next(place)}]" for part in parts]
    yield f'    return b"".join((FRAME, {", ".join(ordered)}))'


def sharing(fields: Sequence[Field]) -> Iterator[str]:
    """`share`, `begin`, `when` and `complete`, and `write` of the four."""
    ids, shared, own = fields[: OPENING.start], fields[OPENING], fields[OPENING.stop :]
    instant, own = own[:INSTANT], own[INSTANT:]
    seldom = [field.name for field in own if field.empty]
    yield f"def share({parameters(shared)}) -> bytes:"
    yield '    """The bytes that many attempts of one worker have in common, for `begin`."""'
    yield from joined(shared, "")
    yield f"\n\ndef begin({parameters(ids)}, shared: bytes) -> bytes:"
    yield '    """The bytes that all acks of one attempt begin with, for `complete`."""'
    yield from joined(ids, "", first="FRAME", last="shared")
    yield f"\n\ndef when({parameters(instant)}) -> bytes:"
    yield '    """The bytes that all acks of one state and instant have in common, for `complete`."""'
    yield from joined(instant, "")
    yield f"\n\ndef complete(opening: bytes, when: bytes, {parameters(own)}) -> bytes:"
    yield '    """An Ack: what `begin` and `when` gave, and what is its own."""'
    yield f"    if {' is None and '.join(seldom)} is None:"
    most = joined(
        [field for field in own if not field.empty],
        "",
        first="opening, when",
        last='b"' + r"\0" * len(seldom) + '"',
    )
    yield indent("\n".join(most), "    ")
    yield from joined(own, "", first="opening, when")
    yield "\n\ndef write(value: Ack) -> bytes:"
    yield f"    shared = share({arguments(shared)})"
    begun, instant = f"begin({arguments(ids)}, shared)", f"when({arguments(instant)})"
    yield f"    return complete({begun}, {instant}, {arguments(own)})"


def parameters(fields: Sequence[Field]) -> str:
    return ", ".join(f"{f.name}: {f.hint}{' = None' if f.nullable else ''}" for f in fields)


def arguments(fields: Sequence[Field]) -> str:
    return ", ".join(f"value.{field.name}" for field in fields)


# -- stepping over ------------------------------------------------------------------------------------------


def skipping(field: Field) -> str:
    """Source that moves `pos` behind `field`, of which the bytes were checked when they were read."""
    match field.inner:
        case "string" | "bytes":
            source = SKIP_LENGTH
        case "int" | "long":
            source = SKIP_NUMBER
        case inner:
            source = SKIP_REST.format(inner=inner)
    return SKIP_NULLABLE.format(inner=indent(source, "    ")) if field.nullable else source


def places_function(fields: Sequence[Field]) -> Iterator[str]:
    """`places`, of the fields of a Schedule up to the last one in PLACES."""
    flat = [inner for field in fields for inner in (field.record or [field] if not field.array else [field])]
    last = max(place for place, field in enumerate(flat) if field.name in PLACES)
    yield "class Places(NamedTuple):"
    yield '    """Where these fields begin."""\n'
    yield from (f"    {name}: int" for name in PLACES)
    yield "\n\ndef places(data: bytes, pos: int) -> Places:"
    yield '    """Of a Schedule that `read` has taken before: nothing is checked a second time."""'
    yield from (indent(marking(field), "    ") for field in flat[:last])
    yield f"    return tuple.__new__(Places, ({', '.join(f'at_{name}' for name in PLACES[:-1])}, pos))\n\n"


def marking(field: Field) -> str:
    return (f"at_{field.name} = pos\n" if field.name in PLACES else "") + skipping(field)


# -- the files ------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One file: made from which schema, what is said of it, what it holds beside what every one holds, and where its
    types are."""

    schema: str
    target: str
    about: str
    functions: Callable[[Sequence[Field]], Iterator[str]]
    module: str = "job"


def run_functions(fields: Sequence[Field]) -> Iterator[str]:
    yield from peek_function(fields)
    yield from inside(fields)
    yield from read_function("Run", fields)
    yield from write_function("Run", fields)
    yield from assembling(list(stretches(fields)))


def ack_functions(fields: Sequence[Field]) -> Iterator[str]:
    yield from inside(fields)
    yield from read_function("Ack", fields)
    yield from sharing(fields)


def event_functions(fields: Sequence[Field]) -> Iterator[str]:
    yield from read_function("Event", fields)
    yield from write_function("Event", fields)


def highest_functions(fields: Sequence[Field]) -> Iterator[str]:
    yield from read_function("Highest", fields)
    yield from write_function("Highest", fields)


def schedule_functions(fields: Sequence[Field]) -> Iterator[str]:
    yield from inside(fields)
    yield from places_function(fields)
    yield from read_function("Schedule", fields)
    yield from write_function("Schedule", fields)


PLANS = (
    Plan(
        "run.avsc",
        "run_wire.py",
        "Of a Run framed in single-object encoding: `write`, `read` (strict, to the last byte), `peek` (the leading"
        " fields),\nand `fixed` with `assemble`, which write many runs that differ in little.",
        run_functions,
    ),
    Plan(
        "ack.avsc",
        "ack_wire.py",
        "Of an Ack framed in single-object encoding: `write`, `read` (strict, to the last byte), and `share`,"
        " `begin`,\n`when` and `complete`, which write the acks of one worker.",
        ack_functions,
    ),
    Plan(
        "event.avsc",
        "event_wire.py",
        "Of an Event framed in single-object encoding: `write`, and `read` (strict, to the last byte).",
        event_functions,
    ),
    Plan(
        "highest.avsc",
        "highest_wire.py",
        "Of a Highest framed in single-object encoding: `write`, and `read` (strict, to the last byte).",
        highest_functions,
    ),
    Plan(
        "schedule.avsc",
        "schedule_wire.py",
        "Of a Schedule framed in single-object encoding: `write`, `read` (strict, to the last byte), and `places`,"
        " where some\nof its fields stand.",
        schedule_functions,
        "schedule",
    ),
)
WIRE = (
    "NULL", "SOME", "Malformed", "read_array", "read_boolean", "read_bytes", "read_instant", "read_int", "read_length",
    "read_lists", "read_longs", "read_map", "read_numbers", "write_array", "write_boolean", "write_bytes", "write_int",
    "write_lists", "write_long", "write_longs", "write_map", "write_numbers", "write_string",
)  # fmt: skip


def used(names: Sequence[str], body: str) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", body)]


def older(file: str, fields: Sequence[Field], released: dict[str, dict[str, str]]) -> str:
    """Source that names the versions that are this one's beginning: what is behind it would be empty in them."""
    lines = ""
    for fingerprint, entry in released.items():
        if entry["file"].startswith(f"archive/{file.removesuffix('avsc')}"):
            known = fields_of(json.loads((SCHEMAS / entry["file"]).read_text("utf-8")))
            behind = tuple(field.name for field in fields[len(known) :])
            if known == list(fields[: len(known)]) and all(field.empty for field in fields[len(known) :]):
                lines += f'    bytes.fromhex("{frame_of(fingerprint)}"): {behind},\n'
    return OLDER.format(lines=lines) if lines else ""


def frame_of(fingerprint: str) -> str:
    """How a value begins that was written with this version, in hex."""
    return (b"\xc3\x01" + int(fingerprint, 16).to_bytes(8, "little")).hex()


def generate(plan: Plan) -> str:
    schema = json.loads((SCHEMAS / plan.schema).read_text("utf-8"))
    fields = fields_of(schema)
    records = [schema["name"], *(name for name, _ in nested(fields))]
    enums = {field.name: ENUMS[field.name] for field in fields if field.name in ENUMS}
    released = json.loads((SCHEMAS / "released.json").read_text("utf-8"))
    (fingerprint,) = (number for number, entry in released.items() if entry["file"] == plan.schema)
    tables = [ENUM_TABLES.format(name=name, type=type_) for name, type_ in enums.items()]
    drafts = [DRAFT.format(name=name) for name in records]
    body = "\n".join(["".join([*drafts, *tables]) + "\n".join(plan.functions(fields))]) + "\n"
    head = HEAD.format(
        schema=plan.schema,
        module=plan.module,
        about=plan.about,
        typing=", NamedTuple" if "NamedTuple" in body else "",
        wire=fill(", ".join(used(WIRE, body)) + ",", 110, initial_indent="    ", subsequent_indent="    "),
        types=", ".join(sorted([*records, *enums.values()])),
        frame=frame_of(fingerprint),
        fingerprint=fingerprint,
        older=older(plan.schema, fields, released),
    )
    return head + body


if __name__ == "__main__":
    for each in PLANS:
        (CODEC / each.target).write_text(generate(each), "utf-8")
