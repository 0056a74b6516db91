"""Writes `pipeline/codec/run_wire.py` from `schemas/run.avsc`: `python tools/generate_codec.py`.

Straight-line Python for the one record that every path handles, 2 to 8 times faster than a general library that is
then checked for what it lets pass. A test regenerates the file and compares; another compares every
function with fastavro. Run it again after a change of the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "schemas" / "run.avsc"
TARGET = ROOT / "pipeline" / "codec" / "run_wire.py"

LEADING = 8
"""Fields of a RunHead: up to `serial`."""
TWINS = {"occurrence_id": "job_id", "idempotency_key": "job_id"}
"""Strings that mostly repeat an earlier one: then neither read again nor kept twice."""
VARYING = (
    "job_id", "occurrence_id", "due_at", "created_at", "serial", "nominal_at", "idempotency_key", "labels",
    "headers", "payload",
)  # fmt: skip
"""What differs between the jobs that one caller creates; the bytes of the rest are made once (`fixed`)."""

HEAD = '''\
"""Made by tools/generate_codec.py from schemas/run.avsc: do not edit, run it again.

Of a Run framed in single-object encoding: `write`, `read` (strict, to the last byte), `peek` (the leading fields),
and `fixed` with `assemble`, which write many runs that differ in little.
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any, NamedTuple

from pipeline.codec.wire import (
    NULL, SOME, Malformed, read_bytes, read_instant, read_int, read_length, read_map, write_bytes,
    write_int, write_long, write_map, write_string,
)
from pipeline.core.job import Run

FRAME = bytes.fromhex("{frame}")
FINGERPRINT = "{fingerprint}"

_new = object.__new__
_tuple = tuple.__new__
# Through the descriptors of its slots: the __init__ of a frozen dataclass calls object.__setattr__ for each
# field, which would take a third of the time of reading a Run.
_slots: Any = Run
'''

STRING = """\
n = data[at]
if n & 129:
    n, at = read_length(data, at)
    end = at + n
else:
    at += 1
    end = at + (n >> 1)
{name} = data[at:end].decode()
at = end"""

INT = """\
n = data[at]
if n < 128:
    {name} = (n >> 1) ^ -(n & 1)
    at += 1
else:
    {name}, at = read_int(data, at)"""

MAP = """\
if data[at]:
    {name}, at = read_map(data, at)
else:
    {name} = {{}}
    at += 1"""

ORIGINAL = """\
begin_{name} = at
{inner}
raw_{name} = data[begin_{name}:at]
size_{name} = at - begin_{name}"""

TWIN = """\
if data[at:at + size_{twin}] == raw_{twin}:
    {name} = {twin}
    at += size_{twin}
else:
{inner}"""

NULLABLE = """\
n = data[at]
at += 1
if n == 0:
    {name} = None
elif n == 2:
{inner}
else:
    raise Malformed("no such branch of the union")"""

TRUNCATED = """\
if at > len(data):
    raise Malformed("truncated")"""

TRAILING = """\
if at != len(data):
    raise Malformed("truncated" if at > len(data) else "trailing bytes")"""


class Field(NamedTuple):
    name: str
    type: Any

    @property
    def inner(self) -> str:
        """The name of the type, of X for ["null", X]; TypeError if it is not one of those that stand here."""
        match self.type:
            case ["null", str() as inner] if inner in HINTS:
                return inner
            case {"type": "map", "values": "string"}:
                return "map"
            case str() as inner if inner in HINTS:
                return inner
        raise TypeError(f"{self.name}: {self.type} is not foreseen")

    @property
    def nullable(self) -> bool:
        return isinstance(self.type, list)

    @property
    def hint(self) -> str:
        return HINTS[self.inner] + (" | None" if self.nullable else "")


HINTS = {"string": "str", "bytes": "bytes", "int": "int", "long": "int", "map": "dict[str, str]"}
READERS = {
    "string": STRING,
    "int": INT,
    "map": MAP,
    "bytes": "{name}, at = read_bytes(data, at)",
    "long": "{name}, at = read_instant(data, at)",
}
"""Source for each type; inlined what most fields of a Run are and short."""


def reading(field: Field, names: Sequence[str]) -> str:
    """Source that reads `field` into a variable of its name; `names` = all that are read."""
    source = READERS[field.inner].format(name=field.name)
    if field.nullable:
        return NULLABLE.format(name=field.name, inner=indent(source, "    "))
    if field.name in TWINS:
        return TWIN.format(name=field.name, twin=TWINS[field.name], inner=indent(source, "    "))
    if any(TWINS.get(name) == field.name for name in names):
        return ORIGINAL.format(name=field.name, inner=source)
    return source


def read_all(fields: Sequence[Field]) -> Iterator[str]:
    names = [field.name for field in fields]
    for field in fields:
        if field.nullable:
            yield f"{field.name}: {field.hint}"
        yield reading(field, names)


def writing(field: Field) -> str:
    """Source of an expression: the bytes of `field` of `value`."""
    value = f"value.{field.name}"
    more = f", {field.name!r}" if field.inner in ("int", "long") else ""
    written = f"write_{field.inner}({value}{more})"
    return f"NULL if {value} is None else SOME + {written}" if field.nullable else written


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
    assert not fixed, "the last field varies"


def functions(fields: Sequence[Field]) -> Iterator[str]:
    leading = fields[:LEADING]
    yield "class RunHead(NamedTuple):"
    yield '    """The leading fields of a Run: all that is needed to file it in the index."""\n'
    yield from (f"    {field.name}: {field.hint}" for field in leading)
    yield "\n\ndef peek(data: bytes, at: int) -> RunHead:"
    yield indent("\n".join([*read_all(leading), TRUNCATED]), "    ")
    yield f"    return _tuple(RunHead, ({', '.join(field.name for field in leading)}))"
    yield "\n\ndef read(data: bytes, at: int) -> Run:"
    yield indent("\n".join([*read_all(fields), TRAILING]), "    ")
    yield "    value = _new(Run)"
    yield from (f"    _set_{field.name}(value, {field.name})" for field in fields)
    yield "    return value"
    yield "\n\ndef write(value: Run) -> bytes:"
    yield '    return b"".join((\n        FRAME,'
    yield from (f"        {writing(field)}," for field in fields)
    yield "    ))"
    yield from assembling(list(stretches(fields)))


def assembling(parts: Sequence[list[Field] | str]) -> Iterator[str]:
    fixed = [part for part in parts if isinstance(part, list)]
    yield f"\n\nFixed = tuple[{', '.join(['bytes'] * len(fixed))}]"
    yield "\n\ndef fixed(value: Run) -> Fixed:"
    yield '    """The bytes of the fields that runs created alike have in common, for `assemble`."""'
    yield "    return ("
    for group in fixed:
        joined = " + ".join(f"({writing(f)})" if f.nullable else writing(f) for f in group)
        yield f"        {joined},"
    yield "    )"
    yield "\n\ndef assemble("
    yield f"    fixed: Fixed, {', '.join(f'{name}: bytes' for name in parts if isinstance(name, str))},"
    yield ") -> bytes:"
    yield '    """A Run of its encoded fields."""'
    place = iter(range(len(fixed)))
    ordered = [part if isinstance(part, str) else f"fixed[{next(place)}]" for part in parts]
    yield f'    return b"".join((FRAME, {", ".join(ordered)}))'


def generate() -> str:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    fields = [Field(field["name"], field["type"]) for field in schema["fields"]]
    released = json.loads((SCHEMA.parent / "released.json").read_text("utf-8"))
    (fingerprint,) = (number for number, entry in released.items() if entry["file"] == SCHEMA.name)
    frame = b"\xc3\x01" + int(fingerprint, 16).to_bytes(8, "little")
    head = HEAD.replace("{frame}", frame.hex()).replace("{fingerprint}", fingerprint)
    setters = [f"_set_{field.name} = _slots.{field.name}.__set__" for field in fields]
    return head + "\n".join([*setters, "\n", *functions(fields)]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generate(), "utf-8")
