"""What is read out of a file of schedules, and what stands in its way."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import ScheduleSpec, check_spec, spec_from_json

FILE_LIMIT = 4 * 1024 * 1024
"""Bytes of a file."""
SCHEDULE_LIMIT = 10_000
"""Schedules of a file: each of them is a command to an owner, and a person has to read the diff."""
ROOM = 32 * 1024 * 1024
"""Bytes of all schedules of a file: a default of a megabyte is one in each of them."""
_SHOWN = 20
_DEEPEST = 32
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to tell about a file: `line` from 1, 0 = the file as a whole; `field` "" = no field of a schedule."""

    file: str
    line: int
    field: str
    text: str

    @property
    def place(self) -> str:
        """`file:line: field`, as far as there is one."""
        return ": ".join(part for part in (f"{self.file}:{self.line}".removesuffix(":0"), self.field) if part)

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The schedules of a file, in its order. Each of `problems` is something that is not among them, each of `notes`
    something that was left out of them or that they do differently."""

    specs: tuple[ScheduleSpec, ...]
    problems: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()

    def whole(self) -> tuple[ScheduleSpec, ...]:
        """`specs`, if there are no problems. InvalidInput with file, line and field of each (of the first 20)."""
        if not self.problems:
            return self.specs
        first, *others = self.problems
        lines = [first.text, *map(str, others[: _SHOWN - 1])]
        if len(others) >= _SHOWN:
            lines.append(f"and {len(others) - _SHOWN + 1} more")
        raise InvalidInput(first.place, "\n".join(lines))


@dataclass(slots=True, kw_only=True)
class Reading:
    """A file while it is read: `name` is what findings call it, `source` what its schedules are marked with."""

    name: str
    source: str
    specs: dict[str, ScheduleSpec] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    size: int = 0

    def note(self, line: int, field: str, text: str) -> None:
        self.notes.append(Finding(file=self.name, line=line, field=field, text=text))
        self._check_size(line)

    def problem(self, line: int, field: str, text: str) -> None:
        self.problems.append(Finding(file=self.name, line=line, field=field, text=text))
        self._check_size(line)

    def add(self, line: int, values: Mapping[str, Any]) -> None:
        """The schedule of `values`, which are named as in JSON. InvalidInput naming the field if it is none, or if the
        file has its id already."""
        spec = spec_from_json({**values, "source": self.source})
        check_spec(spec)
        if spec.id in self.specs:
            raise InvalidInput("id", f"{spec.id} is that of line {self.lines[spec.id]} already")
        self.specs[spec.id] = spec
        self.lines[spec.id] = line
        self.size += len(spec.payload) + 64 * sum(map(len, spec.exclude.values()))
        self._check_size(line)

    def parsed(self) -> Parsed:
        by_line = sorted(self.problems, key=lambda finding: finding.line)
        notes = sorted(self.notes, key=lambda finding: finding.line)
        return Parsed(specs=tuple(self.specs.values()), problems=tuple(by_line), notes=tuple(notes))

    def _check_size(self, line: int) -> None:
        place = f"{self.name}:{line}"
        if len(self.specs) + len(self.problems) > SCHEDULE_LIMIT:
            raise InvalidInput(place, f"more than {SCHEDULE_LIMIT} schedules in one file")
        if self.size > ROOM:
            raise InvalidInput(place, f"the schedules of the file take more than {ROOM} bytes")
        if len(self.notes) > 4 * SCHEDULE_LIMIT:
            raise InvalidInput(place, "more of this file would be left out than is read")


def text_of(content: bytes, name: str, limit: int = FILE_LIMIT) -> str:
    """The text of a file: UTF-8, a byte order mark left out, CRLF taken as LF. InvalidInput with file and line if it
    is neither, holds a control character beside tabs and line ends, or is longer than `limit` bytes."""
    if len(content) > limit:
        raise InvalidInput(name, f"longer than {limit} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{name}:{line}", f"not UTF-8: byte {content[error.start]:#04x}") from None
    text = text.replace("\r\n", "\n")
    control = _CONTROL.search(text)
    if control is not None:
        line = text.count("\n", 0, control.start()) + 1
        raise InvalidInput(f"{name}:{line}", f"control character {ord(control[0]):#04x}")
    return text


def json_of(field: str, text: str) -> Any:
    """`text` as JSON. InvalidInput naming `field` if it is none, or has a name twice in one object."""
    try:
        return plain(field, json.loads(text, object_pairs_hook=_object, parse_constant=_no_number))
    except RecursionError:
        raise InvalidInput(field, "nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(field, f"not JSON: {error}") from None


def plain(field: str, value: Any, depth: int = 0) -> Any:
    """`value` as JSON has it: dates and times become text. InvalidInput naming `field` if JSON has it not."""
    if depth > _DEEPEST:
        raise InvalidInput(field, "nested too deeply")
    match value:
        case dict():
            for name in value:
                if not isinstance(name, str):
                    raise InvalidInput(field, f"{name!r:.80} is no name of JSON")
            return {name: plain(field, item, depth + 1) for name, item in value.items()}
        case list():
            return [plain(field, item, depth + 1) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case None | str() | bool() | int() | float():
            return value
        case _:
            raise InvalidInput(field, f"{value!r:.80} is no value of JSON")


def _object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {twice[:80]!r} twice in one object")
    return found


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
