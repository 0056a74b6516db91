"""Crontab text as people have it (docs/moving-crontabs.md): five fields or an @alias, then a command.

Two things are ours, and a cron daemon would take them for a comment and for an unknown program:

    # dueline: id=nightly overlap=buffer_one timeout=2h
    30 2 * * *  dueline:report.nightly {"month": "last"}

The comment gives the options of the next line, by their names in JSON; `dueline:HANDLER` runs a handler with a payload.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.decoder import JSONDecoder
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.schedule import NAMES
from pipeline.crontab.command import shell_free, split_percent
from pipeline.crontab.parsed import Parsed, Reading, json_of, text_of

_ENVIRONMENT = re.compile(r"([\"']?)([A-Za-z_][A-Za-z0-9_]*)\1[ \t]*=[ \t]*(.*)")
_FIELDS = re.compile(r"((?i:@every)[ \t]+[^ \t]+|@[^ \t]+|[^ \t]+(?:[ \t]+[^ \t]+){4})(?:[ \t]+(.*))?")
_OPTIONS = re.compile(r"#[ \t]*dueline:(.*)")
_USER_HEADER = re.compile(r"(?:dow|wday|weekday|\*)\s+(?:user(?:[ _-]?name)?|who)\s+command", re.IGNORECASE)
"""The line of comment that distributions put above the columns of /etc/crontab."""
_USERS = frozenset(
    {"root", "www-data", "nobody", "daemon", "postgres", "ubuntu", "ec2-user", "list", "munin"}
)
"""Accounts that lines of system crontabs are for and no program is called like (as `mail`, `git` and `mysql` are)."""
COMMAND_LIMIT = 100_000
"""More than that no program is started with."""
_HANDLER = "dueline:"
_OWN = frozenset({"handler", "payload", "cron", "every", "after", "source", "version"})
_COUNTS = ("max_occurrences", "max_attempts", "pause_after")
_LOCAL = frozenset({
    "SHELL", "PATH", "MAILTO", "MAILFROM", "HOME", "LOGNAME", "USER", "LANG", "LANGUAGE", "LC_ALL",
    "LC_CTYPE", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING", "RANDOM_DELAY", "START_HOURS_RANGE",
    "BASH_ENV", "ENV", "TERM",
})  # fmt: skip
"""Variables for the daemon, or that a worker has values of its own for."""
_SPACE = re.compile(r"[ \t]+")
_SLUG = re.compile(r"[^a-z0-9._]+")


@dataclass(slots=True, kw_only=True)
class _Table:
    """Where the reading of a crontab stands: what lines above have set for those below."""

    reading: Reading
    tz: str
    zone: str
    env: dict[str, str] = field(default_factory=dict)
    system: bool = False
    options: dict[str, Any] | None = None
    options_line: int = 0
    told: bool = False
    numbers: dict[str, int] = field(default_factory=dict)


def parse_crontab(content: bytes, *, source: str, name: str, tz: str = "UTC") -> Parsed:
    """The schedules of a user's crontab. `source` marks them (`file:<name>`), `name` is what findings call the file,
    `tz` the zone of lines without a CRON_TZ= above them.

    Lines that cannot be carried over become problems. InvalidInput if the bytes are no text (`text_of`), or too many.
    """
    table = _Table(reading=Reading(name=name, source=source), tz=tz, zone=tz)
    for number, line in enumerate(text_of(content, name).split("\n"), 1):
        text = line.strip(" \t")
        try:
            _read(table, number, text)
        except InvalidInput as error:
            if error.field.startswith(f"{name}:"):
                raise
            table.reading.problem(number, error.field, error.problem)
    if table.options is not None:
        table.reading.problem(table.options_line, "", "no line follows that these options are for")
    return table.reading.parsed()


def _read(table: _Table, number: int, text: str) -> None:
    if not text:
        return
    if text.startswith("#"):
        _comment(table, number, text)
    elif match := _ENVIRONMENT.fullmatch(text):
        _environment(table, number, match[2], _unquoted(match[3]))
    else:
        options, table.options = table.options or {}, None
        _line(table, number, text, options)


def _comment(table: _Table, number: int, text: str) -> None:
    table.system = table.system or _USER_HEADER.search(text) is not None
    if match := _OPTIONS.fullmatch(text):
        if table.options is not None:
            raise InvalidInput("", f"the options of line {table.options_line} have no line yet")
        table.options, table.options_line = {}, number
        table.options = _options(match[1])


def _options(text: str) -> dict[str, Any]:
    """`name=value …`; a value that begins like JSON text, list or object is JSON, else it ends at a space."""
    found: dict[str, Any] = {}
    at = 0
    while match := re.compile(r"[ \t]*([^ \t=]+)=").match(text, at):
        name = match[1]
        if name in _OWN or name not in NAMES:
            raise InvalidInput(
                name[:80], "it stands in the line itself" if name in _OWN else "no such option"
            )
        if name in found:
            raise InvalidInput(name, "given twice")
        found[name], at = _value(name, text, match.end())
    if text[at:].strip(" \t"):
        raise InvalidInput("", f"{text[at:].strip()[:80]!r} is not name=value")
    return found


def _value(name: str, text: str, at: int) -> tuple[Any, int]:
    if text[at : at + 1] in ("{", "[", '"'):
        try:
            _, end = JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            raise InvalidInput(name, "not JSON") from None
        return json_of(name, text[at:end]), end
    bare = re.compile(r"[^ \t]*").match(text, at)
    value = bare[0] if bare else ""
    if not value:
        raise InvalidInput(name, "no value")
    return int(value) if name in _COUNTS and re.fullmatch("[0-9]{1,9}", value) else value, at + len(value)


def _unquoted(value: str) -> str:
    value = value.rstrip(" \t")
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _environment(table: _Table, number: int, name: str, value: str) -> None:
    if name in ("CRON_TZ", "TZ"):
        table.tz = value or table.zone
        if name == "TZ":
            table.reading.note(number, "tz", "TZ is taken as CRON_TZ: the zone of the lines below")
    elif name in _LOCAL:
        table.reading.note(number, "", f"{name} is left out")
    else:
        table.env[name] = value
        table.reading.note(
            number, "", f"{name} is handed to the scripts below: list it in DUELINE_SCRIPT_ENV"
        )


def _line(table: _Table, number: int, text: str, options: Mapping[str, Any]) -> None:
    match = _FIELDS.fullmatch(text)
    if match is None:
        raise InvalidInput("cron", f"{text[:80]!r} is neither five fields and a command, nor NAME=value")
    expression, command = match[1], match[2] or ""
    if expression.lower() == "@reboot":
        raise InvalidInput(
            "cron", "@reboot is no time: workers come and go. Start it where the machine starts programs"
        )
    if not command:
        raise InvalidInput("command", "missing")
    values = {**_timing(expression), "tz": table.tz}
    if command.startswith(_HANDLER):
        values |= _handler(command)
    else:
        values |= _script(table, number, command)
    if "id" not in options:
        values["id"] = _free(table, values["id"])
    table.reading.add(number, {**values, **options})
    _tell_zone(table, number, options)


def _timing(expression: str) -> dict[str, str]:
    head, *others = _SPACE.split(expression)
    if head.lower() == "@every":
        return {"every": " ".join(others)}
    return {"cron": " ".join([head, *others])}


def _handler(command: str) -> dict[str, Any]:
    """`dueline:HANDLER [payload]`. A % is a percent here: it is JSON, not a command."""
    name, payload = re.match(r"([^ \t]*)[ \t]*(.*)", command[len(_HANDLER) :]).groups()  # type: ignore[union-attr]
    given = json_of("payload", payload) if payload else {}
    return {"id": _id(name, [name, given]), "handler": name, "payload": given}


def _script(table: _Table, number: int, command: str) -> dict[str, Any]:
    if len(command) > COMMAND_LIMIT:
        raise InvalidInput("command", f"longer than {COMMAND_LIMIT} characters")
    _refuse_user(table, command)
    line, stdin = split_percent(command)
    parsed = shell_free(line)
    if parsed.quiet:
        table.reading.note(number, "command", "the output is kept as the result of the run, not thrown away")
    if parsed.comment:
        table.reading.note(number, "command", "the comment behind it is left out")
    program, *args = parsed.argv
    payload: dict[str, Any] = {"command": program, "args": args} if args else {"command": program}
    if env := {**table.env, **dict(parsed.env)}:
        payload["env"] = env
    if stdin is not None:
        payload["stdin"] = stdin
    words = " ".join([program.rpartition("/")[2], *args])
    what = [*parsed.argv] if stdin is None else [[*parsed.argv], stdin]
    return {"id": _id(words, what), "handler": "script", "payload": payload}


def _refuse_user(table: _Table, command: str) -> None:
    first, *rest = _SPACE.split(command, maxsplit=1)
    if rest and (table.system or first in _USERS):
        raise InvalidInput(
            "command",
            f"{first[:40]!r} looks like the user column of a system crontab: leave the column out, "
            "scripts run as the user of their worker",
        )


def _id(words: str, what: object) -> str:
    """An id that is the same as long as what is run is: a change of its time is a change of this schedule."""
    slug = _SLUG.sub("-", words.lower())[:40].strip("-._")
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    return f"{slug}-{digest[:8]}".lstrip("-")


def _free(table: _Table, wanted: str) -> str:
    """`wanted`, or with a number if a line above runs the same."""
    number = table.numbers.get(wanted, 0) + 1
    table.numbers[wanted] = number
    return wanted if number == 1 else f"{wanted}-{number}"


def _tell_zone(table: _Table, number: int, options: Mapping[str, Any]) -> None:
    if not table.told and "tz" not in options and table.tz == table.zone:
        table.told = True
        table.reading.note(number, "tz", f"no CRON_TZ above: taken as times of {table.zone}")
