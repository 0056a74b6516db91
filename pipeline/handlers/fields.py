"""Reading the payloads of the built-in handlers: what no attempt could take is refused with the name of the field."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Sequence
from typing import Any

from pipeline.core.handler import InvalidPayload


class Fields:
    """A payload, field by field. Every method raises InvalidPayload naming the field."""

    def __init__(self, payload: object, known: Sequence[str]) -> None:
        if not isinstance(payload, dict):
            raise InvalidPayload(f"payload: it must be a JSON object with {', '.join(known)}")
        for name in payload:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise InvalidPayload(f"{name[:80]!r}: unknown field; {meant}")
        self._payload: dict[str, Any] = payload

    def __contains__(self, name: str) -> bool:
        return name in self._payload

    def get(self, name: str) -> Any:
        """The value as it is; None if it is not there."""
        return self._payload.get(name)

    def text(self, name: str, default: str | None = None) -> str:
        """A text without NUL; `default` if the field is not there, which without one is refused."""
        value = self._payload.get(name, default)
        if value is None and name not in self._payload:
            raise InvalidPayload(f"{name}: it is missing")
        return checked_text(name, value)

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts; empty if it is not there."""
        value = self._payload.get(name, {})
        if not isinstance(value, dict):
            raise InvalidPayload(f"{name}: it must be an object of names and texts")
        return {key: checked_text(f"{name}.{key[:80]}", text) for key, text in value.items()}

    def items(self, name: str) -> list[Any]:
        """A list; empty if it is not there."""
        value = self._payload.get(name, [])
        if not isinstance(value, list):
            raise InvalidPayload(f"{name}: it must be a list")
        return value

    def one_of(self, *names: str) -> str | None:
        """Which of these fields is there; None if none is. Two are refused."""
        there = [name for name in names if name in self._payload]
        if len(there) > 1:
            raise InvalidPayload(f"{there[1]}: give {there[0]} or {there[1]}, not both")
        return there[0] if there else None

    def content(self, name: str) -> bytes:
        """The bytes that a field stands for: `json` and `input` are any value as JSON, `…_base64` is decoded, other
        text is UTF-8."""
        if name in ("json", "input"):
            return _json(self._payload[name]).encode("utf-8", "backslashreplace")  # \ud800 as JSON writes it
        text = self.text(name)
        if not name.endswith("_base64"):
            return text.encode()
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            raise InvalidPayload(f"{name}: it is no base64") from None


def checked_text(name: str, value: object) -> str:
    """InvalidPayload naming the field unless it is text that UTF-8 has, without NUL."""
    if not isinstance(value, str):
        raise InvalidPayload(f"{name}: it must be text, not {type(value).__name__}")
    if "\0" in value:
        raise InvalidPayload(f"{name}: it holds a NUL")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InvalidPayload(f"{name}: it holds half a character")
    return value


def start_within(text: str, room: int) -> str:
    """The start of `text`, as much as takes at most `room` bytes of JSON."""
    while (size := _json_size(text)) > room:
        text = text[: len(text) * room // size]
    return text


def end_within(text: str, room: int) -> str:
    """The end of `text`, as much as takes at most `room` bytes of JSON."""
    return start_within(text[::-1], room)[::-1]


def _json_size(text: str) -> int:
    return len(_json(text).encode())


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
