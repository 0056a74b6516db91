"""Released schemas, and values framed in Avro's single-object encoding.

Frame (Avro 1.12 specification, "Single-object encoding"): C3 01, the CRC-64-AVRO fingerprint of the writer
schema's parsing canonical form in little-endian order, the value. `schemas/released.json` lists every one
ever released; in text a fingerprint is its number in 16 hex digits, that of "int" being 7275d51a3f395c8f.
(The hex that `fastavro.schema.fingerprint` returns for CRC-64-AVRO is in the frame's order, the reverse.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Generic, TypeVar

from fastavro import parse_schema, schemaless_reader

from pipeline.codec.shape import HOSTILE, Schema, Shape, read_leading, read_strictly, write
from pipeline.core.errors import InvalidInput, Undecodable, UnknownFingerprint

T = TypeVar("T")

MAGIC = b"\xc3\x01"
FRAME = 10
"""Bytes before the value."""


def schema_dir() -> Traversable:
    """Where the schemas are: inside the package in a wheel, beside it in a checkout."""
    package = resources.files("pipeline")
    inside = package.joinpath("schemas")
    return inside if inside.joinpath("released.json").is_file() else package.joinpath("..", "schemas")


class Version:
    """One released version of one type's schema, read from its file when first needed."""

    def __init__(self, directory: Traversable, fingerprint: str, entry: Mapping[str, str]) -> None:
        self.fingerprint = fingerprint
        self.type = entry["type"]
        self.current = "/" not in entry["file"]
        self.frame = MAGIC + int(fingerprint, 16).to_bytes(8, "little")
        self._file = directory.joinpath(*entry["file"].split("/"))

    @cached_property
    def schema(self) -> Schema:
        return parse_schema(json.loads(self._file.read_text("utf-8")))


class Registry:
    """Every schema version ever released. Files under `archive/` are read, the others are also written."""

    def __init__(self, directory: Traversable) -> None:
        released = json.loads(directory.joinpath("released.json").read_text("utf-8"))
        versions = [Version(directory, fingerprint, entry) for fingerprint, entry in released.items()]
        self._by_frame = {version.frame: version for version in versions}
        self._current = {version.type: version for version in versions if version.current}

    def current(self, type_: str) -> Version:
        return self._current[type_]

    def written(self) -> tuple[str, ...]:
        """Fingerprints of what this version writes, in order of type."""
        return tuple(self._current[type_].fingerprint for type_ in sorted(self._current))

    def known(self, fingerprint: str) -> bool:
        return any(version.fingerprint == fingerprint for version in self._by_frame.values())

    def of(self, data: bytes) -> Version:
        """The version `data` was written with. Undecodable if it has no frame, UnknownFingerprint."""
        if len(data) < FRAME or not data.startswith(MAGIC):
            raise Undecodable("no single-object encoding: it must begin with c3 01 and a schema fingerprint")
        version = self._by_frame.get(data[:FRAME])
        if version is None:
            raise UnknownFingerprint(int.from_bytes(data[2:FRAME], "little"))
        return version


class Codec(Generic[T]):
    """Values of one type to framed bytes and back; `types` = what to build for each record's full name."""

    def __init__(self, registry: Registry, name: str, types: Mapping[str, type]) -> None:
        self.name = name
        self._registry = registry
        self._types = types
        self._version = registry.current(name)
        self._frame = self._version.frame

    @property
    def frame(self) -> bytes:
        """How the bytes of a value of the current version begin."""
        return self._frame

    @property
    def fingerprint(self) -> str:
        return self._version.fingerprint

    @property
    def schema(self) -> Schema:
        return self._version.schema

    def encode(self, value: T) -> bytes:
        """`value` framed. InvalidInput if an integer does not fit its field or a text is no Unicode."""
        try:
            return self._frame + write(self.schema, self._shape.apart(value))
        except UnicodeEncodeError as error:
            raise InvalidInput(self.name, f"{error.object!r:.80} is not valid Unicode") from None
        except OverflowError as error:
            raise InvalidInput(self.name, str(error)) from None

    def decode(self, data: bytes) -> T:
        """The value of `data`, whatever released version wrote it; read to the last byte.

        Undecodable (UnknownFingerprint is one) and nothing else, whatever the bytes, except what the type
        itself raises to refuse a sound value (`Layout` of a newer kind: Refused).
        """
        if data[:FRAME] != self._frame:
            data = self._upgraded(data)
        try:
            value: T = self._shape.together(read_strictly(self.schema, data, FRAME))
        except (*HOSTILE, InvalidInput) as error:
            raise self._undecodable(error) from None
        return value

    def reread(self, data: bytes) -> T:
        """The value of bytes that `decode` has taken before, or `encode` made: nothing is checked a second time."""
        if data[:FRAME] != self._frame:
            return self.decode(data)
        value: T = self._shape.together(read_leading(self.schema, data, FRAME)[0])
        return value

    @cached_property
    def _shape(self) -> Shape:
        return Shape(self.schema, self._types)

    def _undecodable(self, error: Exception) -> Undecodable:
        # fastavro says of both what happened to its own buffers.
        told = (
            "truncated"
            if isinstance(error, EOFError)
            else "malformed"
            if isinstance(error, IndexError)
            else error
        )
        return Undecodable(f"{self.name}: {told}")

    def _upgraded(self, data: bytes) -> bytes:
        """`data` of an older version, checked, as the current version would have written it."""
        version = self._registry.of(data)
        if version.type != self.name:
            raise Undecodable(f"a {version.type} where a {self.name} is expected")
        try:
            read_strictly(version.schema, data, FRAME)
            value = schemaless_reader(BytesIO(data[FRAME:]), version.schema, self.schema)
        except HOSTILE as error:
            raise self._undecodable(error) from None
        return self._frame + write(self.schema, value)
