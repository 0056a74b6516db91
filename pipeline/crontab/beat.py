"""The `beat_schedule` of a Celery application, read from its source or from JSON; nothing of it is ever executed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import InvalidInput
from pipeline.core.names import legal
from pipeline.crontab.celery import CRONTAB_FIELDS, Called, duration, timing
from pipeline.crontab.parsed import Parsed, Reading, json_of, plain, text_of
from pipeline.crontab.source import Names, Unreadable, tree_of

SOURCE_LIMIT = 1024 * 1024
"""Bytes of Python source: its tree takes several hundred times as much."""
_SCHEDULES = ("beat_schedule", "CELERY_BEAT_SCHEDULE", "CELERYBEAT_SCHEDULE")
_ZONES = ("timezone", "CELERY_TIMEZONE")
_IN_CODE = {"add_periodic_task": "add_periodic_task(…)", "periodic_task": "@periodic_task"}
_NAME = re.compile(r"[^a-z0-9._-]+")


@dataclass(slots=True, kw_only=True)
class _Found:
    """What a source has: entries as (line, name, value or what is wrong with it), and its zone."""

    reading: Reading
    entries: list[tuple[int, Any, Any]] = field(default_factory=list)
    zone: str | None = None
    seen: bool = False
    """Whether there is a schedule at all, be it empty."""


def parse_beat(content: bytes, *, source: str, name: str, tz: str | None = None) -> Parsed:
    """The schedules of a Celery `beat_schedule`: a Python file, read and never run, or JSON.

    `tz` is the zone, else that of `timezone` in the file, else UTC as in Celery. Entries that cannot be carried over
    become problems, what is done differently notes. InvalidInput with file and line if it is neither Python nor JSON.
    """
    text = text_of(content, name, SOURCE_LIMIT)
    found = _Found(reading=Reading(name=name, source=source), zone=tz)
    if text.lstrip().startswith("{"):
        _read_json(found, text, json_of(name, text))
    else:
        _read_python(found, tree_of(text, name), tz)
    if not found.seen:
        found.reading.problem(0, "", f"no schedule found: looked for {', '.join(_SCHEDULES)}")
    _tell_zone(found)
    names: dict[str, int] = {}
    for line, entry, value in found.entries:
        _carry(found, line, str(entry), value, names)
    return found.reading.parsed()


# -- where it stands ----------------------------------------------------------------------------------------


def _read_json(found: _Found, text: str, document: dict[str, Any]) -> None:
    """Either the schedule, or an object that has it and perhaps `timezone`."""
    schedule: Any = document
    for name in _SCHEDULES:
        if name in document:
            schedule = document[name]
            zone = next((document[key] for key in _ZONES if key in document), None)
            found.zone = found.zone or (zone if isinstance(zone, str) else None)
    found.seen = isinstance(schedule, dict)
    at = 0
    for name, value in schedule.items() if found.seen else ():
        at = max(at, text.find(json.dumps(name, ensure_ascii=False), at))
        found.entries.append((text.count("\n", 0, at) + 1, name, value))


def _read_python(found: _Found, tree: ast.Module, tz: str | None) -> None:
    names = Names(tree)
    for line, setting, value in _settings(tree, names):
        match setting:
            case str() if setting in _SCHEDULES:
                _read_entries(found, names, line, value)
            case str() if setting in _ZONES and tz is None:
                _read_zone(found, names, line, value)
            case (_, Unreadable() as error):
                found.seen = True
                found.reading.problem(line, "id", f"not carried over: {error.text}")
            case (_, key):
                found.seen = True
                found.entries.append((line, key, _value(names, value)))
            case str() if setting in _IN_CODE:
                found.seen = True
                text = f"{_IN_CODE[setting]} is code, which is not run: create this schedule by hand"
                found.reading.problem(line, "schedule", text)


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Every node in the order of the source, and whether it stands in a function."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)]
    while stack:
        node, inside = stack.pop()
        yield node, inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        stack += [(child, inside) for child in reversed([*ast.iter_child_nodes(node)])]


_Setting = tuple[int, str | tuple[str, Any], ast.expr]


def _settings(tree: ast.Module, names: Names) -> Iterator[_Setting]:
    """(line, name, value) of everything that gives a value to a setting, wherever it stands; for one entry of a
    schedule the name is (name, entry)."""
    for node, inside in _walk(tree):
        match node:
            case (
                ast.Assign(targets=[target], value=value)
                | ast.AnnAssign(target=target, value=ast.expr() as value)
            ):
                name = _target(target, names, inside)
                if name is not None:
                    yield node.lineno, name, value
            case ast.Call():
                yield from _called(node, names)
            case ast.Dict(keys=keys, values=values):
                texts = [key.value if isinstance(key, ast.Constant) else None for key in keys]
                yield from _together(zip(texts, values, strict=True), always=False)


def _target(target: ast.expr, names: Names, inside: bool) -> str | tuple[str, Any] | None:
    """The setting that is assigned: a plain name, one of `….conf`, or an entry of a schedule."""
    name = _last(target)
    match target:
        case ast.Name() if name in _SCHEDULES or not inside:
            return name
        case ast.Attribute(value=owner) if name in _SCHEDULES or _last(owner) == "conf":
            return name
        case ast.Subscript(value=owner, slice=key) if _last(owner) in _SCHEDULES:
            return _last(owner), _value(names, key)
        case ast.Subscript(slice=ast.Constant(value=str(setting)), value=owner):
            return setting if setting in _SCHEDULES or _last(owner) == "conf" else None
    return None


def _last(node: ast.expr) -> str:
    """`conf` of `app.conf`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _called(node: ast.Call, names: Names) -> Iterator[_Setting]:
    """Settings among the arguments, as of `conf.update(…)`, and schedules that are made by code."""
    name = names.call_name(node.func)
    owner = _last(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if name in _IN_CODE:
        yield node.lineno, name, node
    yield from _together(((word.arg, word.value) for word in node.keywords), always=owner == "conf")
    if name == "update" and node.args:
        first = node.args[0]
        if owner in _SCHEDULES:
            yield first.lineno, owner, first
        elif owner == "conf" and isinstance(first, ast.Dict):
            texts = [key.value if isinstance(key, ast.Constant) else None for key in first.keys]
            if not set(texts) & set(_SCHEDULES):  # with a schedule in it, it is found as any dict is
                yield from _together(zip(texts, first.values, strict=True), always=True)


def _together(pairs: Iterable[tuple[Any, ast.expr]], *, always: bool) -> Iterator[_Setting]:
    """Names and values as settings, if these are settings of Celery: one of them is its schedule, or `always`."""
    pairs = list(pairs)
    if always or any(name in _SCHEDULES for name, _ in pairs):
        for name, value in pairs:
            if isinstance(name, str):
                yield value.lineno, name, value


def _read_entries(found: _Found, names: Names, line: int, value: ast.expr) -> None:
    found.seen = True
    try:
        found.entries += [(item.lineno, key, _value(names, item)) for key, item in names.items(value)]
    except Unreadable as error:
        found.reading.problem(error.line or line, "schedule", f"not carried over: {error.text}")


def _read_zone(found: _Found, names: Names, line: int, value: ast.expr) -> None:
    zone = _value(names, value)
    if isinstance(zone, str):
        found.zone = zone
    else:
        found.reading.problem(line, "tz", "the zone is known when the program runs: say which it is")


def _value(names: Names, node: ast.expr) -> Any:
    """The value, or the Unreadable that says why there is none."""
    try:
        return names.value(node)
    except Unreadable as error:
        return error


def _tell_zone(found: _Found) -> None:
    if found.zone is None:
        found.reading.note(0, "tz", "no timezone given: taken as times of UTC")


# -- one entry ----------------------------------------------------------------------------------------------


def _carry(found: _Found, line: int, name: str, value: Any, names: dict[str, int]) -> None:
    reading, shown = found.reading, f"entry {name[:80]!r}"
    try:
        if name in names:
            raise InvalidInput("id", f"given in line {names[name]} already")
        names[name] = line
        if isinstance(value, Unreadable):
            raise InvalidInput("schedule", value.text)
        if not isinstance(value, dict):
            raise InvalidInput("schedule", "must be a dict with task and schedule")
        spec, notes = _entry(name, value)
        reading.add(line, {"tz": found.zone or "UTC", **spec})
    except InvalidInput as error:
        if error.field.startswith(f"{reading.name}:"):
            raise
        reading.problem(line, error.field, f"{error.problem} ({shown})")
    else:
        for field_name, text in notes:
            reading.note(line, field_name, f"{text} ({shown})")


def _entry(name: str, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The fields of a spec, and notes as (field, text)."""
    notes: list[tuple[str, str]] = []
    task = entry.get("task")
    if not isinstance(task, str):
        raise InvalidInput("task", "must be the name of a task")
    if entry.get("enabled", True) is not True:
        raise InvalidInput("enabled", "it is switched off")
    when, told = timing(_from_json(entry.get("schedule")))
    notes += [("schedule", text) for text in told]
    fields = {"id": _legal("id", name, notes), "handler": _legal("handler", task, notes), **when}
    if payload := _payload(entry, notes):
        fields["payload"] = payload
    fields |= _options(entry.get("options") or {}, notes)
    for key in entry:
        if key not in ("task", "schedule", "args", "kwargs", "options", "enabled", "name"):
            notes.append((str(key)[:80], "left out"))
    return fields, notes


def _legal(field: str, name: str, notes: list[tuple[str, str]]) -> str:
    """`name` as an id or handler may be called."""
    if legal(name):
        return name
    made = _NAME.sub("-", name.lower()).strip("-")[:80]
    notes.append((field, f"{name[:80]!r} is called {made!r} here"))
    return made


def _from_json(schedule: Any) -> Any:
    """`{"minute": "*/5"}` and `{"every": 30}` of JSON as the calls that they stand for."""
    if not isinstance(schedule, dict):
        return schedule
    fields = {key: value for key, value in schedule.items() if key not in ("__type__", "relative")}
    if set(fields) == {"every"}:
        return fields["every"]
    if fields and all(key in CRONTAB_FIELDS for key in fields):
        return Called(name="crontab", args=(), kwargs=fields)
    raise InvalidInput(
        "schedule", f"must be a number of seconds or an object with some of {', '.join(CRONTAB_FIELDS)}"
    )


def _payload(entry: Mapping[str, Any], notes: list[tuple[str, str]]) -> dict[str, Any]:
    args: Any = plain("args", entry.get("args") or [])
    kwargs: Any = plain("kwargs", entry.get("kwargs") or {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise InvalidInput("kwargs", "args must be a list and kwargs a dict")
    if not args:
        return dict(kwargs)
    if "args" in kwargs:
        raise InvalidInput("args", "there is a keyword argument args, too: give all by keyword")
    notes.append(
        ("args", "handlers take keywords: the positional arguments are the list args of the payload")
    )
    return {"args": args, **kwargs}


def _options(options: Any, notes: list[tuple[str, str]]) -> dict[str, Any]:
    if not isinstance(options, dict):
        raise InvalidInput("options", "must be a dict")
    fields: dict[str, Any] = {}
    for name, value in options.items():
        period = duration(value)
        match name:
            case "queue" if isinstance(value, str):
                fields["queue"] = _legal("queue", value, notes)
            case "expires" if period is not None:
                fields["catch_up"] = period
                notes.append(
                    (
                        "expires",
                        "is the catch-up window here: for a run that waits for a worker, too, give the handler max_age",
                    )
                )
            case "time_limit" if period is not None:
                fields["timeout"] = period
            case _:
                notes.append((str(name)[:80], "this option is left out"))
    return fields
