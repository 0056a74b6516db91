"""Query parameters: what each is, how its text is read, and how the document tells of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from pipeline.core.errors import InvalidInput
from pipeline.core.job import JobStatus
from pipeline.core.times import parse_duration, parse_instant
from pipeline.server.body import NAME_SHOWN

LENGTH = 512
"""Characters of one parameter at most."""
MANY = 32
"""Times that one may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """Text. `repeated`: it may stand several times, and is a list then."""

    name: str
    meaning: str
    example: Any = None
    repeated: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": LENGTH}

    def read(self, text: str) -> Any:
        """InvalidInput naming it."""
        if not text:
            raise InvalidInput(self.name, "is empty: leave it out instead")
        if "\0" in text:
            raise InvalidInput(self.name, "holds a NUL")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Param):
    """RFC 3339, as epoch ms."""

    example: Any = "2030-01-31T09:30:00Z"

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}

    def read(self, text: str) -> int:
        return parse_instant(self.name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Length(Param):
    """A duration between two, as the text it was given as."""

    low_ms: int = 0
    high_ms: int

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9].*(ms|[smhdw])$"}

    def read(self, text: str) -> str:
        if not self.low_ms <= parse_duration(self.name, text) <= self.high_ms:
            raise InvalidInput(self.name, f"must be from {self.low_ms} ms to {self.high_ms} ms")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Param):
    low: int
    high: int
    default: int | None = None

    @property
    def schema(self) -> dict[str, Any]:
        known = {} if self.default is None else {"default": self.default}
        return {"type": "integer", "minimum": self.low, "maximum": self.high, **known}

    def read(self, text: str) -> int:
        if not (
            text.isascii() and text.isdecimal() and len(text) < 12 and self.low <= int(text) <= self.high
        ):
            raise InvalidInput(self.name, f"must be a whole number from {self.low} to {self.high}")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word(Param):
    """One of a few."""

    words: Sequence[str]

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def read(self, text: str) -> str:
        if text not in self.words:
            raise InvalidInput(self.name, f"{text!r:.40} is none of {', '.join(self.words)}")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Param):
    """name=value."""

    repeated: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[^=]+=", "maxLength": LENGTH}

    def read(self, text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(self.name, f"{text!r:.80} is not name=value")
        return name, value


WAIT = Length(
    name="wait",
    meaning="How long the owner's answer is waited for. Without one the answer is 202: it is stored, and will be done.",
    example="5s",
    high_ms=30_000,
)
LIMIT = Whole(name="limit", meaning="Rows of a page at most.", low=1, high=200, default=50)
CURSOR = Param(name="cursor", meaning="`cursor` of the page before.")
STATUSES = Word(
    name="status",
    meaning="In this state; may be repeated.",
    words=[str(status) for status in JobStatus],
    repeated=True,
    example="dead",
)


def read_query(query: bytes, params: Iterable[Param]) -> dict[str, Any]:
    """Values by name; what is not given is absent. InvalidInput naming what is unknown, repeated or malformed."""
    known = {param.name: param for param in params}
    found: dict[str, Any] = {}
    for part in query.split(b"&") if query else ():
        raw_name, _, raw = part.partition(b"=")
        name = _text("query", raw_name)
        param = known.get(name)
        if param is None:
            there = f"; there are {', '.join(sorted(known))}" if known else ""
            raise InvalidInput(name[:NAME_SHOWN] or "query", f"unknown parameter{there}")
        text = _text(name, raw)
        if len(text) > LENGTH:
            raise InvalidInput(name, f"is longer than {LENGTH} characters")
        value = param.read(text)
        if not param.repeated:
            if name in found:
                raise InvalidInput(name, "is given twice")
            found[name] = value
        else:
            found.setdefault(name, []).append(value)
            if len(found[name]) > MANY:
                raise InvalidInput(name, f"is given more than {MANY} times")
    return found


def _text(name: str, raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidInput(name[:NAME_SHOWN] or "query", "is no UTF-8") from None


def described(param: Param) -> Mapping[str, Any]:
    """As OpenAPI has it."""
    schema = {"type": "array", "items": param.schema, "maxItems": MANY} if param.repeated else param.schema
    told: dict[str, Any] = {
        "name": param.name,
        "in": "query",
        "required": False,
        "description": param.meaning,
        "schema": schema,
    }
    if param.repeated:
        told |= {"style": "form", "explode": True}
    if param.example is not None:
        told["example"] = [param.example] if param.repeated else param.example
    return told
