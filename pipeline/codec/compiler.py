"""Schemas compiled to straight-line Python, once each, the way dataclasses makes `__init__`.

Why not fastavro's own reader: it takes negative union indices, over-long integers and trailing bytes without
a word and does not know the range of an int. Finding these by encoding again and comparing takes more than
twice as long as this. fastavro parses the schemas, resolves older versions and is the oracle of the tests.

Types allowed: string, bytes, int, long, boolean, record, array, map and ["null", X]. Records do not recurse
and take at least one byte, so every item read has cost its sender a byte: input bounds allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from textwrap import indent
from typing import Any, cast, get_type_hints

from pipeline.codec import wire
from pipeline.codec.wire import Read, Write

Schema = Any
"""A schema as `fastavro.parse_schema` returns it: every name is a full name."""

_READERS: dict[str, Read] = {
    "string": wire.read_string,
    "bytes": wire.read_bytes,
    "int": wire.read_int,
    "long": wire.read_long,
    "boolean": wire.read_boolean,
}
_WRITERS = (
    wire.write_string,
    wire.write_bytes,
    wire.write_int,
    wire.write_long,
    wire.write_boolean,
    wire.write_array,
    wire.write_map,
)

# Inlined: most fields of a Run are strings, and most of the nullable ones are null.
_READ_STRING = """\
n = data[at]
if n > 127 or n & 1:
    n, at = read_length(data, at)
else:
    n >>= 1
    at += 1
end = at + n
{name} = data[at:end].decode()
at = end"""

_READ_NULLABLE = """\
n = data[at]
at += 1
if n == 0:
    {name} = None
elif n == 2:
{inner}
else:
    raise Malformed("no such branch of the union")"""


def compile_reader(schema: Schema, types: Mapping[str, type]) -> Read:
    """A reader of the record `schema`. A record whose full name is in `types` is built as that type, a
    dataclass or NamedTuple with the same fields, else as a dict. TypeError if a type is not allowed."""
    return _ReaderCompiler(types).reader(schema)


def compile_writer(schema: Schema) -> Write:
    """A writer of the record `schema` from any object that has its fields as attributes.

    It raises InvalidInput naming the field if an integer does not fit, UnicodeEncodeError on lone surrogates.
    """
    return _WriterCompiler().record(schema)


class _ReaderCompiler:
    def __init__(self, types: Mapping[str, type]) -> None:
        self._types = types
        self._readers = dict(_READERS)
        self._scope: dict[str, Any] = {
            "Malformed": wire.Malformed,
            "read_length": wire.read_length,
            "new": object.__new__,
        }

    def reader(self, schema: Schema) -> Read:
        match schema:
            case str() if schema in self._readers:
                return self._readers[schema]
            case {"type": "record", "name": name}:
                self._readers[name] = self._record(schema)
                return self._readers[name]
            case {"type": "array", "items": items}:
                return wire.array_reader(self.reader(items))
            case {"type": "map", "values": values}:
                return wire.map_reader(self.reader(values))
        raise TypeError(f"not allowed in a schema, or not there: {schema}")

    def _record(self, schema: Schema) -> Read:
        fields = [field["name"] for field in schema["fields"]]
        if not fields:
            raise TypeError("a record without fields takes no bytes")
        # The records share one scope, so a field's variable carries the name of its record.
        names = [f"{_identifier(schema)}_{field}" for field in fields]
        source = [
            self._field(field["type"], name) for field, name in zip(schema["fields"], names, strict=True)
        ]
        source += self._build(self._types.get(schema["name"]), fields, names)
        return cast(Read, _define(f"read_{_identifier(schema)}", "data, at", source, self._scope))

    def _field(self, schema: Schema, name: str) -> str:
        """Source that reads a value of `schema` into the variable `name`."""
        match schema:
            case "string":
                return _READ_STRING.format(name=name)
            case ["null", inner]:
                return _READ_NULLABLE.format(name=name, inner=indent(self._field(inner, name), "    "))
        self._scope[f"reader_{name}"] = self.reader(schema)
        return f"{name}, at = reader_{name}(data, at)"

    def _build(self, cls: type | None, fields: Sequence[str], names: Sequence[str]) -> Iterator[str]:
        """Source that returns the record made of the variables `names`, and where reading ended."""
        pairs = list(zip(fields, names, strict=True))
        if cls is None:
            yield f"return {{{', '.join(f'{field!r}: {name}' for field, name in pairs)}}}, at"
            return
        self._scope[cls.__name__] = cls
        yield from self._enums(cls, pairs)
        if is_dataclass(cls) and not hasattr(cls, "__post_init__"):
            yield from self._set_slots(cls, pairs)
        else:
            yield f"return {cls.__name__}({', '.join(f'{field}={name}' for field, name in pairs)}), at"

    def _enums(self, cls: type, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
        hints = get_type_hints(cls)
        for field, name in pairs:
            hint = hints[field]
            if isinstance(hint, type) and issubclass(hint, Enum):
                self._scope[hint.__name__] = hint
                yield f"{name} = {hint.__name__}({name})"

    def _set_slots(self, cls: type, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
        # Through their descriptors: the __init__ of a frozen dataclass calls object.__setattr__ for each
        # field, which would take a third of the time of decoding a Run.
        yield f"value = new({cls.__name__})"
        for field, name in pairs:
            self._scope[f"set_{name}"] = getattr(cls, field).__set__
            yield f"set_{name}(value, {name})"
        yield "return value, at"


class _WriterCompiler:
    def __init__(self) -> None:
        self._scope: dict[str, Any] = {function.__name__: function for function in _WRITERS}

    def record(self, schema: Schema) -> Write:
        parts = [self._expression(f["type"], f"value.{f['name']}", f["name"]) for f in schema["fields"]]
        source = [f'return b"".join(({", ".join(parts)},))']
        return cast(Write, _define(f"write_{_identifier(schema)}", "value", source, self._scope))

    def _expression(self, schema: Schema, value: str, field: str) -> str:
        """Source of the bytes of `value`, itself source; `field` is what an error will name."""
        match schema:
            case "string" | "bytes" | "boolean":
                return f"write_{schema}({value})"
            case "int" | "long":
                return f"write_{schema}({value}, {field!r})"
            case ["null", inner]:
                return f'b"\\0" if {value} is None else b"\\2" + {self._expression(inner, value, field)}'
            case {"type": "array", "items": items}:
                return f"write_array({value}, lambda item: {self._expression(items, 'item', field)})"
            case {"type": "map", "values": values}:
                return f"write_map({value}, lambda item: {self._expression(values, 'item', field)})"
            case {"type": "record"}:
                self.record(schema)
        return f"write_{_identifier(schema)}({value})"


def _identifier(schema: Schema) -> str:
    """Of a record, or of the full name of one that is used again."""
    name: str = schema if isinstance(schema, str) else schema["name"]
    return name.replace(".", "_")


def _define(name: str, parameters: str, source: Iterable[str], scope: dict[str, Any]) -> Any:
    # Made of the schemas shipped with the product and of nothing that ever came over a wire.
    text = f"def {name}({parameters}):\n" + indent("\n".join(source), "    ")
    exec(compile(text, f"<{name}>", "exec"), scope)  # noqa: S102
    return scope[name]
