"""Commands as JSON, so that a service in any language needs nothing but a Kafka producer (DESIGN §3).

One JSON object with the fields of `schemas/command.avsc`. Three differences: `payload` is any JSON value, `due_at` may
be RFC 3339 text, and `spec` is the one form of a schedule in JSON (core.schedule). Numbers in a payload go through
64-bit floats, or integers of any size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from pipeline.codec.registry import Codec
from pipeline.codec.shape import INT_MAX, LONG_MAX, Schema
from pipeline.core.errors import InvalidInput, Undecodable
from pipeline.core.job import Command
from pipeline.core.schedule import spec_from_json
from pipeline.core.spec import ScheduleSpec
from pipeline.core.times import parse_instant

MAX_DEPTH = 64
"""Levels of arrays and objects in a command; a payload that needs more is somebody's attack or accident."""


def is_json(headers: Iterable[tuple[str, bytes | None]] | None) -> bool:
    """Whether the last `content-type` of the record is application/json, with or without parameters."""
    found = [value for name, value in headers or () if name.lower() == "content-type"]
    return bool(found) and (found[-1] or b"").split(b";")[0].strip().lower() == b"application/json"


def decode_json(value: bytes, codec: Codec[Command]) -> Command:
    """The command in `value`. Undecodable naming the field that is wrong."""
    given = _parse(value)
    if not isinstance(given, dict):
        raise Undecodable("command: must be a JSON object")
    fields = {field["name"]: field for field in codec.schema["fields"]}
    for name in given:
        if name not in fields:
            raise Undecodable(f"{name!r:.80}: no such field of a command")
    for name, field in fields.items():
        if "default" not in field and name not in given:
            raise Undecodable(f"{name}: missing")
    return Command(**{name: _field(name, fields[name]["type"], item) for name, item in given.items()})


def _parse(value: bytes) -> Any:
    try:
        return json.loads(value.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except RecursionError:
        raise Undecodable(f"command: nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError too
        raise Undecodable(f"command: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Undecodable(f"{twice!r:.80}: given twice")
    return members


def _constant(text: str) -> NoReturn:
    raise Undecodable(f"command: {text} is not JSON")


def _field(name: str, type_: Schema, value: Any) -> Any:
    match type_:
        case _ if name == "payload":
            return _payload(value)
        case ["null", inner]:
            return None if value is None else _field(name, inner, value)
        case {"type": "record"}:
            return _spec(value)
        case "long" if name == "due_at" and isinstance(value, str):
            return _instant(value)
        case "string":
            return _text(name, value)
        case "int" | "long":
            return _integer(name, value, INT_MAX if type_ == "int" else LONG_MAX)
        case {"type": "map", "values": "string"} if isinstance(value, Mapping):
            return {_text(name, key): _text(name, item) for key, item in value.items()}
    raise Undecodable(f"{name}: must be an object of strings")


def _spec(value: Any) -> ScheduleSpec:
    if not isinstance(value, Mapping):
        raise Undecodable("spec: must be an object")
    if _deeper(value, MAX_DEPTH - 1):
        raise Undecodable(f"spec: nested deeper than {MAX_DEPTH}")
    try:
        return spec_from_json(value)
    except InvalidInput as error:
        raise Undecodable(f"spec.{error}") from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Undecodable(f"{name}: must be a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Undecodable(f"{name}: half of a surrogate pair") from None
    return value


def _integer(name: str, value: Any, limit: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Undecodable(f"{name}: must be an integer")
    if not -limit - 1 <= value <= limit:
        raise Undecodable(f"{name}: out of range")
    return value


def _instant(text: str) -> int:
    try:
        return parse_instant("due_at", text)
    except InvalidInput as error:
        raise Undecodable(str(error)) from None


def _payload(value: Any) -> bytes:
    if _deeper(value, MAX_DEPTH - 1):
        raise Undecodable(f"payload: nested deeper than {MAX_DEPTH}")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise Undecodable("payload: half of a surrogate pair") from None
    except ValueError:
        raise Undecodable("payload: a number out of range") from None


def _deeper(value: Any, levels: int) -> bool:
    """Whether more than `levels` arrays and objects are inside each other."""
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)
