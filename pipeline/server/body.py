"""What comes in: JSON of bounded size and depth, exact numbers, strict UTF-8; each fault named (docs/api.md).

Pure, but for `Pieces`. A number keeps every digit; NaN and Infinity are no JSON; a name twice in one object is
refused, since nobody can tell which of its values was meant.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from pipeline.client.request import PLANNED, JobOptions
from pipeline.core.errors import DuelineError, InvalidInput

DEPTH = 100
"""Arrays and objects within each other."""
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of one line of a stream."""
NAME_SHOWN = 80
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


JOB_NAMES = frozenset({"handler", "payload", "in"}) | JobOptions.__annotations__.keys() - {"in_", "wait"}
"""What the JSON of a job may say: what `Dueline.schedule` takes, by its name in JSON."""


class UnknownField(InvalidInput):
    """`field` as it was written."""

    def __init__(self, name: str, known: Iterable[str], hint: str = "") -> None:
        shown = name[:NAME_SHOWN]
        close = difflib.get_close_matches(shown, known, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
        super().__init__(shown or "''", f"unknown field; {hint or meant}")


def field_of(error: InvalidInput) -> str:
    """By its name in JSON: `in` is `in_` in Python."""
    return (error.field if isinstance(error, UnknownField) else error.field.removesuffix("_"))[:200]


class Malformed(DuelineError):
    """Send JSON in UTF-8: this was neither."""


def parse_json(data: bytes) -> Any:
    """Malformed for what is no JSON; InvalidInput('body') for what is too deep or has a name twice."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is no UTF-8 at byte {error.start}") from None
    if data.count(b"[") + data.count(b"{") > DEPTH and too_deep(data):
        raise InvalidInput("body", f"is nested deeper than {DEPTH}")
    try:
        return _decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"the body is not valid JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise Malformed(
            f"the body holds a number of more than {sys.get_int_max_str_digits()} digits"
        ) from None
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None


def too_deep(data: bytes) -> bool:
    """Each round takes the innermost pairs away, all at once: a loop over a million brackets would take half a second.
    What is no JSON may be called either."""
    left = _STRING.sub(b"", data).translate(_BRACKETS, _NO_BRACKETS)
    if b"[" * (DEPTH + 1) in left:  # where a round has next to nothing to take
        return True
    rounds = 0
    while rounds <= DEPTH and b"[]" in left:
        left = left.replace(b"[]", b"")
        rounds += 1
    return rounds + left.count(b"[") > DEPTH


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InvalidInput(twice[:NAME_SHOWN] or "body", "stands twice in one object")
    return found


def _no_number(word: str) -> NoReturn:
    raise Malformed(f"the body is not valid JSON: {word} is no number")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
_scan: Callable[[str, int], tuple[Any, int]] = vars(_decoder)["scan_once"]
_SPACE = " \t\r\n"


def _decode(text: str) -> Any:
    """What the library's `decode` says, which looks for spaces at both ends of it first: a third of its cost."""
    try:
        value, end = _scan(text, 0)
    except StopIteration:  # a space begins it, or what is no JSON
        return _decoder.decode(text)
    return value if end == len(text) or not text[end:].strip(_SPACE) else _decoder.decode(text)


def object_of(value: Any, known: Iterable[str]) -> dict[str, Any]:
    """The body as an object with none but these names. InvalidInput naming one that is unknown."""
    if not isinstance(value, dict):
        raise InvalidInput("body", f"must be a JSON object, not {_kind(value)}")
    names = set(known)
    for name in value:
        if name not in names:
            raise UnknownField(name, names)
    return value


def job_request(value: Any) -> dict[str, Any]:
    """A job as `Dueline.schedule` takes it, from its JSON: `in` is `in_` there. InvalidInput."""
    if not isinstance(value, dict):
        raise InvalidInput("body", f"must be a JSON object, not {_kind(value)}")
    if not value.keys() <= JOB_NAMES:
        for name in value:
            if name not in JOB_NAMES and name not in PLANNED:
                hint = "it is a parameter of the address" if name == "wait" else ""
                raise UnknownField(name, JOB_NAMES, hint)
    if not isinstance(
        value.get("queue", ""), str | None
    ):  # else nothing at all would be taken for the default
        raise InvalidInput("queue", f"must be text, not {_kind(value['queue'])}")
    if "in" in value:
        value["in_"] = value.pop("in")
        if value["in_"] is not None and value.get("at") is not None:
            raise InvalidInput("at", "excludes in: give one of them")
    return value


def to_json(value: Any) -> str:
    """What is answered: ASCII, and none of what means something to a browser, so that nothing in it means anything to
    whoever shows it; integers with all their digits."""
    return _encode(value).replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case list():
            return "an array"
        case dict():
            return "an object"
        case str():
            return "text"
        case _:
            return "a number"


def text(body: Mapping[str, Any], name: str, default: str | None = None) -> str | None:
    """InvalidInput naming it unless it is text or not given."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidInput(name, f"must be text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(name, "holds a lone surrogate, which has no UTF-8 form") from None
    return value


def required_text(body: Mapping[str, Any], name: str) -> str:
    value = text(body, name)
    if value is None:
        raise InvalidInput(name, "missing")
    return value


def flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInput(name, f"must be true or false, not {_kind(value)}")
    return value


def whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(name, f"must be a whole number from {low} to {high}")
    return value


def number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidInput(name, f"must be a number from {low:g} to {high:g}")
    return float(value)


def texts(body: Mapping[str, Any], name: str, most: int) -> list[str] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > most or not all(isinstance(each, str) for each in value):
        raise InvalidInput(name, f"must be an array of at most {most} texts")
    return value


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidInput(name, f"must be a JSON object, not {_kind(value)}")
    return value


def lines(pieces: Iterable[bytes]) -> Iterator[bytes | None]:
    """The lines of a stream, without what ends them; empty ones too, so that they can be numbered; None for an empty
    piece, which is a pause. InvalidInput('line') for one that is too long: where the next begins, nobody can tell
    within bounds."""
    rest = b""
    for piece in pieces:
        if not piece:
            yield None
            continue
        *whole_lines, rest = (rest + piece if rest else piece).split(b"\n")
        yield from whole_lines
        if len(rest) > LINE_LIMIT:
            raise InvalidInput("line", f"is longer than {LINE_LIMIT} bytes")
    if rest:
        yield rest
