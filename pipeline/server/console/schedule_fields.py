"""The fields of the schedule form: how they look, what they read, and what stands in them at first. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.client.schedule_options import RHYTHM, spec_of
from pipeline.core.errors import InvalidInput
from pipeline.server.console.payload import object_of

Texts = Mapping[str, str]
"""What stands in the fields, by name."""
Values = dict[str, Any]
"""Options by the names of docs/schedules.md; None: its default."""
Problems = dict[str, str]
"""What is wrong, by the name of the field."""

TIMING = frozenset(
    {"cron", "every", "after", "phase", "tz", "dst_gap", "dst_overlap", "exclude", "start", "end", "jitter"}
)
"""What the preview is about."""
COUNTED = {"misfire": "all", "overlap": "buffer_all"}
"""Policies, and the word of each that has a number with it: `all(20)`. That stands in a field of its own."""
NUMBER = "_number"
NEEDED = {"id": "is required", "handler": "is required"}
RARE_EVERY = "3650d"
"""A jitter may be as long as the time between two instants, which is not told by the jitter alone."""


# -- texts to values and back ----------------------------------------------------------------------------------


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise InvalidInput(name, f"{text!r:.40} is not a whole number")
    if int(text) < 1:
        raise InvalidInput(name, "must be at least 1")
    return int(text)


def _pairs(name: str, text: str) -> list[tuple[str, str]]:
    """`name=value`, one a line."""
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals:
            raise InvalidInput(name, f"{line!r:.80} is not name=value")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _texts(name: str, text: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in _pairs(name, text):
        if key in texts:
            raise InvalidInput(name, f"{key!r:.80} appears twice")
        texts[key] = value
    return texts


def _calendars(name: str, text: str) -> dict[str, list[str]]:
    calendars: dict[str, list[str]] = {}
    for key, rule in _pairs(name, text):
        calendars.setdefault(key, []).append(rule)
    return calendars


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lines(texts: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={value}" for key, value in texts.items())


def _rules(calendars: Mapping[str, list[str]]) -> str:
    return "\n".join(f"{key}={rule}" for key, rules in calendars.items() for rule in rules)


# -- the table -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`kind` as of parts.field, `example` stands in it while it is empty. `default`: how a schedule has what nobody
    gave, which is shown as empty. `read` makes a value of its text, or raises InvalidInput of the name; `write` the
    other way round."""

    label: str
    kind: str = "mono"
    hint: str = ""
    example: str = ""
    options: tuple[tuple[str, str], ...] = ()
    default: str = ""
    read: Callable[[str, str], Any] = lambda _, text: text
    write: Callable[[Any], str] = str

    @property
    def wide(self) -> bool:
        """Whether it takes a row of its own."""
        return self.kind == "area" or self.label == "Note"


ID = Entry(
    label="Id",
    hint="Lower-case letters, digits and . _ -; it cannot be changed later",
    example="daily-report",
)
WHEN = {
    "cron": Entry(
        label="Cron expression",
        hint="Five fields, six with seconds first, or a name such as @daily",
        example="0 10 * * *",
    ),
    "every": Entry(label="Or every", hint="An interval instead of an expression", example="90s"),
    "tz": Entry(label="Time zone", kind="text", hint="IANA name. Default: UTC", example="Europe/Berlin"),
    "dst_gap": Entry(
        label="If the clock skips its time",
        kind="select",
        options=(("run_after", "run it straight after"), ("skip", "skip it")),
    ),
    "dst_overlap": Entry(
        label="If its time comes twice",
        kind="select",
        options=(("first", "run it the first time only"), ("both", "run it both times")),
    ),
    "jitter": Entry(
        label="Jitter", hint="Delays each by up to this long. Default: none", example="30s", default="0ms"
    ),
    "start": Entry(
        label="Start",
        kind="instant",
        hint="Nothing fires before it. Default: at once",
        example="2030-01-31T09:30:00Z",
    ),
    "end": Entry(
        label="End",
        kind="instant",
        hint="Nothing fires from then on. Default: never",
        example="2031-01-31T09:30:00Z",
    ),
}
WHAT = {
    "handler": Entry(label="Handler", hint="What runs", example="report.daily"),
    "queue": Entry(label="Queue", hint="Default: the installation's own", example="default"),
    "payload": Entry(
        label="Payload",
        kind="area",
        hint="A JSON object, passed to the handler. Default: {}",
        example='{"to": "board"}',
        read=lambda _, text: object_of(text) or None,
        write=_json,
    ),
    "misfire": Entry(
        label="If some were missed",
        kind="select",
        options=(("latest", "fire the latest"), ("none", "fire none"), ("all", "fire the newest, up to …")),
    ),
    "misfire_number": Entry(
        label="Maximum missed to fire", hint="Only if the newest are fired", example="20", read=_whole
    ),
    "overlap": Entry(
        label="While one is running",
        kind="select",
        options=(
            ("skip", "skip the next one"),
            ("buffer_one", "let one wait"),
            ("buffer_all", "let several wait, up to …"),
            ("cancel_other", "stop the one that is running"),
            ("allow", "run both"),
        ),
    ),
    "overlap_number": Entry(
        label="Maximum waiting", hint="Only if several may wait", example="20", read=_whole
    ),
    "max_attempts": Entry(
        label="Maximum attempts", hint="Default: the handler's own", example="5", read=_whole
    ),
    "timeout": Entry(label="Time-out per attempt", hint="Default: the handler's own", example="30s"),
    "note": Entry(
        label="Note", kind="text", hint="Shown to anyone who looks at it", example="asked for by finance"
    ),
}
MORE = {
    "after": Entry(
        label="Count the interval",
        kind="select",
        options=(("", "on a grid from the epoch"), ("finish", "from the end of the previous run")),
    ),
    "phase": Entry(
        label="Phase", hint="Shifts the grid of an interval. Default: 0s", example="15m", default="0ms"
    ),
    "exclude": Entry(
        label="Exclude",
        kind="area",
        hint="One per line: name=DATE, name=FROM..TO or name=cron:EXPRESSION. Default: nothing",
        example="holidays=2030-12-24..2031-01-01\nnights=cron:* 0-5 * * *",
        read=_calendars,
        write=_rules,
    ),
    "max_occurrences": Entry(
        label="Maximum occurrences",
        hint="Ends after this many. Default: no limit",
        example="10",
        read=_whole,
    ),
    "pause_after": Entry(
        label="Pause after", hint="This many dead in a row. Default: never", example="3", read=_whole
    ),
    "catch_up": Entry(
        label="Catch up", hint="Skips what was missed by longer. Default: no limit", example="6h"
    ),
    "misfire_threshold": Entry(
        label="Missed if later than",
        hint="Anything less late fires. Default: 60s",
        example="5m",
        default="1m",
    ),
    "overlap_timeout": Entry(
        label="Counts as ended after",
        hint="If its end is never reported. Default: 24h",
        example="2h",
        default="1d",
    ),
    "serial": Entry(
        label="Serial group",
        hint="Runs of one group start one after another. Default: none",
        example="ledger",
    ),
    "labels": Entry(
        label="Labels",
        kind="area",
        hint="For finding its runs; one per line. Default: none",
        example="tenant=acme",
        read=_texts,
        write=_lines,
    ),
    "headers": Entry(
        label="Headers",
        kind="area",
        hint="Passed on with its runs; one per line. Default: none",
        example="trace=on",
        read=_texts,
        write=_lines,
    ),
}
ENTRIES = {"id": ID, **WHEN, **WHAT, **MORE}


# -- a whole form ----------------------------------------------------------------------------------------------


def written(spec: Mapping[str, Any]) -> dict[str, str]:
    """What stands in each field for this spec in JSON, which may be empty."""
    texts = {name: _written(entry, spec.get(name)) for name, entry in ENTRIES.items()}
    for policy in COUNTED:
        word, _, number = texts[policy].partition("(")
        texts[policy], texts[policy + NUMBER] = word, number.removesuffix(")")
    return texts


def _written(entry: Entry, given: Any) -> str:
    if given in (None, "", {}, entry.default):
        return entry.options[0][0] if entry.options else ""
    return entry.write(given).strip()


def shown(name: str, texts: Texts) -> str:
    """An option as people read it, a policy with its number; empty: nobody has given it."""
    entry, text = ENTRIES[name], texts[name]
    label = next((label for value, label in entry.options if value == text), text)
    return label.replace("…", texts[name + NUMBER]) if COUNTED.get(name) == text else label


def said(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a spec in JSON says, in the words of the form; without its payload."""
    texts = written(spec)
    options = [name for name in ENTRIES if name != "payload" and not name.endswith(NUMBER)]
    return [(ENTRIES[name].label, shown(name, texts)) for name in options if texts[name]]


def read(texts: Texts, *, whole: bool) -> tuple[Values, Problems]:
    """What the fields say, and all that is wrong with single ones; `whole`: also what is missing. A field that is
    wrong has no value."""
    values, problems = _values(texts)
    for name, value in values.items():
        if value is not None and (problem := _problem(name, value)):
            problems[name + NUMBER if name in COUNTED else name] = problem
    if whole:
        problems |= {name: problem for name, problem in NEEDED.items() if texts.get(name) == ""}
        if not texts["cron"] and not texts["every"]:
            problems["cron"] = "give an expression or an interval"
    return {name: value for name, value in values.items() if name not in problems}, problems


def _values(texts: Texts) -> tuple[Values, Problems]:
    values: Values = {}
    problems: Problems = {}
    for name, text in texts.items():
        try:
            values[name] = ENTRIES[name].read(name, text) if text else None
        except InvalidInput as error:
            problems[name] = error.problem
    for policy, word in COUNTED.items():
        field = policy + NUMBER
        number = values.pop(field, None)
        if values[policy] != word:
            problems.pop(field, None)  # it does not count
        elif number is not None:
            values[policy] = f"{word}({number})"
        else:
            del values[policy]
            problems.setdefault(field, "how many?")
    return values, problems


def _problem(name: str, value: Any) -> str:
    """What is wrong with an option alone, by the rules of every way in; empty: nothing."""
    rhythm = {} if name in ("cron", "every") else {"every": RARE_EVERY if name == "jitter" else "1h"}
    try:
        spec_of({"id": "x", "handler": "x", **rhythm, name: value})
    except InvalidInput as error:
        return error.problem if error.field.partition(".")[0] == name else ""
    return ""


def changed(before: Texts, now: Texts, values: Values) -> Values:
    """The options of the fields that have another text. A new expression or interval takes the place of all that says
    so, hence all of it goes along."""
    names = {name.removesuffix(NUMBER) for name in now if now[name] != before[name]}
    if names & {"cron", "every"}:
        names |= {name for name in RHYTHM if values[name] is not None}
    return {name: value for name, value in values.items() if name in names}
