"""The TOML form of a file of schedules, with every option (docs/moving-crontabs.md).

[calendars.holidays]
dates = ["2027-01-01", "2027-12-24..2027-12-31"]

[defaults]
tz = "Europe/Berlin"
exclude = ["holidays"]

[schedules.nightly]
cron = "30 2 * * *"
handler = "report.nightly"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import NAMES
from pipeline.crontab.parsed import Parsed, Reading, plain, text_of

_TABLES = ("calendars", "defaults", "schedules")
_TIMES = ("cron", "every", "after")
_OF_THE_FILE = ("id", "source", "version")
"""What a schedule is not told here: its table is its id, the file its source."""
_AT = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_TOKEN = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[\[\]{}\n]|[^#"\'\[\]{}\n]+',
    re.DOTALL,
)
_KEY = r"(?:[A-Za-z0-9_-]+|\"(?:\\.|[^\"\\])*\"|'[^']*')"
_PATH = re.compile(rf"\s*\[*\s*({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*(?:=|\]|$)")
_PARTS = 32
_Place = tuple[str, ...]


def parse_toml(content: bytes, *, source: str, name: str) -> Parsed:
    """The schedules of a TOML file. `source` marks them (`file:<name>`), `name` is what findings call the file.

    Every mistake in a schedule is a problem with line and field. InvalidInput with file and line if the bytes are no
    TOML, or too many.
    """
    text = text_of(content, name)
    _check_keys(text, name)
    document = _document(text, name)
    reading = Reading(name=name, source=source)
    _File(reading, text, document).read()
    return reading.parsed()


def _check_keys(text: str, name: str) -> None:
    """Refuses keys of very many parts: tomllib takes the square of their number, hours for a file that is let in."""
    bare = _TOKEN.sub(lambda match: _without_text(match[0]), text)
    for number, line in enumerate(bare.split("\n"), 1):
        if line.count(".") > _PARTS and any(piece.count(".") > _PARTS for piece in re.split("[,=]", line)):
            raise InvalidInput(f"{name}:{number}", f"a key of more than {_PARTS} parts")


def _without_text(part: str) -> str:
    return "\n" * part.count("\n") if part[0] in "#\"'" else part


def _document(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InvalidInput(name, "nested too deeply") from None
    except ValueError as error:
        said = str(error)
        at = _AT.search(said)
        line = (at[1] or str(text.count("\n") + 1)) if at else ""
        raise InvalidInput(f"{name}:{line}".removesuffix(":"), f"no TOML: {_AT.sub('', said)}") from None


class _File:
    """A file whose TOML is right. Everything wrong in it becomes a problem of `reading`."""

    def __init__(self, reading: Reading, text: str, document: dict[str, Any]) -> None:
        self._reading = reading
        self._text = text
        self._document = document
        self._lines: dict[_Place, int] | None = None
        self._calendars: dict[str, list[Any]] = {}
        self._defaults: Mapping[str, Any] = {}

    def read(self) -> None:
        for name in self._document:
            if name not in _TABLES:
                self._problem((name,), name, f"no such table: there are {', '.join(_TABLES)}")
        for name, calendar in self._tables("calendars"):
            self._calendars[name] = self._dates(name, calendar)
        self._defaults = self._checked_defaults()
        for name, schedule in self._tables("schedules"):
            self._schedule(name, schedule)

    def _tables(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        tables = self._document.get(kind, {})
        if not isinstance(tables, dict):
            self._problem((kind,), kind, f"must be tables [{kind}.NAME]")
            return
        for name, table in tables.items():
            if isinstance(table, dict):
                yield name, table
            else:
                self._problem((kind, name), name, f"must be a table [{kind}.{name}]")

    def _dates(self, name: str, calendar: Mapping[str, Any]) -> list[Any]:
        for key in calendar:
            if key != "dates":
                self._problem(("calendars", name, key), key, "no such field of a calendar, which has dates")
        dates = calendar.get("dates")
        if not isinstance(dates, list):
            self._problem(
                ("calendars", name, "dates"), "dates", "must be a list of dates, ranges and cron windows"
            )
            return []
        return [plain("dates", item) for item in dates]

    def _checked_defaults(self) -> Mapping[str, Any]:
        defaults = self._document.get("defaults", {})
        if not isinstance(defaults, dict):
            self._problem(("defaults",), "defaults", "must be a table [defaults]")
            return {}
        known = {name for name in NAMES if name not in (*_OF_THE_FILE, *_TIMES)}
        for name in defaults:
            if name not in known:
                self._problem(("defaults", name), name, "no such default")
        return {name: value for name, value in defaults.items() if name in known}

    def _schedule(self, name: str, own: Mapping[str, Any]) -> None:
        line = self._line(("schedules", name))
        try:
            for key in own:
                if key in _OF_THE_FILE:
                    raise InvalidInput(
                        key, "it is not given here: the table's name is the id, the file the source"
                    )
            values = {key: plain(key, value) for key, value in {**self._defaults, **own}.items()}
            if "exclude" in values:
                values["exclude"] = self._excluded(values["exclude"])
            self._reading.add(line, {**values, "id": name})
        except InvalidInput as error:
            if error.field.startswith(f"{self._reading.name}:"):
                raise
            self._problem(
                self._place(name, own, error.field), error.field, f"{error.problem} (schedule {name[:80]!r})"
            )

    def _place(self, name: str, own: Mapping[str, Any], field: str) -> _Place:
        key = re.split(r"[.\[: ]", field, maxsplit=1)[0]
        inherited = key not in own and key in self._defaults
        return ("defaults", key) if inherited else ("schedules", name, key)

    def _excluded(self, given: Any) -> Any:
        """The calendars by name; as in JSON, they may also stand here themselves."""
        if not isinstance(given, list):
            return given
        for name in given:
            if not isinstance(name, str) or name not in self._calendars:
                raise InvalidInput("exclude", f"there is no [calendars.{str(name)[:80]}] in this file")
        return {name: self._calendars[name] for name in given}

    def _problem(self, place: _Place, field: str, text: str) -> None:
        self._reading.problem(self._line(place), field[:80], text)

    def _line(self, place: _Place) -> int:
        """The line where this stands, or what it stands in."""
        if self._lines is None:
            self._lines = _lines(self._text)
        return next((self._lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self._lines), 0)


def _lines(text: str) -> dict[_Place, int]:
    """The line of each table and key of a TOML text that is right: tomllib does not tell."""
    found: dict[_Place, int] = {}
    table: _Place = ()
    for line, statement in _statements(text):
        match = _PATH.match(statement)
        if match is None:
            continue
        header = statement.lstrip().startswith("[")
        place = (() if header else table) + _path(match[1])
        table = place if header else table
        for n in range(1, len(place) + 1):
            found.setdefault(place[:n], line)
        if header:
            found[place] = line
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each statement: what stands up to a line end outside all brackets."""
    line = begun = 1
    depth = 0
    parts: list[str] = []
    for part in _TOKEN.findall(text):
        if part == "\n" and depth == 0:
            if parts:
                yield begun, "".join(parts)
            parts = []
        elif not part.startswith("#") and (parts or part.strip()):
            begun = begun if parts else line
            parts.append(part)
            depth += (part in ("[", "{")) - (part in ("]", "}"))
        line += part.count("\n")
    if parts:
        yield begun, "".join(parts)


def _path(keys: str) -> _Place:
    """`schedules."a.b".cron` as its parts, read by tomllib itself where quotes are in it."""
    if '"' not in keys and "'" not in keys:
        return tuple(part.strip() for part in keys.split("."))
    node: Any = tomllib.loads(f"{keys} = 0")
    parts: list[str] = []
    while isinstance(node, dict):
        ((name, node),) = node.items()
        parts.append(name)
    return tuple(parts)
