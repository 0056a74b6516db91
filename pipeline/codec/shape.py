"""Between the dataclasses of the product and the plain values that fastavro reads and writes.

fastavro does the encoding. What is here: building the dataclasses, and refusing what fastavro takes without a word,
integers over the range of an `int` and bytes that no writer writes (negative union indices, over-long integers,
trailing bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from io import BytesIO
from operator import attrgetter
from typing import Any, get_type_hints

from fastavro import schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError

from pipeline.core.errors import InvalidInput

Schema = Any
"""A schema as `fastavro.parse_schema` returns it."""

HOSTILE = (EOFError, IndexError, KeyError, ValueError, TypeError, OverflowError, SchemaResolutionError)
"""What fastavro raises on bytes that are no value of the schema."""
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


def read_strictly(schema: Schema, data: bytes, start: int) -> Any:
    """The plain value of `data` from `start` to its end; one of HOSTILE unless these are the very bytes that a
    writer makes of it, arrays and maps in one block. Writing it again is the one check that finds everything."""
    value, end = read_leading(schema, data, start)
    if end != len(data):
        raise ValueError("trailing bytes")
    if write(schema, value) != data[start:]:
        raise ValueError("not the encoding a writer makes of this value")
    return value


def read_leading(schema: Schema, data: bytes, start: int) -> tuple[Any, int]:
    """The plain value of the fields that `schema` has, blind to what follows them, and where it ended."""
    body = BytesIO(data)
    body.seek(start)
    return schemaless_reader(body, schema, None), body.tell()


def write(schema: Schema, value: Any) -> bytes:
    """`value` encoded, without a frame."""
    body = BytesIO()
    schemaless_writer(body, schema, value)
    return body.getvalue()


class Shape:
    """How one record type is taken apart and put together; `types` = what to build for each record's full name."""

    def __init__(
        self, schema: Schema, types: Mapping[str, type], known: dict[str, Shape] | None = None
    ) -> None:
        self._known = {} if known is None else known
        self._known[schema["name"]] = self
        self._build = types[schema["name"]]
        self._fields = tuple(field["name"] for field in schema["fields"])
        take = attrgetter(*self._fields)
        self._take: Callable[[Any], tuple[Any, ...]] = (
            take if len(self._fields) > 1 else lambda value: (take(value),)
        )
        self._ints: list[str] = []
        self._apart: dict[str, Callable[[Any], Any]] = {}
        self._together: dict[str, Callable[[Any], Any]] = {}
        hints = get_type_hints(self._build)
        for field in schema["fields"]:
            self._learn(field["name"], field["type"], hints[field["name"]], types)

    def _learn(self, name: str, type_: Schema, hint: Any, types: Mapping[str, type]) -> None:
        inner = next(part for part in type_ if part != "null") if isinstance(type_, list) else type_
        nested = self._nested(inner["items"] if _is_array(inner) else inner, types)
        if inner == "int":
            self._ints.append(name)
        elif isinstance(hint, type) and issubclass(hint, Enum):
            self._together[name] = hint
        elif _is_array(inner):
            self._apart[name] = nested.apart_all if nested is not None else list
            self._together[name] = nested.together_all if nested is not None else tuple
        elif _is_map_of_arrays(inner):
            self._together[name] = _tuples
        elif nested is not None:
            self._apart[name], self._together[name] = nested.apart_optional, nested.together_optional

    def _nested(self, type_: Schema, types: Mapping[str, type]) -> Shape | None:
        """The shape of a record, whether it is defined here or only named again."""
        if isinstance(type_, dict) and type_["type"] == "record":
            return Shape(type_, types, self._known)
        return self._known.get(type_) if isinstance(type_, str) else None

    def apart(self, value: Any) -> dict[str, Any]:
        """A dataclass as a plain dict. InvalidInput naming the field if an int does not fit."""
        plain = dict(zip(self._fields, self._take(value), strict=True))
        self._check(plain)
        for name, convert in self._apart.items():
            plain[name] = convert(plain[name])
        return plain

    def together(self, plain: dict[str, Any]) -> Any:
        """The dataclass of a plain dict. InvalidInput naming the field if an int does not fit."""
        self._check(plain)
        for name, convert in self._together.items():
            plain[name] = convert(plain[name])
        return self._build(**plain)

    def apart_optional(self, value: Any) -> dict[str, Any] | None:
        return None if value is None else self.apart(value)

    def together_optional(self, plain: dict[str, Any] | None) -> Any:
        return None if plain is None else self.together(plain)

    def apart_all(self, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        return [self.apart(value) for value in values]

    def together_all(self, plains: list[dict[str, Any]]) -> tuple[Any, ...]:
        return tuple(self.together(plain) for plain in plains)

    def _check(self, plain: Mapping[str, Any]) -> None:
        for name in self._ints:
            number = plain[name]
            if number is not None and not -INT_MAX <= number + 1 <= INT_MAX + 1:
                raise InvalidInput(name, f"{number} does not fit 32 bits")


def _is_array(type_: Schema) -> bool:
    return isinstance(type_, dict) and type_["type"] == "array"


def _is_map_of_arrays(type_: Schema) -> bool:
    return isinstance(type_, dict) and type_["type"] == "map" and _is_array(type_["values"])


def _tuples(lists: Mapping[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(items) for name, items in lists.items()}
